"""``tokendraw bench --html``: the page of a run, of sweeps and of a saved run; its charts, its answers, its escapes."""

import copy
import json
import sys

import pytest

from command_line import call
from html_pages import Page
from tokendraw_bench.report import drawings
from tokendraw_bench.report.answers import fastest, growth
from tokendraw_bench.report.drawings import log_ticks
from tokendraw_bench.report.page import write_report
from tokendraw_bench.report.questions import ChartForm, charts, slowest_calls
from tokendraw_bench.report.records import RunRecord

TINY = ("--device", "cpu", "--vocab-size", 256, "--sampler", "native", "--sampler", "torch-sort")
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def no_libraries(monkeypatch):
    """Leave the libraries of charts out of pages: they take seconds to be packed."""
    monkeypatch.setattr(drawings, "javascript", lambda: "")


def entry(us, read, **more):
    times = {"us": us, "q1_us": us, "q3_us": us, "host_us": None, "how": "graph", "largest_us": None}
    return {**times, "least_host_us": None, "ratio": us and us / read, "reason": "", "by": "", **more}


def cell(us, *, batch=2, family="gaussian", filters="none", read=10.0, **more):
    """Return a cell of JSON with the times of acme and, where there are two, of slow."""
    fields = {"batch": batch, "vocab_size": 256, "dtype": "float32", "filters": filters, "family": family}
    optional = {"special": "none", "filter_order": "top_k_first", "logprobs": None}
    entries = {name: entry(time, read) for name, time in zip(("acme", "slow"), us, strict=False)}
    nucleus = {"gaussian": 100.0, "flat": 200.0, "equal": 256.0}[family]
    measured = {"nucleus": nucleus, "buffers": 2, "nbytes": 2048, "read": entry(read, read)}
    return {**fields, **optional, **measured, "entries": entries, **more}


def run_of(*cells, **more):
    """Return the JSON of a run."""
    host = {"device_type": "cuda", "name": "H900", "compute_capability": "9.0", "rocm_arch": None}
    return {
        "error": None,
        "command": "tokendraw bench --device cuda",
        "operation": "sample",
        "host": {**host, "sm_count": 132, "cuda_version": "13.0"},
        "method": "a clock that stands",
        "repeats": 3,
        "threads": 1,
        "omp_wait_policy": None,
        "cores": 4,
        "busy": "",
        "versions": {"tokendraw": "1.0"},
        "contenders": list(cells[0]["entries"]) if cells else [],
        "seconds": 2.0,
        "notes": [],
        "top_k": 50,
        "cells": list(cells),
        **more,
    }


def charts_of(*cells, **more):
    return charts(RunRecord(run_of(*cells, **more)))


def page_of(folder, report):
    write_report(folder / "page.html", report)
    return Page((folder / "page.html").read_text(encoding="utf-8"))


class TestCharts:
    def test_a_line_by_batch_has_the_ratios_of_a_contender_in_a_panel_for_each_filter(self):
        by_batch = charts_of(
            *(
                cell((us, 9 * us), batch=b, filters=f)
                for b, us in ((1, 30.0), (8, 20.0))
                for f in ("none", "both")
            )
        )[0]
        assert by_batch.question == "How many reads does a call take, by batch?"
        assert by_batch.answer == "acme 2 to 3 reads; slow 18 to 27 reads."
        assert list(by_batch.panels) == ["filters none", "filters both"]
        points = by_batch.panels["filters both"]
        assert [(p["sampler"], p["x"], p["y"]) for p in points] == [
            ("acme", 1, 3.0),
            ("slow", 1, 27.0),
            ("acme", 8, 2.0),
            ("slow", 8, 18.0),
        ]
        assert (points[0]["call"], points[0]["time"], points[0]["reads"]) == (
            "batch 1, filters both",
            "30.0 µs (quartiles 30.0 and 30.0)",
            "3.00",
        )

    def test_a_vocabulary_that_goes_with_the_batch_breaks_no_line(self):
        tied = charts_of(cell((1.0,), batch=1, vocab_size=128), cell((1.0,), batch=8, vocab_size=256))[0]
        crossed = charts_of(*(cell((1.0,), batch=b, vocab_size=v) for b in (1, 8) for v in (128, 256)))[0]
        assert list(tied.panels) == [""]
        assert list(crossed.panels) == ["vocabulary 128", "vocabulary 256"]

    def test_more_series_than_panels_become_lines_of_one_colour(self):
        (by_batch, *_) = charts_of(
            *(
                cell((1.0,), batch=batch, dtype=dtype, filters=filters, row_padding=padding)
                for batch in (1, 8)
                for dtype in ("float32", "bfloat16")
                for filters in ("none", "both", "top-p")
                for padding in (0, 1, 2)
            )
        )
        assert len(by_batch.panels) == 6
        assert by_batch.lines == "Lines of one colour differ in row padding."
        assert {p["series"] for p in by_batch.panels["float32, filters both"]} == {
            "row padding 0",
            "row padding 1",
            "row padding 2",
        }

    def test_families_of_logits_stand_along_their_nucleus_beside_a_read(self):
        along = charts_of(cell((20.0,)), cell((50.0,), family="flat", read=11.0))[0]
        assert along.question == "How does the time of a call grow with the width of the nucleus?"
        assert along.answer == "From the fastest to the slowest of a line, at most: acme 2.50 times."
        assert [(p["sampler"], p["x"], p["y"]) for p in along.panels[""]] == [
            ("a read", 100.0, 10.0),
            ("a read", 200.0, 11.0),
            ("acme", 100.0, 20.0),
            ("acme", 200.0, 50.0),
        ]

    def test_a_row_for_each_cell_compares_the_contenders(self):
        rows = charts_of(
            cell((20.0, 10.0)), cell((10.0, 15.0), filters="both"), cell((None, 9.0), filters="top-p")
        )[-1]
        assert (rows.form, rows.question) == (ChartForm.ROWS, "Which one is the fastest, and by how much?")
        assert rows.answer == (
            "slow is the fastest in 1 of 2 cells, the next one takes 2 times as long; "
            "acme is the fastest in 1 of 2 cells, the next one takes 1.5 times as long."
        )
        assert [(p["row"], p["sampler"], p["x"]) for p in rows.panels[""]] == [
            ("filters none", "acme", 2.0),
            ("filters none", "slow", 1.0),
            ("filters both", "acme", 1.0),
            ("filters both", "slow", 1.5),
            ("filters top-p", "slow", 0.9),
        ]

    def test_a_long_table_is_divided_until_its_panels_are_short(self):
        cells = [cell((1.0,), batch=b, row_padding=p) for b in range(1, 4) for p in range(16)]
        rows = charts_of(*cells)[-1]
        assert [len(points) for points in rows.panels.values()] == [16, 16, 16]
        assert list(rows.panels) == ["batch 1", "batch 2", "batch 3"]

    def test_the_slowest_call_stands_beside_the_median(self):
        single = [cell((10.0,)), cell((40.0,), filters="both")]
        single[0]["entries"]["acme"]["largest_us"] = 15.0
        single[1]["entries"]["acme"]["largest_us"] = 100.0
        worst = charts_of(*single)[-1]
        assert worst.question == "How long is the slowest of 3 calls, beside the median?"
        assert worst.answer == "At most 2.50 times: acme, filters both."
        assert [(p["x"], p["y"], p["slowest call"]) for p in worst.panels[""]] == [
            (10.0, 1.5, "15.0 µs"),
            (40.0, 2.5, "100.0 µs"),
        ]
        assert slowest_calls([RunRecord(run_of(cell((1.0,))))]) is None

    def test_a_run_without_times_has_no_charts(self):
        assert charts_of(cell((None,))) == []

    def test_a_sweep_has_one_chart_with_its_edges(self):
        cells = [cell((us,), logprobs=n) for n, us in ((0, 10.0), (5, 11.0), (64, 33.0))]
        cells[2]["entries"]["acme"]["edge"] = 3.0
        (chart,) = charts_of(*cells, sweep="logprobs", title="N")
        assert chart.question == "How does the time of a call grow with log-probabilities?"
        assert chart.answer == "Edges, in reads: 3.0 times for acme at log-probabilities 64."
        acme = [p for p in chart.points if p["sampler"] == "acme"]
        assert [(p["x"], p["y"], p["edge"]) for p in acme] == [
            (0, 10.0, ""),
            (5, 11.0, ""),
            (64, 33.0, "3.0x"),
        ]
        del cells[2]["entries"]["acme"]["edge"]
        (level,) = charts_of(*cells, sweep="logprobs", title="N")
        assert level.answer == "No time more than doubles from one value to the next, measured in reads."

    def test_a_sweep_of_words_has_rows(self):
        (chart,) = charts_of(
            cell((10.0,)), cell((30.0,), special="seeded"), sweep="special-row", title="one row"
        )
        assert [p["row"] for p in chart.panels[""]] == ["special none", "special seeded"]


def test_an_answer_compares_calls_that_differ_in_one_axis_alone():
    run = RunRecord(
        run_of(
            *(
                cell((us,), batch=b, filters=f)
                for b, f, us in ((1, "none", 1.0), (8, "none", 2.0), (1, "both", 10.0), (8, "both", 50.0))
            )
        )
    )
    assert growth(run, run.measurements, run.axes[0]).endswith(" at most: acme 5.00 times.")
    assert growth(run, run.measurements, run.axes[1]).endswith(" at most: acme 25.00 times.")
    assert fastest(run) == "."


@pytest.mark.parametrize(
    ("ends", "ticks"),
    [
        ((0.9, 420), [1, 3, 10, 30, 100, 300]),
        ((4.5, 21), [5, 6, 8, 10, 20]),
        ((1.5, 2e7), [10.0**n for n in range(1, 8)]),
    ],
)
def test_a_logarithmic_axis_has_round_ticks_with_room(ends, ticks):
    assert log_ticks(*ends) == pytest.approx(ticks)


class TestThePageOfARun:
    @pytest.fixture
    def page(self, fixed, no_libraries, tmp_path):
        result = call("bench", *TINY, "--batch", 2, "--batch", 4, "--html", tmp_path / "bench.html")
        assert result.exit_code == 0
        return Page((tmp_path / "bench.html").read_text(encoding="utf-8"))

    def test_it_says_what_ran_on_what_and_how_to_repeat_it(self, page, tmp_path):
        assert "<title>tokendraw bench: sample on cpu</title>" in page.source
        assert "medians of 15, in turns; a clock that stands" in page.text
        assert "threads 2 on 4 cores, OMP_WAIT_POLICY unset" in page.text
        assert "temperature 0.8, top-k 50, top-p 0.9, min-p 0.05" in page.text
        command = "tokendraw bench --batch 2 --batch 4 --vocab-size 256 --sampler native --sampler torch-sort"
        assert f"{command} --device cpu --html {tmp_path / 'bench.html'}" in page.text
        assert "The read is the fastest of several: torch.sum." in page.text

    def test_its_table_has_every_figure_and_numbers_to_sort_by(self, page):
        titles, *rows = page.rows()
        assert titles == [
            *("batch", "filters", "nucleus", "read µs"),
            *("native µs", "native reads", "torch-sort µs", "torch-sort reads"),
        ]
        assert rows == [
            [batch, filters, "30", "10.0", "100.0", "10.00", "2,500", "250.00"]
            for batch in ("2", "4")
            for filters in ("none", "both")
        ]
        values = [attrs["data-value"] for _, attrs in page.tables[0][1]]
        assert values[:2] == ["2", "none"]
        assert [float(value) for value in values[2:]] == pytest.approx([30, 10, 99.96, 9.996, 2500, 250])

    def test_every_place_of_a_chart_has_a_specification_and_points(self, page):
        drawn = page.constant("drawings")
        places = [a for a in page.named("div") if "data-chart" in a]
        assert [(int(a["data-chart"]), int(a["data-panel"])) for a in places] == [
            (number, panel) for number, one in enumerate(drawn) for panel in range(len(one["panels"]))
        ]
        assert all(one["spec"]["width"] == "container" for one in drawn)
        assert all(
            panel["datasets"]["points"] and panel["height"] for one in drawn for panel in one["panels"]
        )

    def test_it_loads_nothing_and_forbids_to(self, page):
        assert page.foreign_sources() == []
        (policy,) = [a["content"] for a in page.named("meta") if "http-equiv" in a]
        assert policy == "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

    def test_it_is_that_of_its_saved_json(self, page, fixed, no_libraries, tmp_path):
        run = ("bench", *TINY, "--batch", 2, "--batch", 4)
        printed = call(*run, "--json").stdout
        (tmp_path / "saved.json").write_text(printed, encoding="utf-8")
        result = call("bench", "--from", tmp_path / "saved.json", "--html", tmp_path / "again.html")
        assert (result.stdout, result.stderr, result.exit_code) == ("", "", 0)
        again = Page((tmp_path / "again.html").read_text(encoding="utf-8"))
        assert (again.rows(), again.constant("drawings")) == (page.rows(), page.constant("drawings"))


def test_a_contender_without_a_time_shows_the_reason(no_libraries, tmp_path):
    broken = cell((None, 20.0))
    broken["entries"]["acme"]["reason"] = "it does not serve seeded rows"
    page = page_of(tmp_path, run_of(broken))
    (text, attrs) = page.tables[0][1][2]
    assert (text, attrs["data-value"], attrs["title"]) == ("-", "", "it does not serve seeded rows")


def test_warnings_stand_first(no_libraries, tmp_path):
    page = page_of(
        tmp_path,
        run_of(cell((20.0,)), busy="The machine was busy.", notes=["The machine was busy.", "A note."]),
    )
    assert page.text.index("The machine was busy.") < page.text.index("device")
    assert page.text.count("The machine was busy.") == 1
    assert "A note." in page.text


def test_the_page_of_sweeps_lists_the_edges_of_each(no_libraries, tmp_path):
    steep = [cell((us,), logprobs=n) for n, us in ((0, 10.0), (5, 30.0))]
    steep[1]["entries"]["acme"]["edge"] = 3.0
    for one in steep:
        one["entries"]["acme"]["largest_us"] = 45.0
    level = [cell((10.0,), top_k=k) for k in (50, 64)]
    report = run_of() | {
        "sweeps": [
            run_of(*steep, sweep="logprobs", title="N log-probabilities"),
            run_of(*level, sweep="top-k", title="k alone"),
        ]
    }
    page = page_of(tmp_path, report)
    assert "N log-probabilities : 1 edge, up to 3.0 times" in page.text
    assert "k alone : no edge" in page.text
    assert "How long is the slowest of 3 calls, beside the median? At most 4.50 times" in page.text
    assert [a["href"] for a in page.named("a")] == ["#logprobs", "#top-k"]
    assert [a["id"] for a in page.named("h2") if "id" in a] == ["logprobs", "top-k"]
    assert len(page.tables) == 2


def test_nothing_from_a_plugin_or_the_machine_is_markup(no_libraries, tmp_path):
    report = run_of(cell((20.0, 30.0)), cell((None, 40.0), filters="both"))
    report["cells"][1]["entries"]["acme"]["reason"] = EVIL
    for one in report["cells"]:
        one["entries"] = {EVIL: one["entries"]["acme"], "slow": one["entries"]["slow"]}
    report |= {"contenders": [EVIL, "slow"], "versions": {EVIL: EVIL}, "notes": [EVIL], "busy": EVIL}
    report |= {"command": EVIL, "method": EVIL, "error": EVIL}
    report["host"] |= {"name": EVIL, "device_type": EVIL, "rocm_arch": EVIL}
    harmless = page_of(tmp_path, run_of(cell((20.0, 30.0)), cell((20.0, 40.0), filters="both")))
    page = page_of(tmp_path, report)
    assert len(page.named("script")) == len(harmless.named("script"))
    assert EVIL not in page.source
    assert page.text.count("alert(1)") > 10
    assert any(p["sampler"] == EVIL for p in page.constant("drawings")[0]["panels"][0]["datasets"]["points"])


def test_the_figures_of_two_cells_take_few_bytes(no_libraries, tmp_path):
    page_of(tmp_path, run_of(cell((20.0, 30.0)), cell((20.0, 40.0), batch=4)))
    assert (tmp_path / "page.html").stat().st_size < 30_000


@pytest.mark.slow
def test_a_page_with_the_libraries_of_charts_is_smaller_than_1_100_000_bytes(tmp_path):
    page = page_of(tmp_path, run_of(cell((20.0, 30.0)), cell((20.0, 40.0), batch=4)))
    assert 500_000 < (tmp_path / "page.html").stat().st_size < 1_100_000
    assert "window.vegaEmbed=" in page.source
    assert len(page.named("script")) == 3


class TestRefusals:
    @pytest.fixture
    def at_work(self, monkeypatch):
        """List the devices that were looked for."""
        looked_for = []
        module = sys.modules["tokendraw_bench.commands.bench"]
        monkeypatch.setattr(module, "find_device", looked_for.append)
        return looked_for

    def test_a_missing_library_is_named_before_anything_runs(self, monkeypatch, tmp_path, at_work):
        monkeypatch.setitem(sys.modules, "altair", None)
        result = call("bench", *TINY, "--html", tmp_path / "bench.html")
        assert (result.stdout, result.exit_code) == ("", 1)
        assert result.stderr == (
            "'--html' needs altair, jinja2 and vl_convert, found no altair; run `pip install './bench[html]'` in "
            "tokendraw's checkout.\n"
        )
        assert at_work == []

    def test_a_file_in_no_folder_is_refused_before_anything_runs(self, tmp_path, at_work):
        file = tmp_path / "no" / "bench.html"
        result = call("bench", *TINY, "--html", file)
        assert (result.stdout, result.exit_code) == ("", 2)
        assert result.stderr == (
            f"'--html' needs a file in a folder that exists, found '{file}'. Make the folder '{file.parent}'.\n"
        )
        assert at_work == []

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ((), "'--from' writes the page of --html. Add --html FILE."),
            (
                ("--html", "x.html", "--batch", 2),
                "'--batch' is about a run, '--from' about an earlier one. Leave out one of them.",
            ),
            (
                ("--html", "x.html", "--json"),
                "'--json' is about a run, '--from' about an earlier one. Leave out one of them.",
            ),
        ],
        ids=["no page", "an axis", "json"],
    )
    def test_a_saved_run_is_for_a_page_alone(self, options, message, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "saved.json").write_text(json.dumps(run_of(cell((20.0,)))), encoding="utf-8")
        result = call("bench", "--from", "saved.json", *options)
        assert result.exit_code == 2
        assert f"Error: {message}\n" in result.stderr

    @pytest.mark.parametrize(
        ("content", "found"),
        [
            ("| a | table |", "no JSON"),
            ("[]", "no cells"),
            ('{"schema_version": 1, "error": "no"}', "no cells"),
            ('{"cells": [{}]}', "an object of another form (KeyError: 'contenders')"),
        ],
    )
    def test_a_file_without_a_run_is_refused(self, content, found, tmp_path, no_libraries):
        (tmp_path / "saved.json").write_text(content, encoding="utf-8")
        result = call("bench", "--from", tmp_path / "saved.json", "--html", tmp_path / "x.html")
        assert (result.stdout, result.exit_code) == ("", 2)
        assert result.stderr == (
            f"'--from' needs a file with the output of `tokendraw bench --json`, found {found}. Pass another file.\n"
        )
        assert not (tmp_path / "x.html").exists()


def test_json_is_left_as_it_was(no_libraries, tmp_path):
    report = run_of(cell((20.0, 30.0)), cell((20.0, 40.0), batch=4))
    before = copy.deepcopy(report)
    page_of(tmp_path, report)
    assert report == before
