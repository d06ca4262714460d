"""Draws from columns of ranks by triton-gumbel on a CPU: results in Triton's interpreter, compilations, launches."""

from dataclasses import replace
from itertools import cycle

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton_stand_ins
from shard_cases import agreed_shard
from tokendraw import SamplingMetadata, SamplingParams
from tokendraw_triton_gumbel.host import compilation
from triton_stand_ins import (
    ENDS,
    SOME,
    compiled,
    compiled_call,
    flat,
    has_machine_code,
    interpreted,
    sampler_for,
)

PLAIN = SamplingParams(temperature=0.8, seed=1)
FILTERED = replace(PLAIN, top_k=50, top_p=0.9)
NUCLEUS = replace(PLAIN, top_p=0.9)
MOMENTS_READ = replace(PLAIN, filters={"top_n_sigma": 1.0, "eta_cutoff": 0.01, "p_less": 1.0})
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BOUNDS = (0, 4000, 8192)
CALLS = {
    "plain": (PLAIN, {}),
    "joint, fresh": (replace(PLAIN, top_k=3000, top_p=0.9, filter_order="joint", seed=None), {}),
    "float64, logprobs": (replace(FILTERED, logprobs=3), {"gumbel_dtype": "fp64"}),
    "greedy, logprobs": (SamplingParams(temperature=0.0, logprobs=3), {}),
    "filters from moments": (MOMENTS_READ, {}),
}
KERNELS = ("shard_statistics", "weigh_kept", "draw_shard", "survey_columns", "add_by_digit")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "arguments"),
    [("tokens", (3, "float16", "large k")), ("blind", (3, "float32", "mixed"))],
    ids=["values readable by the host", "values hidden from the host"],
)
def test_the_tokens_of_ranks_are_those_of_native_on_a_single_device(function, arguments):
    assert interpreted("shards", function, *arguments) == {"drawn": 48, "wrong": []}


@pytest.mark.slow
def test_largest_values_ties_masses_and_histograms_equal_native():
    assert interpreted("shards", "surveys", "bfloat16") == {"judged": 470, "wrong": []}


def drawn(target, params, dtype=torch.bfloat16, bounds=BOUNDS, rank=1, **need):
    """Draw on one rank, for the stand-ins to record."""
    shard = agreed_shard(bounds, rank)
    logits = torch.zeros(2, bounds[rank + 1] - bounds[rank], dtype=dtype)
    requests = params if isinstance(params, list) else [params, params]
    metadata = SamplingMetadata.from_params(requests, positions=[0, 1])
    sampler_for(target, **need).sample(logits, metadata, shard=shard)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "dtype"), [*zip(ENDS, cycle(DTYPES), strict=False)], ids=str)
def test_the_kernels_compile(kernels, target, dtype):
    drawn(target, FILTERED, dtype)
    drawn(target, NUCLEUS, dtype)
    for name in KERNELS:
        for call in kernels[name].calls:
            assert has_machine_code(compiled_call(call, target)), name


@pytest.mark.slow
@pytest.mark.parametrize("target", SOME[1:])  # those of sm_90 run on one
@pytest.mark.parametrize(("params", "need"), CALLS.values(), ids=CALLS)
def test_the_kernels_of_other_calls_compile(kernels, target, params, need):
    drawn(target, params, **need)
    for name in KERNELS:
        for call in kernels[name].calls:
            assert has_machine_code(compiled_call(call, target)), name


@pytest.mark.parametrize("wanted", [None, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.8])
@pytest.mark.parametrize(
    "filters",
    [{}, {"top_k": 50}, {"top_p": 0.9}, {"top_k": 2000, "min_p": 0.1}, {"filters": {"eta_cutoff": 0.1}}],
    ids=str,
)
def test_a_launch_matches_the_compiled_arguments(kernels, monkeypatch, filters, temperature, wanted):
    """None is a constant to the compiler; an absent parameter may also be at address 0."""

    def refuse(kernel, grid):
        raise AssertionError("a kernel that was not compiled before its launch")

    monkeypatch.setattr(triton_stand_ins.Kernel, "__getitem__", refuse)
    params = [
        replace(PLAIN, temperature=temperature, logprobs=wanted, seed=seed, **filters) for seed in (1, None)
    ]
    for bounds, rank in ((BOUNDS, 0), (BOUNDS, 1), ((0, 0, 5), 0), ((0, 1, 5), 0)):
        drawn("sm_90", params, bounds=bounds, rank=rank)
    for kernel in kernels.values():
        compiled_for = [[each is None for each in flat(arguments)] for _, arguments, _ in kernel.calls]
        for _, arguments in kernel.launches:
            given = flat(arguments[: len(arguments) - kernel.constants])
            assert any(
                len(given) == len(absent)
                and all(not own if none else own is not None for own, none in zip(given, absent, strict=True))
                for absent in compiled_for
            ), kernel.original
    assert launched(kernels)


def test_ranks_share_all_kernels_but_the_pass_wherever_their_columns_begin(kernels, monkeypatch):
    """Eight processes with one cache compile each kernel once, not once for each rank's size and start."""
    bounds, seen = tuple(151_936 * rank // 3 for rank in range(4)), []
    for rank in range(3):
        for kernel in kernels.values():
            kernel.calls.clear()
            kernel.compilations.clear()
            kernel._compiled.clear()
        monkeypatch.setattr(compilation, "_kernels", {})
        for params in (FILTERED, NUCLEUS, PLAIN):
            drawn("sm_90", params, bounds=bounds, rank=rank)
        seen.append({(name, key) for name in KERNELS for key, _ in kernels[name].compilations})
    apart = {name for name, _ in seen[0] ^ seen[1] | seen[1] ^ seen[2]}
    assert apart <= {"shard_statistics"}
    assert len(seen[0] | seen[1] | seen[2]) <= 14


def launched(kernels):
    """How many launches each kernel had, where any."""
    return {name: len(kernel.launches) for name, kernel in kernels.items() if kernel.launches}


def test_rows_without_filters_take_three_launches(kernels):
    drawn("sm_90", PLAIN)
    assert launched(kernels) == {"shard_statistics": 1, "draw_shard": 1, "merge_draws": 1}


def test_rows_with_top_k_take_six_launches(kernels):
    drawn("sm_90", FILTERED)
    assert launched(kernels) == dict.fromkeys(
        ("shard_statistics", "survey_columns", "find_thresholds", "weigh_kept", "draw_shard", "merge_draws"),
        1,
    )


def test_filters_from_moments_take_a_launch_for_moments_and_one_for_each_filter(kernels):
    drawn("sm_90", [replace(FILTERED, filters=MOMENTS_READ.filters), FILTERED])
    with_filters = launched(kernels)
    assert (with_filters.pop("merge_moments"), with_filters.pop("combine_floors")) == (1, 3)
    assert with_filters == dict.fromkeys(
        ("shard_statistics", "survey_columns", "find_thresholds", "weigh_kept", "draw_shard", "merge_draws"),
        1,
    )


def test_a_nucleus_takes_two_more_launches_for_each_digit_of_the_dtype(kernels):
    drawn("sm_90", NUCLEUS)  # bfloat16 has two digits, and the survey tells the first
    alone = launched(kernels)
    assert (alone["add_by_digit"], alone["next_digit"]) == (2, 1)
    drawn("sm_90", NUCLEUS, torch.float32)
    both = launched(kernels)
    assert (both["add_by_digit"], both["next_digit"]) == (2 + 4, 1 + 3)


@pytest.mark.slow
def test_a_pass_over_columns_reads_vectors_of_16_bytes_where_the_tiles_lie_so(kernels):
    """The second rank begins 928 ids before the end of a tile, so its tiles begin at multiples of 16 bytes.

    The pass over the tiles reads in vectors wherever the tiles begin.
    """
    drawn("sm_90", NUCLEUS, torch.float32)
    read = [kernels[name] for name in ("shard_statistics", "add_by_digit", "weigh_kept")]
    for kernel, most in zip(read, (4, 4, 2), strict=True):
        assert compiled(kernel, "sm_90")["ptx"].count("ld.global.v4") >= most
    drawn("sm_90", NUCLEUS, torch.float32, bounds=(0, 4001, 8193))
    assert "ld.global.v4" in compiled(read[0], "sm_90")["ptx"]
    for kernel in read[1:]:
        assert "ld.global.v4" not in compiled(kernel, "sm_90")["ptx"]
