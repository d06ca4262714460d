"""``tokendraw bench`` on CUDA: graphs over buffers in rotation, calls outside of graphs, the read, memory."""

import json
import math

import pytest
import torch

from command_line import call
from tokendraw_bench import floor
from tokendraw_bench.cells import Cell
from tokendraw_bench.run import make_inputs, timer_for
from tokendraw_bench.timing import Failure, TimedCall, Timing

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cuda():
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(scope="module")
def timer(cuda):
    return timer_for(cuda, 5)


def test_the_working_set_is_several_times_the_l2(cuda, timer):
    size = timer.working_set
    assert size >= 4 * torch.cuda.get_device_properties(cuda).L2_cache_size
    assert [timer.buffers(nbytes) for nbytes in (size, size // 10 + 1, 1000)] == [2, 10, 64]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_read_is_as_fast_as_memory_and_twice_the_bytes_take_twice_the_time(cuda, timer, dtype):
    def us(batch):
        cell = Cell(batch, 151_936, dtype, "none", "flat")
        found = timer.time(floor.readers(cuda), make_inputs(cell, cuda, timer.buffers(cell.nbytes)))
        fastest = min(timing.us for timing in found.values())
        assert 30 < cell.nbytes / fastest / 1e3 < 20_000  # GB/s
        return fastest

    assert 1.7 < us(1024) / us(512) < 2.3


def raise_when_captured(logits):
    if torch.cuda.is_current_stream_capturing():
        raise ValueError("not here")


@pytest.mark.parametrize(
    ("draw", "reason"),
    [
        (lambda logits: float(logits.sum()), "RuntimeError: called a synchronizing CUDA operation"),
        (raise_when_captured, "ValueError: not here"),
        (lambda logits: torch.cuda.current_stream().synchronize(), ""),
    ],
)
def test_a_broken_capture_is_a_failure_and_leaves_the_rest_alone(cuda, timer, draw, reason):
    """Calls with random numbers work in the same turns and in the next; without a graph the broken ones do, too."""
    buffers = make_inputs(Cell(4, 32_000, "float32", "none", "flat"), cuda, 2)
    random = TimedCall(draw=lambda logits: logits.new_empty(100).exponential_())
    for calls in ({"breaks": TimedCall(draw=draw), "random": random}, {"random": random}):
        found = timer.time(calls, buffers)
        assert isinstance(found["random"], Timing), found
        if "breaks" in calls:
            assert isinstance(found["breaks"], Failure)
            assert found["breaks"].reason.startswith(reason)
    assert torch.cuda.get_sync_debug_mode() == 0
    eager = timer.time({"waits": TimedCall(draw=draw, graph_safe=False)}, buffers)["waits"]
    assert (eager.how, eager.us > 0) == ("eager", True)


@pytest.mark.parametrize(
    "options",
    [
        "--op sample --batch 64 --vocab-size 128256 --family peaked-7 --sampler native --sampler torch-sort",
        "--op sample --batch 16 --vocab-size 32000 --filters mixed --cache warm --sampler torch-sort",
        "--op sample --batch 16 --vocab-size 32000 --filters none --no-graphs --sampler torch-sort",
        "--op verify --batch 16 --vocab-size 32000 --sampler native --memory",
        "--op process_logits --batch 16 --edits penalties --sampler native --memory",
        *(
            f"--preset cliffs --small --sampler native --sweep {name}"
            for name in ("special-row", "row-padding")
        ),
        "--preset cliffs --small --sampler native --sweep verify-top-k --memory",
    ],
)
def test_the_command_captures_calls_of_every_operation(options):
    result = call("bench", *options.split(), "--device", "cuda", "--repeats", 5, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    for cell in (cell for run in found.get("sweeps", [found]) for cell in run["cells"]):
        for name, entry in {"read": cell["read"], **cell["entries"]}.items():
            assert (entry["reason"], entry["us"] > 0, entry["host_us"] > 0) == ("", True, True), name
            assert "process_logits" in options or (entry["how"] == "graph") != ("--no-graphs" in options)
        for name, entry in cell["entries"].items():
            assert ("sweeps" in found) == (entry["largest_us"] is not None)
            assert "--memory" not in options or entry["extra_memory"] >= 0, name
            assert "--op sample" not in options or 1 < entry["ratio"] < math.inf
