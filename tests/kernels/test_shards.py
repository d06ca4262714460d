"""Draws from columns of ranks by triton-gumbel on a CPU: in Triton's interpreter, what is compiled, and launches."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton_on_a_cpu
from compiled_kernels import compiled, has_machine_code
from echoing_rank import agreed_shard
from tokendraw import SamplingMetadata, SamplingParams
from triton_on_a_cpu import TARGETS
from triton_stand_ins import kernels, sampler_for

__all__ = ["kernels"]

PLAIN = SamplingParams(temperature=0.8, seed=1)
FILTERED = replace(PLAIN, top_k=50, top_p=0.9)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BOUNDS = (0, 4000, 8192)
KERNELS = ("shard_statistics", "weigh_kept", "draw_shard")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "dtype", "families"),
    [
        (1, "float32", ("mixed", "plain")),
        (2, "bfloat16", ("mixed", "greedy", "top-p")),
        (3, "float32", ("plain", "top-k, top-p", "min-p", "joint", "large k")),
        (3, "float16", ("mixed", "plain", "top-p")),
    ],
)
def test_the_tokens_in_the_interpreter_are_those_of_native_on_one_device(size, dtype, families):
    found = triton_on_a_cpu.interpreted("triton_shards_kernels.py", "tokens", size, dtype, *families)
    assert found["wrong"] == []
    assert found["drawn"] == 48 * len(families)


def drawn(target, params, dtype=torch.bfloat16, bounds=BOUNDS, rank=1, **need):
    """Make a draw on one rank that the stand-ins note."""
    shard = agreed_shard(bounds, rank)
    logits = torch.zeros(2, bounds[rank + 1] - bounds[rank], dtype=dtype)
    metadata = SamplingMetadata.from_params([params, params], positions=[0, 1])
    sampler_for(target, **need).sample(logits, metadata, shard=shard)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernels_compile(kernels, target, dtype):
    drawn(target, FILTERED, dtype)
    for name in KERNELS:
        assert has_machine_code(compiled(kernels[name], target)), name


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize(
    ("params", "need"),
    [
        (PLAIN, {}),
        (PLAIN, {"gumbel_dtype": "fp64"}),
        (SamplingParams(temperature=0.0), {}),
        (replace(FILTERED, logprobs=3), {"gumbel_dtype": "fp64"}),
        (SamplingParams(temperature=0.0, logprobs=3), {}),
    ],
    ids=["plain", "float64", "greedy", "logprobs", "greedy logprobs"],
)
def test_the_kernels_of_other_calls_compile(kernels, target, params, need):
    drawn(target, params, **need)
    for name in KERNELS:
        for _ in kernels[name].calls:
            assert has_machine_code(compiled(kernels[name], target)), name


def launched(kernels):
    """How many launches each kernel had, where any."""
    return {name: len(kernel.launches) for name, kernel in kernels.items() if kernel.launches}


def test_rows_without_filters_take_three_launches(kernels):
    drawn("sm_90", PLAIN)
    assert launched(kernels) == {"shard_statistics": 1, "draw_shard": 1, "merge_draws": 1}


def test_a_pass_over_columns_reads_vectors_of_16_bytes_where_the_tiles_lie_so(kernels):
    """The second rank begins 928 ids before the end of a tile, so that its tiles begin at multiples of 16 bytes."""
    drawn("sm_90", PLAIN, torch.float32)
    kernel = kernels["shard_statistics"]
    assert compiled(kernel, "sm_90")["ptx"].count("ld.global.v4") >= 4
    drawn("sm_90", PLAIN, torch.float32, bounds=(0, 4001, 8193))
    assert "ld.global.v4" not in compiled(kernel, "sm_90")["ptx"]
