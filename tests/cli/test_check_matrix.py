"""The part of ``tokendraw check`` about places without a look."""

import pytest

from tokendraw_testing.commands import matrix_lines
from tokendraw_testing.commands.matrix_lines import print_matrix
from tokendraw_testing.kit.matrix import Place, places

DTYPES = ("float32", "bfloat16", "float16")
SAMPLE = places(["sample"], DTYPES, None, ("greedy", "seeded", "unseeded"))


def place(dtype, up_to, kind, call="sample"):
    return Place(call, dtype, up_to, kind)


LINES = [
    ("greedy rows", ((place("float32", 1024, "greedy"), 5), (place("bfloat16", 131072, "greedy"), 1))),
    ("output", ((place("float32", 1024, "unseeded"), 9), (place("float16", None, "seeded"), 2))),
    ("sync-free", ()),
]


def test_a_line_has_a_letter_where_it_looked_and_dots_where_it_did_not(capsys):
    print_matrix(LINES, SAMPLE)
    assert capsys.readouterr().out == (
        "\n"
        "sample: rows looked at in 4 of 36 places (g greedy, s seeded, u unseeded)\n"
        "                              float32               bfloat16              float16\n"
        "ids in the vocabulary, up to  1K   64K  128K  more  1K   64K  128K  more  1K   64K  128K  more\n"
        "greedy rows                   g..  ...  ...   ...   ...  ...  g..   ...   ...  ...  ...   ...\n"
        "output                        ..u  ...  ...   ...   ...  ...  ...   ...   ...  ...  ...   .s.\n"
        "any line                      g.u  ...  ...   ...   ...  ...  g..   ...   ...  ...  ...   .s.\n"
    )


def test_a_narrow_terminal_gets_the_dtypes_below_each_other(capsys, monkeypatch):
    monkeypatch.setattr(matrix_lines, "console_width", lambda: 60)
    print_matrix(LINES[:1], SAMPLE)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[2:])) <= 60
    assert [line.strip() for line in lines[2::3]] == list(DTYPES)


def test_calls_are_counted_apart_and_one_that_nobody_made_says_so(capsys):
    both = places(["verify rejection", "verify coupled"], ["float16"], 1000, ["greedy", "unseeded"])
    print_matrix([("verify output", ((place("float16", 1024, "greedy", "verify rejection"), 3),))], both)
    assert capsys.readouterr().out == (
        "\n"
        "verify rejection: rows looked at in 1 of 2 places (g greedy, u unseeded)\n"
        "                              float16\n"
        "ids in the vocabulary, up to  1K\n"
        "verify output                 g.\n"
        "\n"
        "verify coupled: rows looked at in none of 2 places (g greedy, u unseeded)\n"
    )


@pytest.mark.parametrize("lines", [LINES, []])
def test_an_operation_without_rows_of_logits_has_none(lines, capsys):
    print_matrix(lines, ())
    assert capsys.readouterr().out == ""
