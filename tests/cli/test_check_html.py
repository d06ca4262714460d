"""``tokendraw check --html``: the findings, the lines and the matrix of a run as a page."""

import sys

import pytest

import tokendraw_testing
from command_line import call
from html_pages import Page
from tokendraw_testing import Line, Report, Status
from tokendraw_testing.kit import fuzz
from tokendraw_testing.kit.fuzz_report import FuzzFinding, FuzzReport
from tokendraw_testing.kit.matrix import Place, places

EVIL = "<script>alert(1)</script>"
PLACES = places(["sample"], ["float32", "bfloat16"], 1 << 16, ("greedy", "seeded"))
GREEDY, SEEDED = PLACES[:2]
WIDE = Place("sample", "bfloat16", 1 << 16, "seeded")
PASSED = Line(
    name="top_p",
    status=Status.PASSED,
    detail="7 requests by draws",
    about="Keeps the smallest set.",
    checks=14,
    draws=148_060,
    p_value=0.03412,
    worst="token 6",
    seconds=3.0,
    looked=((GREEDY, 7), (SEEDED, 1000)),
)
FAILED = Line(
    name="ties by value",
    status=Status.FAILED,
    detail="a call raised RuntimeError: no kernel",
    about="Keeps every tie.",
    traceback='  File "/acme/sampler.py", line 31, in sample\n',
    looked=((WIDE, 20),),
)
REFUSED = Line(name="ranks", status=Status.REFUSED, detail="'native' cannot serve it", about="Ranks.")


@pytest.fixture
def check(monkeypatch, tmp_path):
    """``check(*lines)``: the page of a run with these lines, and its exit code."""

    def run(*lines, options=()):
        def report(subject, **_):
            facts = {"device": str(subject.device), "quick": subject.effort.quick, "seed": subject.seed}
            return Report(
                sampler=subject.name, false_alarm=1e-6, lines=lines, places=PLACES, elapsed=2.5, **facts
            )

        monkeypatch.setattr(tokendraw_testing, "run", report)
        file = tmp_path / "check.html"
        result = call("check", "native", "--device", "cpu", "--jobs", 1, "--html", file, *options)
        return Page(file.read_text(encoding="utf-8")), result.exit_code

    return run


def test_a_green_run_says_what_ran_on_what_and_how_to_repeat_it(check, tmp_path):
    page, code = check(PASSED, REFUSED, options=("--seed", 7, "--quick"))
    assert code == 0
    assert "<title>tokendraw check: native on cpu</title>" in page.source
    assert (
        "1 passed, 0 failed, 1 refused (not advertised), 0 not run. By chance, its 14 statistics find fault"
        in (page.text)
    )
    assert "in at most one such run in 1,000,000." in page.text
    assert "run quick, seed 7 took 2.5 s This command repeats it:" in page.text
    command = "tokendraw check native --device cpu --quick --seed 7 --jobs 1 --html"
    assert f"{command} {tmp_path / 'check.html'} What was demanded" in page.text


def test_a_finding_has_its_demand_its_traceback_and_its_command(check):
    page, code = check(PASSED, FAILED, options=("--seed", 7))
    assert code == 1
    assert (
        "What went wrong? ties by value Demanded: Keeps every tie. Found: a call raised RuntimeError: no kernel "
        'Where it raised File "/acme/sampler.py", line 31, in sample '
        "tokendraw check native --device cpu --seed 7 --only 'ties by value' What was demanded"
    ) in page.text


def test_the_table_of_lines_has_numbers_to_sort_by(check):
    page, _ = check(PASSED, FAILED)
    assert page.rows() == [
        ["property", "status", "draws", "p-value", "seconds", "what was looked at"],
        ["top_p", "passed", "148,060", "0.034", "3.0", "7 requests by draws"],
        ["ties by value", "failed", "", "", "0.0", "a call raised RuntimeError: no kernel"],
    ]
    values = [[attrs.get("data-value") for _, attrs in row] for row in page.tables[0][1:]]
    assert values == [[None, None, "148060", "0.03412", "3.0", None], [None, None, "", "", "0.0", None]]
    assert page.tables[0][1][0][1]["title"] == "Keeps the smallest set."


def test_the_matrix_has_a_shade_for_each_number_of_rows_and_marks_gaps(check):
    page, _ = check(PASSED, FAILED)
    assert "Rows in 3 of 8 places" in page.text
    assert page.rows(1) == [
        ["dtype", "float32", "bfloat16"],
        ["ids, up to", "1K", "64K", "1K", "64K"],
        ["top_p", "g", "s", *"······"],
        ["ties by value", *"·······", "s"],
        ["any line", "g", "s", *"00000", "s"],
    ]
    assert [attrs["class"] for _, attrs in page.tables[1][-1][1:]] == ["s1", "s4", *["gap"] * 5, "s2"]
    assert page.tables[1][-1][2][1]["title"] == "1,000 seeded rows in float32, vocabularies up to 1,024 ids"


def test_dtypes_and_kinds_have_one_order(check):
    looked = ((WIDE, 1), (WIDE._replace(kind="greedy"), 1), (GREEDY, 1))
    page, _ = check(Line(name="top_p", status=Status.PASSED, detail="", looked=looked))
    assert page.rows(1)[0] == ["dtype", "float32", "bfloat16"]
    assert page.rows(1)[2:] == [["top_p", "g", *"00000", "g", "s"]]


def test_a_call_without_a_row_has_no_table(check):
    page, _ = check(REFUSED)
    assert "Rows in none of 8 places" in page.text
    assert len(page.tables) == 1


def test_nothing_from_a_plugin_is_markup(check, dists):
    line = Line(
        name=EVIL, status=Status.FAILED, detail=EVIL, about=EVIL, traceback=EVIL, worst=EVIL, p_value=0.1,
        looked=((Place(EVIL, EVIL, None, EVIL), 3),),
    )  # fmt: skip
    harmless, _ = check(FAILED)
    page, _ = check(line)
    assert len(page.named("script")) == len(harmless.named("script")) == 1
    assert EVIL not in page.source
    assert page.text.count("alert(1)") > 7


def test_it_loads_nothing_and_forbids_to(check):
    page, _ = check(PASSED, FAILED)
    assert page.foreign_sources() == []
    assert ["default-src 'none'" in a["content"] for a in page.named("meta") if "http-equiv" in a] == [True]
    assert len(page.source) < 20_000


def test_random_cases_have_a_page(monkeypatch, tmp_path):
    finding = FuzzFinding(operation="sample", number=17, detail="token 5 needs a draw", times=3)

    def report(subject, seconds, **_):
        return FuzzReport(
            sampler="native", device="cpu", quick=False, seed=0, cases={"sample": 1200, "verify": 34},
            left_out=("score",), checks=2000, findings=(finding,), looked=((SEEDED, 5000),), places=PLACES,
            jobs=1, elapsed=60.0,
        )  # fmt: skip

    monkeypatch.setattr(fuzz, "fuzz", report)
    file = tmp_path / "fuzz.html"
    assert call("check", "native", "--device", "cpu", "--fuzz", 60, "--html", file).exit_code == 1
    page = Page(file.read_text(encoding="utf-8"))
    assert "1 finding in 1,234 cases. By chance, its 2,000 statistics" in page.text
    assert (
        "sample, case 17 Found: token 5 needs a draw 3 cases differ in numbers alone. "
        "tokendraw check native --device cpu --operation sample --fuzz-case 0:17"
    ) in page.text
    assert page.rows() == [
        ["operation", "random cases", "findings"],
        ["sample", "1,200", "1"],
        ["verify", "34", "0"],
    ]
    assert page.rows(1)[-1] == ["random cases", "0", "s", *"000000"]


def test_a_filter_has_a_page(tmp_path):
    file = tmp_path / "filter.html"
    result = call(
        *("check", "--filter", "p_less", "--device", "cpu", "--quick", "--only", "reach", "--html", file)
    )
    assert result.exit_code == 0
    page = Page(file.read_text(encoding="utf-8"))
    assert "1 passed, 0 failed" in page.text
    assert f"tokendraw check --device cpu --filter p_less --quick --only reach --html {file}" in page.text


def test_a_list_has_no_page(tmp_path):
    result = call("check", "--list", "--html", tmp_path / "x.html")
    message = "'--html' writes the report of a run, '--list' runs nothing. Leave out one of them."
    assert (result.exit_code, f"Error: {message}\n" in result.stderr) == (2, True)


def test_a_missing_library_is_named_before_anything_runs(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setattr(tokendraw_testing, "run", lambda *_, **__: pytest.fail("it runs"))
    result = call("check", "native", "--device", "cpu", "--html", tmp_path / "x.html")
    assert (result.stdout, result.exit_code) == ("", 1)
    assert result.stderr == (
        "'--html' needs jinja2, found no jinja2; run `pip install './testing[html]'` in tokendraw's checkout.\n"
    )
