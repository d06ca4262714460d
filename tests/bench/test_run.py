"""Runs of ``tokendraw bench`` with a timer of planted times: timed cells, and their report."""

from dataclasses import replace

import pytest
import torch

from tokendraw import SamplerUnavailableError, TokendrawError
from tokendraw_bench.cells import Cell
from tokendraw_bench.contenders import Contender
from tokendraw_bench.operation import Preset
from tokendraw_bench.report import BenchReport, CellResult, header, rows
from tokendraw_bench.run import run
from tokendraw_bench.sweeps import Sweep
from tokendraw_bench.timing import Failure, TimedCall, Timing

CPU = torch.device("cpu")
SMALL, LARGE = Cell(1, 200, "float32", "none", "peaked-7"), Cell(64, 200, "bfloat16", "both", "flat")
NO = Failure(reason="no")


def timing(us, spread=0.0, *, host_us=None, how="wall clock", **more):
    return Timing(us=us, q1_us=us * (1 - spread), q3_us=us * (1 + spread), host_us=host_us, how=how, **more)


class FakeTimer:
    """A timer with planted times by name, and a log of its calls."""

    repeats, method = 15, "by the sun"

    def __init__(self, **times):
        self.times = {"sum": 40, "amax": 20, "acme": 50} | times
        self.asked = []

    def buffers(self, nbytes):
        if error := self.times.get("buffers"):
            raise error
        return 2

    def time(self, calls, buffers):
        self.asked.append((list(calls), buffers))
        times = {name: self.times[name.removeprefix("read: torch.")] for name in calls}
        return {name: timing(time) if isinstance(time, int) else time for name, time in times.items()}


def contender(name, *ways, error=None):
    """Make a contender with calls that do nothing, or a preparation that raises."""

    def prepare(cell, metadata, logits):
        if error:
            raise error
        return [TimedCall(draw=lambda logits: None, way=way) for way in ways or ("",)]

    return Contender(name=name, versions={f"{name}-tokendraw": "1.0"}, prepare=prepare)


class TestRuns:
    def test_the_fastest_read_is_the_floor_and_timed_alone_until_the_logits_change(self):
        timer = FakeTimer()
        cells = [SMALL, replace(SMALL, filters="both", gumbel_dtype="fp64"), LARGE]
        started = []
        first, *others = run(cells, [contender("acme")], device=CPU, timer=timer, starting=started.append)
        assert first == line(SMALL, timing(20), {"acme": timing(50)}, by="torch.amax")
        assert first.ratio(first.entries["acme"]) == 2.5
        both = ["read: torch.sum", "read: torch.amax", "acme"]
        assert [names for names, _ in timer.asked] == [both, both[1:], both]
        assert {line.floor_by for line in others} == {"torch.amax"}
        assert started == cells
        buffers, same, large = (buffers for _, buffers in timer.asked)
        assert buffers is same
        assert (large[0].shape, large[0].dtype) == ((64, 200), torch.bfloat16)

    def test_a_contender_that_cannot_serve_a_cell_has_a_reason_in_place_of_a_time(self):
        timer = FakeTimer(late=NO)
        contenders = [
            contender("picky", error=SamplerUnavailableError("it does not serve seeded rows")),
            contender("broken", error=RuntimeError("no driver")),
            contender("late"),
            contender("acme"),
        ]
        (line,) = run([SMALL], contenders, device=CPU, timer=timer)
        assert timer.asked[0][0] == ["read: torch.sum", "read: torch.amax", "late", "acme"]
        assert list(line.entries.items()) == [
            ("picky", Failure(reason="it does not serve seeded rows")),
            ("broken", Failure(reason="RuntimeError: no driver")),
            ("late", NO),
            ("acme", timing(50)),
        ]

    @pytest.mark.parametrize(
        ("a", "c", "entry", "way"), [(70, 50, timing(50), "c"), (70, NO, timing(70), "a"), (NO, NO, NO, "")]
    )
    def test_of_several_ways_to_the_same_tokens_the_fastest_counts(self, a, c, entry, way):
        timer = FakeTimer(**{"acme: a": a, "acme: b": Failure(reason="nor this"), "acme: c": c})
        (line,) = run([SMALL], [contender("acme", "a", "b", "c")], device=CPU, timer=timer)
        assert (line.entries, line.way("acme")) == ({"acme": entry}, way)
        assert list(line.ways["acme"]) == ["a", "b", "c"]

    @pytest.mark.parametrize(
        ("cell", "times", "message"),
        [
            (
                SMALL,
                {"sum": Failure(reason="RuntimeError: no"), "amax": NO},
                "1 x 200 float32, none, peaked-7 needs a read that ratios refer to, found none that works: "
                "torch.sum: RuntimeError: no; torch.amax: no.",
            ),
            (
                Cell(1024, 151_936, "bfloat16", "none", "flat"),
                {"buffers": MemoryError()},
                "1024 x 151936 bfloat16, none, flat needs buffers of 311 MB on cpu, found no memory for them. "
                "Pass a smaller --batch or --vocab-size.",
            ),
        ],
    )
    def test_a_cell_that_cannot_be_timed_is_an_error_and_in_a_sweep_a_reason(self, cell, times, message):
        with pytest.raises(TokendrawError) as error:
            run([cell], [contender("acme")], device=CPU, timer=FakeTimer(**times))
        assert str(error.value) == message
        (line,) = run([cell], [contender("acme")], device=CPU, timer=FakeTimer(**times), keeps_going=True)
        assert rows(report(line, contenders=("acme",)))[0][-2:] == ["-", "-"]
        assert line.floor == line.entries["acme"] == Failure(reason=message)


def line(cell, read, entries, by="amax", nucleus=7.0, **more):
    return CellResult(
        cell=cell, figures={"nucleus": nucleus}, buffers=2, floor=read, floor_by=by, entries=entries, **more
    )


def report(*lines, device="cpu", contenders=("acme", "torch-sort")):
    return BenchReport(
        command="tokendraw bench --batch 64",
        device=device,
        host={"cpu": "cpu", "cuda:0": "cuda, NVIDIA H200"}[device],
        method="by the sun",
        repeats=15,
        threads=2,
        versions={"tokendraw": "0.1.0", "torch": "2.13.0"},
        contenders=contenders,
        lines=lines,
        seconds=1.5,
    )


def of_acme(*cells_and_times, **fields):
    """Make a report of a single contender on a device, whose read takes a microsecond."""
    read = timing(1.0, host_us=7.0, largest_us=fields.get("largest_us"))
    lines = [line(cell, read, {"acme": timing(us, how="graph", **fields)}) for cell, us in cells_and_times]
    return report(*lines, device="cuda:0", contenders=("acme",))


class TestReports:
    @pytest.mark.parametrize(
        ("read", "entry", "texts"),
        [
            (timing(10.04), timing(1234.5, 0.051), ["10.0", "1,234 (123x) ±5 %"]),
            (timing(140.0, 0.2), timing(155.2), ["140.0 ±20 %", "155.2 (1.11x)"]),
            (timing(7.0, host_us=9.0), timing(98.0, host_us=31.25), ["7.0", "98.0 (14.0x)", "31.2"]),
            (timing(0.0), timing(5.0), ["0.0", "5.0 (nanx)"]),
        ],
    )
    def test_times_have_their_ratio_large_spreads_and_the_host_of_a_device(self, read, entry, texts):
        found = report(line(LARGE, read, {"acme": entry}, nucleus=179.6), contenders=("acme",))
        facts = ["64", "200", "bfloat16", "both", "flat", "180"]
        assert rows(found) == [[*facts, *texts]]
        assert header(found)[6:] == ["read us", "acme us", "host us"][: len(texts)]

    def test_the_notes_give_the_reasons_of_dashes_and_name_what_is_in_no_graph(self):
        refused, eager = Failure(reason="it does not serve seeded rows."), timing(60.0, how="eager")
        lines = [
            line(SMALL, timing(3.0), {"acme": refused, "torch-sort": eager}),
            line(LARGE, timing(3.0), {"acme": refused, "torch-sort": timing(4.0, how="graph")}, by="sum"),
            line(LARGE, timing(3.0), {"acme": timing(4.0, how="graph"), "torch-sort": eager}),
        ]
        found = report(*lines, device="cuda:0")
        assert found.head[0] == "cuda, NVIDIA H200: tokendraw 0.1.0, torch 2.13.0."
        assert found.notes == [
            "The read is the fastest of several: amax and sum.",
            "acme: it does not serve seeded rows (2 of 3 cells).",
            "Not in a graph, so that the time may be the host's: torch-sort.",
        ]

    def test_an_axis_of_one_value_has_a_column_where_cells_deviate(self):
        constant, swept = (
            of_acme((LARGE, 2.0)),
            of_acme((LARGE, 2.0), (replace(LARGE, logprobs=5, top_k=7), 2.0)),
        )
        assert not {"logprobs", "top_k"} & set(header(constant))
        columns = [header(swept).index(name) for name in ("logprobs", "top_k")]
        assert [[row[column] for column in columns] for row in rows(swept)] == [["none", "50"], ["5", "7"]]
        assert (constant.as_json()["top_k"], "top_k" in swept.as_json()) == (50, False)
        assert [cell["top_k"] for cell in swept.as_json()["cells"]] == [50, 7]

    @pytest.mark.parametrize(
        ("compares_with_first", "edges"),
        [
            (False, [{}, {}, {"acme": 2.25}, {}, {}, {}]),
            (True, [{}, {}, {"acme": 4.5}, {"acme": 4.55}, {}, {"acme": 49.5}]),
        ],
    )
    def test_an_edge_has_more_than_twice_the_ratio_of_the_cell_before_or_the_first(
        self, compares_with_first, edges
    ):
        sweep = Sweep(
            title="k", fields=("top_k",), parts=(Preset(shapes=()),), compares_with_first=compares_with_first
        )
        times = {1: (2.0, 1.0), 2: (4.0, 1.0), 3: (9.0, 1.0), 4: (18.2, 2.0), 5: (None, 1.0), 6: (99.0, 1.0)}
        lines = [
            line(
                replace(LARGE, dtype=dtype, top_k=k), timing(read), {"acme": NO if us is None else timing(us)}
            )
            for k, (us, read) in times.items()
            for dtype in ("float32", "bfloat16")
        ]
        marked = sweep.with_edges(lines)
        assert [one.cell.dtype for one in marked] == ["float32"] * 6 + ["bfloat16"] * 6
        assert [dict(one.edges) for one in marked] == [pytest.approx(edge) for edge in edges] * 2
        found = report(*marked[:3], contenders=("acme",))
        assert header(found)[-2:] == ["acme us", "edge"]
        assert rows(found)[2][-2:] == ["9.0 (9.00x)", f"acme {edges[2]['acme']:.1f}x"]
        assert [c["entries"]["acme"]["edge"] for c in found.as_json()["cells"]][1:] == [
            None,
            edges[2]["acme"],
        ]
