"""``bench --html``, ``bench --from`` and ``check --html``: what a page says, and what is refused."""

import json
import re
import sys
from html import unescape

import pytest

import tokendraw_testing
from command_line import call
from tokendraw import html_pages
from tokendraw_bench.commands.html import write_report
from tokendraw_testing import Line, Report, Status
from tokendraw_testing.kit import fuzz
from tokendraw_testing.kit.fuzz_report import FuzzFinding, FuzzReport
from tokendraw_testing.kit.matrix import places

TINY = ("--device", "cpu", "--vocab-size", 256, "--sampler", "native", "--sampler", "torch-sort")
EVIL = "<script>alert(1)</script>"
PLACES = places(["sample"], ["float32"], 1 << 10, ("greedy", "seeded"))


@pytest.fixture(autouse=True)
def no_libraries(monkeypatch):
    monkeypatch.setattr(html_pages, "_javascript", str)


def text_of(file):
    source = re.sub(r"<(style|script)>.*?</\1>", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", source)).split())


@pytest.fixture
def saved(tmp_path):
    run = ("bench", *TINY, "--batch", 2, "--batch", 4, "--repeats", 3, "--json")
    (tmp_path / "saved.json").write_text(call(*run).stdout, encoding="utf-8")
    return tmp_path / "saved.json"


def test_the_page_of_a_run_is_that_of_its_saved_json(saved, tmp_path):
    result = call("bench", "--from", saved, "--html", tmp_path / "bench.html")
    assert (result.stdout, result.stderr, result.exit_code) == ("", "", 0)
    text = text_of(tmp_path / "bench.html")
    assert text.startswith("tokendraw bench: sample on cpu tokendraw bench: sample on cpu 4 cells in ")
    assert "batch filters nucleus read µs native µs native reads torch-sort µs torch-sort reads 2 n" in text
    source = (tmp_path / "bench.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in source
    assert not re.search(r"\s(src|href)=|url\(|@import", source)


def test_a_sweep_has_its_edges_and_words_have_bars(saved, tmp_path):
    run = json.loads(saved.read_text(encoding="utf-8"))
    for cell, special in zip(run["cells"], ("none", "seeded", "greedy", "top-k"), strict=True):
        cell |= {"special": special, "batch": 2}
        cell["entries"]["native"] |= {"edge": 3.0}
    write_report(tmp_path / "x.html", run | {"sweeps": [run | {"sweep": "special-row", "title": "one row"}]})
    assert "Edges of native: 4, up to 3.0 times." in text_of(tmp_path / "x.html")
    assert '"type": "bar"' in (tmp_path / "x.html").read_text(encoding="utf-8")


def test_lines_findings_and_places_of_a_check(monkeypatch, tmp_path):
    lines = (
        Line(name="top_p", status=Status.PASSED, detail="7 requests", checks=14, looked=((PLACES[0], 7),)),
        Line(name=EVIL, status=Status.FAILED, detail=EVIL, about=EVIL, traceback=EVIL),
    )
    facts = {"device": "cpu", "quick": True, "seed": 7, "false_alarm": 1e-6}
    report = Report(sampler="native", lines=lines, places=PLACES, **facts)
    monkeypatch.setattr(tokendraw_testing, "run", lambda *_, **__: report)
    file = tmp_path / "check.html"
    assert call("check", "native", "--device", "cpu", "--html", file).exit_code == 1
    text = text_of(file)
    assert (
        "By chance, its 14 statistics find fault with a correct sampler in at most one such run in 1,000,000."
        in text
    )
    assert f"--only '{EVIL}'" in text
    assert "Rows in 1 of 2 places. call dtype ids, up to kind of row rows" in text
    assert EVIL not in file.read_text(encoding="utf-8")


def test_random_cases_of_a_check(monkeypatch, tmp_path):
    finding = FuzzFinding(operation="sample", number=17, detail="token 5 needs a draw", times=3)
    facts = {"device": "cpu", "quick": False, "seed": 0, "cases": {"sample": 1200}, "checks": 0, "jobs": 1}
    facts |= {"left_out": ("score",), "looked": (), "places": PLACES, "elapsed": 1.0}
    report = FuzzReport(sampler="native", findings=(finding,), **facts)
    monkeypatch.setattr(fuzz, "fuzz", lambda *_, **__: report)
    file = tmp_path / "fuzz.html"
    assert call("check", "native", "--device", "cpu", "--fuzz", 9, "--html", file).exit_code == 1
    assert "1,200 random cases of sample, none of score." in (text := text_of(file))
    assert "sample, case 17 token 5 needs a draw 3 cases differ in numbers alone." in text
    assert "--fuzz-case 0:17 Which rows were looked at? Rows in none of 2 places." in text


@pytest.mark.parametrize(
    ("command", "library", "needed"),
    [
        (("bench", *TINY), "altair", "altair, jinja2 and vl_convert"),
        (("check", "native"), "jinja2", "jinja2"),
    ],
)
def test_a_missing_library_is_named(command, library, needed, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, library, None)
    result = call(*command, "--html", tmp_path / "x.html")
    message = f"'--html' needs {needed}, found no {library}; run `pip install './"
    assert (result.exit_code, message in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("| a |", (), "found no JSON"),
        ('{"cells": [{}]}', (), "found an object of another form (KeyError: 'contenders')"),
        ("", ("--batch", 2), "'--batch' is about a run, '--from' about an earlier one."),
    ],
)
def test_from_is_for_the_page_of_a_saved_run(content, options, message, tmp_path):
    (tmp_path / "saved.json").write_text(content, encoding="utf-8")
    result = call("bench", "--from", tmp_path / "saved.json", "--html", tmp_path / "x.html", *options)
    assert (result.exit_code, message in result.stderr) == (2, True)
