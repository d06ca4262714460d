"""Runs of ``tokendraw bench`` with fake contenders and a fake timer: timed calls, and the printed report."""

from dataclasses import replace

import pytest
import torch

from tokendraw import SamplerUnavailableError, TokendrawError
from tokendraw_bench.cells import Cell
from tokendraw_bench.contenders import Contender
from tokendraw_bench.report import BenchReport, CellResult, as_markdown, as_text
from tokendraw_bench.run import run
from tokendraw_bench.timing import Failure, TimedCall, Timing

CPU = torch.device("cpu")
SMALL, LARGE = Cell(1, 200, "float32", "none", "peaked-7"), Cell(64, 200, "bfloat16", "both", "flat")


def timing(us, spread=0.0, *, host_us=None, how="wall clock"):
    return Timing(us=us, q1_us=us * (1 - spread), q3_us=us * (1 + spread), host_us=host_us, how=how)


class FakeTimer:
    """A timer with planted times by name, which logs its calls."""

    repeats, method = 15, "by the sun"

    def __init__(self, **times):
        self.times = times
        self.asked = []

    def buffers(self, nbytes):
        return 2

    def time(self, calls, buffers):
        self.asked.append((list(calls), buffers))
        return {
            name: timing(time) if isinstance(time, int) else time
            for name in calls
            for time in [self.times[name.removeprefix("read: torch.")]]
        }


def contender(name, prepare=lambda cell, metadata, logits: (TimedCall(draw=lambda logits: None),)):
    return Contender(name=name, versions={f"{name}-tokendraw": "1.0"}, prepare=prepare)


def raising(error):
    def prepare(cell, metadata, logits):
        raise error

    return prepare


def test_the_fastest_read_is_the_floor_of_ratios():
    timer = FakeTimer(sum=40, amax=20, acme=50)
    (line,) = run([SMALL], [contender("acme")], device=CPU, timer=timer)
    assert line == CellResult(
        cell=SMALL,
        figures={"nucleus": 7.0},
        buffers=2,
        floor=timing(20),
        floor_by="torch.amax",
        entries={"acme": timing(50)},
    )
    assert line.ratio(line.entries["acme"]) == 2.5


def test_the_fastest_read_alone_is_timed_again_until_the_logits_change():
    timer = FakeTimer(sum=40, amax=20, acme=50)
    cells = [SMALL, replace(SMALL, filters="both"), LARGE]
    lines = run(cells, [contender("acme")], device=CPU, timer=timer)
    both = ["read: torch.sum", "read: torch.amax", "acme"]
    assert [names for names, _ in timer.asked] == [both, both[1:], both]
    assert {line.floor_by for line in lines} == {"torch.amax"}


def test_a_contender_without_the_capability_for_a_cell_has_a_reason_in_place_of_a_time():
    timer = FakeTimer(sum=40, amax=20, acme=50, late=Failure(reason="RuntimeError: out"))
    contenders = [
        contender("picky", raising(SamplerUnavailableError("it does not serve seeded rows"))),
        contender("broken", raising(RuntimeError("no driver"))),
        contender("late"),
        contender("acme"),
    ]
    (line,) = run([SMALL], contenders, device=CPU, timer=timer)
    assert timer.asked[0][0] == ["read: torch.sum", "read: torch.amax", "late", "acme"]
    assert line.entries == {
        "picky": Failure(reason="it does not serve seeded rows"),
        "broken": Failure(reason="RuntimeError: no driver"),
        "late": Failure(reason="RuntimeError: out"),
        "acme": timing(50),
    }
    assert list(line.entries) == ["picky", "broken", "late", "acme"]


def in_ways(*names):
    return contender(
        "acme", lambda cell, metadata, logits: [TimedCall(draw=lambda logits: None, way=n) for n in names]
    )


def test_of_several_ways_to_the_same_tokens_the_fastest_counts():
    timer = FakeTimer(sum=40, amax=20, **{"acme: a": 70, "acme: b": Failure(reason="no"), "acme: c": 50})
    (line,) = run([SMALL], [in_ways("a", "b", "c")], device=CPU, timer=timer)
    assert line.entries == {"acme": timing(50)}
    assert line.ways == {"acme": {"a": timing(70), "b": Failure(reason="no"), "c": timing(50)}}
    assert line.way("acme") == "c"


def test_where_no_way_works_the_entry_is_why_the_first_does_not():
    timer = FakeTimer(
        sum=40, amax=20, **{"acme: a": Failure(reason="no"), "acme: b": Failure(reason="nor this")}
    )
    (line,) = run([SMALL], [in_ways("a", "b")], device=CPU, timer=timer)
    assert line.entries == {"acme": Failure(reason="no")}
    assert line.way("acme") == ""


def test_cells_of_equal_logits_share_their_buffers():
    timer, cells = FakeTimer(sum=1, amax=2), [SMALL, replace(SMALL, filters="both"), LARGE]
    started = []
    run(cells, [], device=CPU, timer=timer, starting=started.append)
    first, second, third = (buffers for _, buffers in timer.asked)
    assert first is second
    assert (third[0].shape, third[0].dtype) == ((64, 200), torch.bfloat16)
    assert started == cells


def test_a_contender_gets_the_requests_of_the_cell_with_a_seed_and_a_position_by_row():
    seen = []

    def prepare(cell, metadata, logits):
        seen.append(metadata)
        return (TimedCall(draw=lambda logits: None),)

    for seeded in (True, False):
        run(
            [replace(LARGE, seeded=seeded)],
            [contender("acme", prepare)],
            device=CPU,
            timer=FakeTimer(sum=1, amax=2, acme=3),
        )
    with_seeds, without = seen
    assert with_seeds.facts.all_seeded
    assert len(set(with_seeds.seed.tolist())) == len(set(with_seeds.positions.tolist())) == 64
    assert not without.facts.any_seeded
    assert without.positions is None
    for metadata in seen:
        assert (metadata.facts.max_top_k, metadata.facts.any_top_p) == (50, True)
        assert metadata.temperature.tolist() == [0.8] * 64


def test_a_cell_without_a_working_read_is_an_error():
    timer = FakeTimer(sum=Failure(reason="RuntimeError: no"), amax=Failure(reason="RuntimeError: nor this"))
    with pytest.raises(TokendrawError) as error:
        run([SMALL], [], device=CPU, timer=timer)
    assert str(error.value) == (
        "1 x 200 float32, none, peaked-7 needs a read that ratios refer to, found none that works: "
        "torch.sum: RuntimeError: no; torch.amax: RuntimeError: nor this."
    )


def test_logits_beyond_the_memory_are_an_error_with_their_size():
    class NoRoom(FakeTimer):
        def buffers(self, nbytes):
            raise MemoryError

    cell = Cell(1024, 151_936, "bfloat16", "none", "flat")
    with pytest.raises(TokendrawError) as error:
        run([cell], [], device=CPU, timer=NoRoom())
    assert str(error.value) == (
        "1024 x 151936 bfloat16, none, flat needs buffers of 311 MB on cpu, found no memory for them. "
        "Pass a smaller --batch or --vocab-size."
    )


def line(cell, read, entries, by="amax", nucleus=7.0, ways=None):
    return CellResult(
        cell=cell,
        figures={"nucleus": nucleus},
        buffers=2,
        floor=read,
        floor_by=by,
        entries=entries,
        ways=ways or {},
    )


def report(*lines, device="cpu", contenders=("acme", "torch-sort"), threads=2):
    return BenchReport(
        command="tokendraw bench --batch 64",
        device=device,
        host={"cpu": "cpu", "cuda:0": "cuda, NVIDIA H200"}[device],
        method="by the sun",
        repeats=15,
        threads=threads,
        versions={"tokendraw": "0.1.0", "torch": "2.13.0"},
        contenders=contenders,
        lines=lines,
        seconds=1.5,
    )


REFUSED = Failure(reason="it does not serve seeded rows.")
ON_A_CPU = report(
    line(SMALL, timing(10.04), {"acme": REFUSED, "torch-sort": timing(1234.5, 0.051)}),
    line(LARGE, timing(140.0, 0.2), {"acme": timing(155.2), "torch-sort": timing(14_004.0)}, "sum", 179.6),
    line(replace(LARGE, filters="none"), timing(7.0), {"acme": REFUSED, "torch-sort": timing(98.0)}),
)
ON_A_GPU = report(
    line(
        SMALL,
        timing(3.0, host_us=9.0, how="graph"),
        {"acme": timing(4.5, host_us=31.25, how="graph"), "torch-sort": Failure(reason="it raised")},
    ),
    line(
        LARGE,
        timing(30.0, host_us=9.0, how="graph"),
        {
            "acme": timing(60.0, host_us=30.0, how="eager"),
            "torch-sort": timing(45.0, host_us=2000.0, how="graph"),
        },
    ),
    device="cuda:0",
)


def test_the_table_has_a_row_a_cell_with_ratios_and_large_spreads():
    assert as_text(ON_A_CPU) == [
        "batch  vocabulary  dtype     filters  logits    nucleus      read us        acme us      torch-sort us",
        "    1         200  float32   none     peaked-7        7         10.0              -  1,234 (123x) ±5 %",
        "   64         200  bfloat16  both     flat          180  140.0 ±20 %  155.2 (1.11x)      14,004 (100x)",
        "   64         200  bfloat16  none     flat            7          7.0              -       98.0 (14.0x)",
    ]


def test_on_a_device_the_host_has_separate_columns():
    facts = [row[:64] for row in as_text(ON_A_GPU)]
    times = [row[64:] for row in as_text(ON_A_GPU)]
    assert facts == [
        "batch  vocabulary  dtype     filters  logits    nucleus  read us",
        "    1         200  float32   none     peaked-7        7      3.0",
        "   64         200  bfloat16  both     flat            7     30.0",
    ]
    assert times == [
        "       acme us  host us  torch-sort us  host us",
        "   4.5 (1.50x)     31.2              -        -",
        "  60.0 (2.00x)     30.0   45.0 (1.50x)    2,000",
    ]


def test_the_head_names_machine_and_versions_and_the_notes_the_reasons_of_dashes():
    assert ON_A_CPU.head == [
        "cpu, 2 threads, OMP_WAIT_POLICY unset: tokendraw 0.1.0, torch 2.13.0.",
        "T = 0.8, k = 50, p = 0.9, min-p = 0.05; seeded rows, float32 noise. Medians of 15, in turns; by the sun. In "
        "brackets the ratio to the read; ± half the distance of the quartiles, where it is over 5 %.",
    ]
    assert ON_A_CPU.notes == [
        "The read is the fastest of several: amax and sum.",
        "acme: it does not serve seeded rows (2 of 3 cells).",
    ]
    assert ON_A_GPU.head[0] == "cuda, NVIDIA H200: tokendraw 0.1.0, torch 2.13.0."
    assert ON_A_GPU.notes == [
        "The read is the fastest of several: amax.",
        "torch-sort: it raised (1 of 2 cells).",
        "Not in a graph, so that the time may be the host's: acme.",
    ]


def test_the_notes_name_the_fastest_and_the_failed_ways():
    a, b, no = timing(20.0), timing(15.0), Failure(reason="no nvcc")
    lines = [
        line(SMALL, timing(10.0), {"acme": best}, ways={"acme": {"softmax, a": a, "b": other}})
        for best, other in ((b, b), (a, no), (a, no))
    ]
    assert report(*lines, contenders=("acme",)).notes == [
        "The read is the fastest of several: amax.",
        "acme is the fastest of several: b; softmax, a.",
        "acme by b: no nvcc (2 of 3 cells).",
    ]


def test_the_file_has_the_command_the_head_the_table_and_the_notes():
    assert as_markdown(replace(ON_A_CPU, lines=ON_A_CPU.lines[:2])) == (
        "`tokendraw bench --batch 64`\n"
        "\n"
        f"{' '.join(ON_A_CPU.head)}\n"
        "\n"
        "| batch | vocabulary | dtype | filters | logits | nucleus | read us | acme us | torch-sort us |\n"
        "| --: | --: | --- | --- | --- | --: | --: | --: | --: |\n"
        "| 1 | 200 | float32 | none | peaked-7 | 7 | 10.0 | - | 1,234 (123x) ±5 % |\n"
        "| 64 | 200 | bfloat16 | both | flat | 180 | 140.0 ±20 % | 155.2 (1.11x) | 14,004 (100x) |\n"
        "\n"
        "* The read is the fastest of several: amax and sum.\n"
        "* acme: it does not serve seeded rows (1 of 2 cells).\n"
    )


def test_a_report_without_a_single_time_says_so():
    assert ON_A_CPU.has_times
    assert not replace(
        ON_A_CPU, lines=(line(SMALL, timing(1.0), {"acme": REFUSED}),), contenders=("acme",)
    ).has_times
