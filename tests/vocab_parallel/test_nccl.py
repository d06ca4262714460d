"""Two ranks of NCCL with a GPU each draw a single device's tokens, in CUDA graphs, and without a wait."""

from itertools import cycle, product

import pytest
import torch
import torch.distributed as dist

import shard_cuda
from gloo_world import world
from shard_cases import DTYPES, FAMILIES, MODES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    pytest.mark.skipif(not dist.is_nccl_available(), reason="needs a torch with NCCL"),
]

SECONDS = 500
"""Kernels are compiled in between."""
SAMPLERS = ("triton-gumbel", "native")
ROWS = 650
BATCHES = [
    (family, dtype, size)
    for (family, size), dtype in zip(product(FAMILIES, (1, 7, 1024, 20_011)), cycle(DTYPES), strict=False)
]
CALLS = [("plain", None), ("top-k, top-p", None), ("top-p", None), ("mixed", None), ("mixed", 3)]


def on_ranks(function, *arguments):
    return world(2, "nccl").run(function, 2, *arguments, seconds=SECONDS)


@pytest.mark.parametrize("name", SAMPLERS)
def test_rows_of_every_kind_get_the_tokens_of_one_device_on_every_rank(name):
    """Compares 23,400 rows."""
    (drawn, differ), (other, _) = on_ranks(shard_cuda.tokens, name, BATCHES, ROWS)
    assert len(drawn) == ROWS * len(BATCHES)
    print(f"{name}: {len(drawn)} rows, {len(differ)} differ")
    assert len(differ) <= len(drawn) // 10_000, differ[:5]
    assert other == drawn


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("mode", MODES)
def test_logprobs_ranks_and_the_kept_mass_are_those_of_one_device(name, mode):
    batches = [(family, "float32", size) for family, size in product(FAMILIES, (7, 2100))]
    equal, rows = on_ranks(shard_cuda.logprobs, name, mode, batches, 24)[0]
    assert equal >= rows - 1


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(("family", "width"), CALLS)
def test_a_captured_call_follows_inputs_that_change_between_its_replays(name, family, width):
    for dtype in ("bfloat16", "float32"):
        for differ in on_ranks(shard_cuda.replayed, name, family, dtype, width):
            assert sum(differ) <= 1, (dtype, differ)


@pytest.mark.parametrize("name", SAMPLERS)
def test_replays_of_rows_without_seeds_draw_anew_and_the_same_on_every_rank(name):
    found, other = on_ranks(shard_cuda.drawn_anew, name)
    assert found == other
    for first, second in ((0, 1), (1, 2), (0, 2)):
        again = sum(a == b for a, b in zip(found[first], found[second], strict=True))
        assert again <= 3


@pytest.mark.parametrize(
    ("name", "family", "width"), [("native", "plain", None), *(("triton-gumbel", *call) for call in CALLS)]
)
def test_no_call_waits_for_the_device(name, family, width):
    """Checked by torch's own check, and by a stopwatch behind a device that sleeps.

    With filters native launches more kernels than a device queues.
    """
    on_ranks(shard_cuda.waits, name, family, "bfloat16", width)
