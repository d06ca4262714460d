"""Pages of ``bench --html`` and ``check --html`` in Chromium: drawn, sorted, narrow, dark, without a network."""

import json

import pytest

import tokendraw_testing
from command_line import call
from html_pages import Page
from tokendraw_testing import Line, Report, Status
from tokendraw_testing.kit.matrix import places

pytestmark = pytest.mark.browser

EVIL = "<img src=x onerror=alert(1)>"
TINY = (
    "--device",
    "cpu",
    "--vocab-size",
    256,
    "--sampler",
    "native",
    "--sampler",
    "torch-sort",
    "--repeats",
    3,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The JSON of a run: its file."""
    file = tmp_path_factory.mktemp("bench") / "bench.json"
    run = ("bench", *TINY, "--batch", 1, "--batch", 2, "--family", "peaked-7", "--family", "flat", "--single")
    file.write_text(call(*run, "--json").stdout, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def bench_page(saved):
    """The page of a run: its file."""
    file = saved.with_suffix(".html")
    assert call("bench", "--from", saved, "--html", file).exit_code == 0
    return file


@pytest.fixture(scope="module")
def check_page(tmp_path_factory):
    """The page of a check with a finding: its file."""
    file = tmp_path_factory.mktemp("check") / "check.html"
    dtypes, kinds = ("float32", "bfloat16", "float16"), ("greedy", "seeded", "unseeded")
    all_places = places(["sample"], dtypes, None, kinds)
    looked = tuple((place, 10**i) for i, place in enumerate(all_places[:5]))
    lines = (
        Line(name="top_p", status=Status.PASSED, detail="7 requests", p_value=0.2, checks=1, looked=looked),
        Line(name=EVIL, status=Status.FAILED, detail=EVIL, about=EVIL, traceback=EVIL),
        Line(name="ties", status=Status.PASSED, detail="families", p_value=0.03, checks=1),
    )
    report = Report(
        sampler="native", device="cpu", quick=True, seed=0, false_alarm=1e-6, lines=lines, places=all_places
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokendraw_testing, "run", lambda *_, **__: report)
        assert call("check", "native", "--device", "cpu", "--html", file).exit_code == 1
    return file


@pytest.fixture(params=["bench", "check"])
def file(request):
    """Each page."""
    return request.getfixturevalue(f"{request.param}_page")


def drawn(page):
    """Wait for the charts, and return the page."""
    page.wait_for_selector("body[data-drawn]")
    return page


def column(page, title):
    """Sort by a column, and return its texts from top to bottom."""
    page.get_by_role("button", name=title, exact=True).click()
    titles = page.locator("table.sortable thead th").all_inner_texts()
    cells = page.locator(f"table.sortable tbody td:nth-child({titles.index(title) + 1})")
    return cells.all_inner_texts()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_chart_is_drawn_in_its_place(opened, bench_page, width, scheme):
    page = drawn(opened(bench_page, width=width, scheme=scheme))
    expected = Page(bench_page.read_text(encoding="utf-8")).constant("drawings")
    charts = page.locator("[data-chart] svg")
    assert charts.count() == sum(len(chart["panels"]) for chart in expected) > 5
    for box in (chart.bounding_box() for chart in charts.all()):
        assert 250 < box["width"] <= width
        assert box["x"] + box["width"] <= width
    titles = page.locator("[data-chart] svg .role-axis-title").all_text_contents()
    assert {"time, in reads", "batch", "time, µs", "nucleus, tokens", "median, µs"} <= {*titles}


@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_is_no_wider_than_the_window(opened, file, width):
    page = opened(file, width=width)
    page.wait_for_timeout(500)
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_dark_mode_follows_the_system(opened, file):
    ink = "getComputedStyle(document.body).color"
    paper = "getComputedStyle(document.body).backgroundColor"
    colours = [
        [opened(file, scheme=scheme).evaluate(each) for each in (ink, paper)] for scheme in ("light", "dark")
    ]
    assert colours == [["rgb(27, 31, 36)", "rgb(255, 255, 255)"], ["rgb(232, 235, 238)", "rgb(21, 24, 28)"]]


def test_the_colours_of_charts_follow_the_system(opened, bench_page):
    stroke = "getComputedStyle(document.querySelector('[data-chart] svg .mark-line path')).stroke"
    strokes = [drawn(opened(bench_page, scheme=scheme)).evaluate(stroke) for scheme in ("light", "dark")]
    assert strokes == ["rgb(0, 114, 178)", "rgb(86, 180, 233)"]


def test_a_click_on_a_title_sorts_numbers_as_numbers_and_again_the_other_way(opened, bench_page):
    page = drawn(opened(bench_page))
    up = [float(text.replace(",", "")) for text in column(page, "torch-sort µs")]
    down = [float(text.replace(",", "")) for text in column(page, "torch-sort µs")]
    assert (up, down) == (sorted(up), sorted(up, reverse=True))
    assert len({*up}) > 1
    assert page.locator("th[aria-sort]").count() == 1


def test_a_cell_without_a_number_is_last_either_way(opened, check_page):
    page = opened(check_page)
    assert column(page, "p-value") == ["0.030", "0.200", ""]
    assert column(page, "p-value") == ["0.200", "0.030", ""]


def test_a_point_shows_its_call(opened, bench_page):
    page = drawn(opened(bench_page))
    page.locator("[data-chart] svg .mark-symbol path").first.hover()
    tooltip = page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    assert "native" in tooltip.inner_text()
    assert "quartiles" in tooltip.inner_text()


def test_a_name_with_markup_does_nothing(opened, saved, tmp_path):
    report = json.loads(saved.read_text(encoding="utf-8"))
    report["contenders"] = [EVIL, "torch-sort"]
    for cell in report["cells"]:
        cell["entries"] = {EVIL: cell["entries"]["native"], "torch-sort": cell["entries"]["torch-sort"]}
    (tmp_path / "evil.json").write_text(json.dumps(report), encoding="utf-8")
    assert call("bench", "--from", tmp_path / "evil.json", "--html", tmp_path / "evil.html").exit_code == 0
    page = drawn(opened(tmp_path / "evil.html"))
    page.locator("[data-chart] svg .mark-symbol path").first.hover()
    page.locator("#vg-tooltip-element.visible").wait_for()
    assert EVIL in page.locator("#vg-tooltip-element").inner_text()
    assert page.locator("img").count() == 0


def test_a_finding_with_markup_does_nothing(opened, check_page):
    page = opened(check_page)
    assert page.locator("h3").inner_text() == EVIL
    assert page.locator("img").count() == 0


def test_the_size_of_a_page_is_that_of_the_libraries_of_charts(bench_page, check_page):
    assert bench_page.stat().st_size < 1_100_000
    assert check_page.stat().st_size < 40_000
