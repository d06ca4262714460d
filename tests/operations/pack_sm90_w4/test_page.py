"""docs/sm90-w4.md is true: its example prints the printed output, and its calls and shapes exist."""

import inspect

import pages
from tokendraw import operations

PAGE = pages.text_of("docs/sm90-w4.md")


def test_its_python_prints_what_it_shows(capsys):
    (source,), (shown,) = pages.blocks(PAGE, "python"), pages.blocks(PAGE, "")
    exec(source, {})
    assert capsys.readouterr().out == shown


def test_its_table_of_calls_has_every_method_with_its_parameters():
    record = operations.find_operation("pack_sm90_w4")
    found = []
    for name in record.calls():
        parameters = list(inspect.signature(getattr(record.provider(), name)).parameters.values())[1:]
        after = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        found.append(f"`{name}({parameters[0].name}, *, {', '.join(after)})`")
    assert sorted(row[0] for row in pages.rows(PAGE, 3) if row[0].startswith("`")) == sorted(found)


def test_its_multiples_are_those_that_are_checked():
    from tokendraw.operations.pack_sm90_w4.calls import COLUMNS, ROWS

    assert ROWS == {"v1": 16, "v2": 64}
    assert COLUMNS == {"v1": 64, "v2": 128}
    assert (
        "N has to be a multiple of 16 in `v1` and of 64 in `v2`; K of 64 in `v1` and of 128 in `v2`." in PAGE
    )
