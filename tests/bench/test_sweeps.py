"""``tokendraw bench --preset cliffs``: cells of sweeps, series, edges, and a table for each sweep."""

import itertools
import json
from dataclasses import replace

import pytest
import torch

from command_line import FixedTimer, call, documented_keys
from tokendraw import TokendrawError
from tokendraw_bench import operations
from tokendraw_bench.cells import Cell
from tokendraw_bench.commands import bench as bench_command
from tokendraw_bench.contenders import select_contenders
from tokendraw_bench.operation import Preset
from tokendraw_bench.report import BenchReport, CellResult, header, rows
from tokendraw_bench.run import run
from tokendraw_bench.sweeps import SWEEPS, Sweep
from tokendraw_bench.timing import Failure, Timing

CPU = torch.device("cpu")
CELL = Cell(2, 256, "float32", "top-k", "gaussian")


class TestCells:
    @pytest.mark.parametrize("small", [False, True])
    @pytest.mark.parametrize("name", SWEEPS)
    def test_no_cell_comes_twice_and_cells_of_equal_logits_are_neighbours(self, name, small):
        sweep = SWEEPS[name]
        cells = sweep.cells(small=small)
        keys = [operations.get(sweep.operation).input_key(cell) for cell in cells]
        assert len(cells) == len(set(cells)) > 1
        assert 1 + sum(here != there for here, there in itertools.pairwise(keys)) == len(set(keys))
        assert not small or max(cell.batch for cell in cells) == 2


def timing(us):
    return Timing(us=us, q1_us=us, q3_us=us, host_us=None, how="graph")


def line(cell, us, read=1.0):
    entry = Failure(reason="out of memory") if us is None else timing(us)
    return CellResult(cell=cell, buffers=2, floor=timing(read), floor_by="torch.sum", entries={"acme": entry})


def sweep(**fields):
    return Sweep(title="k", fields=("top_k",), parts=(Preset(shapes=()),), **fields)


class TestEdges:
    def test_an_edge_has_more_than_twice_the_ratio_of_the_cell_before(self):
        times = {1: (2.0, 1.0), 2: (4.0, 1.0), 3: (9.0, 1.0), 4: (18.2, 2.0), 5: (None, 1.0), 6: (99.0, 1.0)}
        marked = sweep().with_edges([line(replace(CELL, top_k=k), *time) for k, time in times.items()])
        assert [dict(one.edges) for one in marked] == [{}, {}, {"acme": 2.25}, {}, {}, {}]

    def test_growth_may_be_from_the_first_cell(self):
        lines = [line(replace(CELL, top_k=k), us) for k, us in ((1, 2.0), (2, 3.0), (3, 5.0), (4, 6.0))]
        marked = sweep(compares_with_first=True).with_edges(lines)
        assert [dict(one.edges) for one in marked] == [{}, {}, {"acme": 2.5}, {"acme": 3.0}]

    def test_a_series_has_cells_that_differ_in_swept_fields_alone(self):
        cells = [replace(CELL, top_k=k, dtype=dtype) for k in (1, 2) for dtype in ("float32", "bfloat16")]
        marked = sweep().with_edges(
            [line(cell, us) for cell, us in zip(cells, (1.0, 9.0, 2.0, 19.0), strict=True)]
        )
        assert [(one.cell.dtype, one.cell.top_k) for one in marked] == [
            ("float32", 1),
            ("float32", 2),
            ("bfloat16", 1),
            ("bfloat16", 2),
        ]
        assert [dict(one.edges) for one in marked] == [{}, {}, {}, {"acme": pytest.approx(19 / 9)}]

    def test_an_edge_stands_in_the_last_column_and_in_json(self):
        lines = [line(replace(CELL, top_k=k), us) for k, us in ((1, 2.0), (2, 5.0))]
        report = BenchReport(
            command="", device="cuda:0", host="cuda", method="", repeats=3, threads=1, versions={},
            contenders=("acme",), lines=sweep().with_edges(lines), seconds=1.0,
        )  # fmt: skip
        assert header(report)[-2:] == ["acme us", "edge"]
        assert [row[-2:] for row in rows(report)] == [["2.0 (2.00x)", ""], ["5.0 (5.00x)", "acme 2.5x"]]
        assert [c["entries"]["acme"]["edge"] for c in report.as_json()["cells"]] == [None, 2.5]


class TestFailures:
    def test_a_cell_that_cannot_be_timed_shows_why_and_the_next_is_timed(self, monkeypatch):
        cells = [replace(CELL, batch=batch) for batch in (1, 2, 3)]

        def buffers(timer, nbytes):
            if nbytes == cells[1].nbytes:
                raise TokendrawError("no memory")
            return 2

        monkeypatch.setattr(FixedTimer, "buffers", buffers)
        contenders = select_contenders(("native",), CPU)
        lines = run(cells, contenders, device=CPU, timer=FixedTimer(3), keeps_going=True)
        report = BenchReport(
            command="", device="cpu", host="cpu", method="", repeats=3, threads=1, versions={},
            contenders=("native",), lines=sweep().with_edges(lines), seconds=1.0,
        )  # fmt: skip
        times = ["10.0", "100.0 (10.0x)", ""]
        assert [row[-3:] for row in rows(report)] == [times, ["-", "-", ""], times]
        assert report.notes[-1] == "native: no memory (1 of 3 cells)."
        assert report.as_json()["cells"][1]["read"]["reason"] == "no memory"
        with pytest.raises(TokendrawError, match="no memory"):
            run(cells, contenders, device=CPU, timer=FixedTimer(3))


def cliffs(*arguments):
    return call("bench", "--preset", "cliffs", "--device", "cpu", *arguments)


class TestCommand:
    def test_a_sweep_has_a_heading_and_a_table(self, fixed):
        result = cliffs("--sweep", "mixed-nuclei", "--sampler", "native", "--sampler", "torch-sort")
        assert result.stdout.partition("\n\n")[2] == (
            "mixed-nuclei: filters of rows with nuclei of different widths\n"
            "\n"
            "batch  vocabulary  dtype     filters  logits        top_k  top_p  nucleus  read us      native us  "
            "torch-sort us  edge\n"
            "    2        4096  bfloat16  top-p    mixed-nuclei     50    0.9    1,602     10.0  100.0 (10.0x)  "
            " 2,500 (250x)\n"
            "    2        4096  bfloat16  both     mixed-nuclei     50    0.9    1,602     10.0  100.0 (10.0x)  "
            " 2,500 (250x)\n"
            "    2        4096  bfloat16  both     mixed-nuclei   1000   0.95    1,602     10.0  100.0 (10.0x)  "
            " 2,500 (250x)\n"
            "\n"
            "The read is the fastest of several: torch.sum.\n"
            "\n"
        )
        assert (result.stderr, result.exit_code) == ("", 0)

    @pytest.mark.slow
    def test_every_sweep_is_timed_and_its_keys_are_documented(self, fixed):
        result = cliffs("--sampler", "native", "--json")
        assert result.exit_code == 0, result.stderr
        found = json.loads(result.stdout)
        assert [one["sweep"] for one in found["sweeps"]] == list(SWEEPS)
        keys = set(found)
        for one in found["sweeps"]:
            for cell in one["cells"]:
                assert cell["entries"]["native"]["us"] == 99.96, cell["entries"]
                keys |= {*one, *cell, *cell["entries"]["native"]}
        assert keys <= documented_keys(), keys - documented_keys()

    def test_a_contender_without_the_operation_of_a_sweep_is_told_of_and_left_out(self, fixed):
        options = ("--sweep", "verify-top-k", "--sweep", "mixed-nuclei", "--sampler", "torch-sort")
        result = cliffs(*options, "--sampler", "native", "--json")
        found = json.loads(result.stdout)["sweeps"]
        assert [one["contenders"] for one in found] == [["native"], ["torch-sort", "native"]]
        assert result.stderr == (
            "'torch-sort' cannot be timed on cpu: needs the operation sample, found verify.\n"
        )
        alone = cliffs("--sweep", "verify-top-k", "--sampler", "torch-sort")
        assert (alone.exit_code, alone.stdout) == (1, "")

    def test_each_complete_sweep_is_in_the_file(self, fixed, tmp_path, monkeypatch):
        path, texts, timed = tmp_path / "cliffs.md", [], bench_command._timed

        def logged(*arguments, **options):
            texts.append(path.read_text(encoding="utf-8") if path.exists() else "")
            return timed(*arguments, **options)

        monkeypatch.setattr(bench_command, "_timed", logged)
        sweeps = ("--sweep", "mixed-nuclei", "--sweep", "family")
        assert cliffs(*sweeps, "--sampler", "native", "--output", path).exit_code == 0
        texts.append(path.read_text(encoding="utf-8"))
        assert [text.count("\n## ") for text in texts] == [0, 1, 2]
        assert texts[-1].startswith("`tokendraw bench --preset cliffs --sweep mixed-nuclei --sweep family ")
        assert "\n## family: logits, k = 50 with p = 0.9\n\n| batch | " in texts[-1]
