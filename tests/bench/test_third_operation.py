"""A third operation is timed once the bench has a module for it; nothing else is told of it."""

from pathlib import Path

import pytest
import torch

from fake_dists import fake_dists
from third_operation import add_scaler, third_operation
from tokendraw.bench import Call, Timing, operations
from tokendraw.bench.contenders import chosen
from tokendraw.bench.report.lines import Report
from tokendraw.bench.report.table import as_text
from tokendraw.bench.run import run

CPU = torch.device("cpu")
FOLDER = Path(__file__).parents[1] / "support" / "scale_rooms" / "bench"


@pytest.fixture
def dists(tmp_path, monkeypatch):
    with third_operation(tmp_path, monkeypatch), fake_dists(tmp_path, monkeypatch) as found:
        monkeypatch.setattr(operations, "__path__", [*operations.__path__, str(FOLDER)])
        yield found


class Timer:
    """Keeps what each call returned."""

    repeats, method = 3, "by the sun"

    def __init__(self):
        self.found = {}

    def buffers(self, nbytes):
        return 1

    def time(self, calls, buffers):
        self.found |= {name: call.draw(buffers[0]) for name, call in calls.items()}
        return {
            name: Timing(us=10.0, q1_us=10.0, q3_us=10.0, host_us=None, how="wall clock") for name in calls
        }


def test_it_has_a_place_behind_the_others(dists):
    assert operations.names() == ("sample", "verify", "scale")


def test_its_cells_have_an_axis_of_their_own(dists):
    cells = operations.get("scale").grid("quick", axes={"factor": [5]}, batches=[1])
    assert [(cell.batch, cell.factor) for cell in cells] == [(1, 5)]


def test_who_serves_it_is_timed_and_the_table_has_a_column_for_the_axis(dists):
    add_scaler(dists)
    timer = Timer()
    lines = run(
        operations.get("scale").grid("quick"),
        chosen((), CPU, "scale"),
        device=CPU,
        timer=timer,
        readers={"sum": Call(draw=torch.sum)},
    )
    assert torch.equal(timer.found["acme"], torch.full((2, 200), 2.0))
    report = Report(
        command="",
        device="cpu",
        host="cpu",
        method="",
        seeded=True,
        repeats=3,
        threads=1,
        versions={},
        contenders=("acme",),
        lines=lines,
        seconds=1.0,
        operation="scale",
    )
    assert as_text(report) == [
        "batch  vocabulary  dtype    factor  filters  logits  nucleus  read us       acme us",
        "    2         200  float32       2  none     flat        200     10.0  10.0 (1.00x)",
        "    2         200  float32       3  none     flat        200     10.0             -",
    ]
    assert report.notes == [
        "The read is the fastest of several: sum.",
        "Numbers are multiplied.",
        "acme: it does not serve factors above 2 (1 of 2 cells).",
    ]
