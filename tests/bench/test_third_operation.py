"""A third operation is timed once the bench has a module for it."""

from pathlib import Path

import pytest
import torch

from fake_dists import add_scaler, fake_dists, third_operation
from tokendraw_bench import Timing, operations
from tokendraw_bench.contenders import select_contenders
from tokendraw_bench.report.lines import BenchReport
from tokendraw_bench.report.table import as_text
from tokendraw_bench.run import run

CPU = torch.device("cpu")
FOLDER = Path(__file__).parents[1] / "fakes" / "scale_rooms" / "bench"


@pytest.fixture
def dists(tmp_path, monkeypatch):
    with third_operation(tmp_path, monkeypatch), fake_dists(tmp_path, monkeypatch) as found:
        monkeypatch.setattr(operations, "__path__", [*operations.__path__, str(FOLDER)])
        yield found


class Timer:
    """A timer that keeps the output of each call."""

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


def test_a_third_operation_comes_last(dists):
    assert operations.names() == (
        "sample",
        "verify",
        "plan_paged_kv",
        "pack_sm90_w4",
        "process_logits",
        "scale",
    )


def test_cells_have_the_axes_of_the_operation(dists):
    cells = operations.get("scale").grid("quick", factor=[5], rows=[1])
    assert [(cell.rows, cell.factor) for cell in cells] == [(1, 5)]


def test_a_provider_is_timed_beside_the_floor_in_a_table_with_the_columns_of_the_operation(dists):
    add_scaler(dists)
    timer = Timer()
    lines = run(
        operations.get("scale").grid("quick"), select_contenders((), CPU, "scale"), device=CPU, timer=timer
    )
    assert torch.equal(timer.found["acme"], torch.full((3,), 2.0))
    assert torch.equal(timer.found["copy: torch.Tensor.copy_"], torch.ones(3))
    report = BenchReport(
        command="",
        device="cpu",
        host="cpu",
        method="by the sun",
        repeats=3,
        threads=1,
        versions={},
        contenders=("acme",),
        lines=lines,
        seconds=1.0,
    )
    assert as_text(report) == [
        "numbers  factor  sum  copy us       acme us",
        "      2       2    2     10.0  10.0 (1.00x)",
        "      2      -3    2     10.0             -",
        "      3       2    3     10.0  10.0 (1.00x)",
        "      3      -3    3     10.0             -",
    ]
    assert report.head[1] == (
        "Medians of 3, in turns; by the sun. In brackets the ratio to the copy; ± half the distance of the quartiles, "
        "where it is over 5 %."
    )
    assert report.notes == [
        "The copy is of the numbers, by torch.Tensor.copy_.",
        "Numbers are multiplied.",
        "acme: it does not serve negative factors (2 of 4 cells).",
    ]
    (first, *_) = report.as_json()["cells"]
    assert {name: first[name] for name in ("rows", "factor", "sum", "nbytes")} == {
        "rows": 2,
        "factor": 2,
        "sum": 2.0,
        "nbytes": 8,
    }
    assert first["copy"]["by"] == "torch.Tensor.copy_"
