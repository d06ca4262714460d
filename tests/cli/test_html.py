"""The pages that ``tokendraw bench`` and ``tokendraw check`` write."""

import os
import re
import sys
from html import unescape

import pytest

import tokendraw_testing
from command_line import call
from tokendraw import html_pages
from tokendraw_testing import Line, Report, Status
from tokendraw_testing.kit.report import places

RUN = ("--device", "cpu", "--vocab-size", 256, "--sampler", "native", "--sampler", "torch-sort")
EVIL = "<script>alert(1)</script>"
PLACES = places(["sample"], ["float32", "float16"], 1 << 10)


@pytest.fixture
def no_libraries(monkeypatch):
    monkeypatch.setattr(html_pages, "_javascript", str)


def text_of(file):
    source = re.sub(r"<(style|script)>.*?</\1>", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", source)).split())


@pytest.fixture
def saved(tmp_path, no_libraries):
    run = ("bench", *RUN, "--batch", 2, "--batch", 4, "--repeats", 3, "--json")
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


def test_words_have_bars():
    words = [{"x": "greedy", "y": 1.0, "series": "native", "panel": ""}]
    assert html_pages.draw_chart(words, x="rows", y="us")["mark"]["type"] == "bar"


def test_lines_findings_and_places_of_a_check(no_libraries, monkeypatch, tmp_path):
    lines = (
        Line(
            name="top_p", status=Status.PASSED, detail="7 requests", checks=14, looked=frozenset(PLACES[:1])
        ),
        Line(name=EVIL, status=Status.FAILED, detail=EVIL, about=EVIL, traceback=EVIL),
    )
    facts = {"device": "cpu", "quick": True, "seed": 7, "false_alarm": 1e-6}
    report = Report(sampler="native", lines=lines, places=PLACES, **facts)
    monkeypatch.setattr(tokendraw_testing, "run", lambda *_, **__: report)
    file = tmp_path / "check.html"
    assert call("check", "native", "--device", "cpu", "--html", file).exit_code == 1
    text = text_of(file)
    assert "By chance, a correct sampler fails at most one such run in 1,000,000." in text
    assert f"--only '{EVIL}'" in text
    assert "Rows looked at in 1 of 2 places, none in: sample in float16 up to 1,024 ids." in text
    assert EVIL not in file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("command", "library", "needed"),
    [
        (("bench", *RUN), "altair", "altair, jinja2 and vl_convert"),
        (("check", "native"), "jinja2", "jinja2"),
    ],
)
def test_a_missing_library_is_named(command, library, needed, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, library, None)
    result = call(*command, "--html", tmp_path / "x.html")
    message = f"'--html' needs {needed}, found no {library}; run `pip install './"
    assert (result.exit_code, message in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("content", "found"), [("| a |", "no JSON"), ('{"cells": [{}]}', "an object of another")]
)
def test_a_saved_run_that_is_none_is_refused(no_libraries, content, found, tmp_path):
    (tmp_path / "saved.json").write_text(content, encoding="utf-8")
    result = call("bench", "--from", tmp_path / "saved.json", "--html", tmp_path / "x.html")
    assert (result.exit_code, f"found {found}" in result.stderr) == (2, True)


@pytest.mark.browser
def test_pages_show_their_charts_and_tables_and_load_nothing(tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright; run `make test-reports`")
    bench, check, complaints = tmp_path / "bench.html", tmp_path / "check.html", []
    assert call("bench", *RUN, "--repeats", 3, "--batch", 1, "--batch", 2, "--html", bench).exit_code == 0
    assert (
        call("check", "native", "--device", "cpu", "--quick", "--only", "output", "--html", check).exit_code
        == 0
    )
    with sync_api.sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(offline=True).new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith("file:") or complaints.append(asked.url))
        page.goto(bench.as_uri())
        page.wait_for_selector("body[data-drawn='1']")
        assert page.locator(".chart svg .mark-line path").count() == 4
        assert page.locator("tbody tr").count() == 4
        page.goto(check.as_uri())
        assert "output" in page.locator("table").first.inner_text()
        browser.close()
    assert complaints == []
