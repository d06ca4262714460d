"""The kernels of triton-gumbel for messages of ranks: results in Triton's interpreter, and compilations."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import shard_cases
from tokendraw.plugin import MOMENTS
from tokendraw.vocab_parallel import required_sums
from tokendraw_triton_gumbel.kernels.shared.configs import MergeConfig, MomentConfig, ThresholdConfig
from tokendraw_triton_gumbel.ranks.merge_launches import MergeLaunches
from tokendraw_triton_gumbel.ranks.message_layout import sum_bits
from triton_stand_ins import SOME, compiled_call, has_machine_code, interpreted

REAL, LONG, TRUTH = torch.float32, torch.int64, torch.bool
PARAMS = (REAL, None, LONG, TRUTH, LONG, LONG, REAL, REAL, TRUTH, None)
"""Types of temperature, row_index, seed, seeded, positions, top_k, top_p, min_p, joint and logprobs."""
MERGED = MergeConfig(RANKS=2, SHARED_TILES=1, PARTS=2, MAY_SAMPLE=True, FP64=False)
MERGES = [
    MERGED,
    MERGED._replace(SHARED_TILES=0, MAY_SAMPLE=False),
    MergeConfig(RANKS=8, SHARED_TILES=8, PARTS=8, MAY_SAMPLE=True, FP64=True),
]
SURVEYED = ThresholdConfig(
    N=128, RANKS_AT_ONCE=2, MASSES=0, HAS_KTH=True, HAS_NUCLEUS=True, MAY_MISS_NUCLEUS=False
)
NO_NUCLEUS = ThresholdConfig(
    N=16, RANKS_AT_ONCE=4, MASSES=256, HAS_KTH=False, HAS_NUCLEUS=False, MAY_MISS_NUCLEUS=True
)
SURVEYS = [SURVEYED, NO_NUCLEUS]
LARGE = ThresholdConfig(
    N=4096, RANKS_AT_ONCE=1, MASSES=1, HAS_KTH=True, HAS_NUCLEUS=True, MAY_MISS_NUCLEUS=True
)


def merged(family, size, *others):
    """Merge draws of four vocabularies on all ranks; return the number of judged rows, and the wrong ones."""
    return interpreted("messages", "tokens", family, size, *others)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mixed", "filters"])
def test_kernels_make_the_tokens_and_bounds_of_one_device_of_what_three_ranks_tell(family):
    assert merged(family, 3, 16) == {"judged": 4 * 3 * 16, "wrong": []}


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 1, 5])
def test_kernels_merge_the_draws_of_any_number_of_ranks(size):
    assert merged("plain", size, 8) == {"judged": 4 * size * 8, "wrong": []}


@pytest.mark.slow
def test_kernels_merge_draws_with_noise_in_float64():
    assert merged("plain", 3, 16, "fp64") == {"judged": 4 * 3 * 16, "wrong": []}


@pytest.mark.slow
def test_kernels_find_thresholds_that_ties_tails_and_single_tokens_decide():
    result = interpreted("messages", "designed")
    assert result == {name: [] for name in ("small k", "top-p", "top-p and min-p")}


@pytest.mark.slow
def test_kernels_read_metadata_as_engines_make_it():
    result = interpreted("messages", "made")
    assert result == {name: [] for name in shard_cases.MADE}


def compiled(kernels, name, target):
    calls = kernels[name].calls
    return [has_machine_code(compiled_call(call, target)) for call in calls]


@pytest.mark.slow
@pytest.mark.parametrize("target", SOME)
def test_the_kernels_compile(kernels, target):
    launches = MergeLaunches()
    for merge in MERGES:
        launches.merge(merge, PARAMS)
    for survey in SURVEYS:
        launches.thresholds(survey, PARAMS, has_fresh_seeds=survey.MASSES > 0)
    launches.digit(PARAMS)
    launches.moments(MomentConfig(RANKS=2, SUMS=sum_bits(required_sums(MOMENTS))), MOMENTS, PARAMS)
    launches.moments(MomentConfig(RANKS=1, SUMS=sum_bits(["count", "mass"])), ["count", "log_mass"], PARAMS)
    assert compiled(kernels, "merge_moments", target) == [True] * 2
    assert compiled(kernels, "merge_draws", target) == [True] * len(MERGES)
    assert compiled(kernels, "find_thresholds", target) == [True] * len(SURVEYS)
    assert compiled(kernels, "next_digit", target) == [True]


@pytest.mark.slow
@pytest.mark.parametrize("target", SOME[1:])  # that of sm_90 runs on one
def test_a_survey_of_as_many_values_as_a_kernel_compares_compiles(kernels, target):
    MergeLaunches().thresholds(LARGE, PARAMS, has_fresh_seeds=True)
    assert compiled(kernels, "find_thresholds", target) == [True]


def test_a_kernel_is_compiled_once_whatever_the_sizes_are(kernels):
    launches = MergeLaunches()
    assert launches.merge(MERGED, PARAMS) is launches.merge(MergeConfig(*MERGED), PARAMS)
    assert launches.digit(PARAMS) is launches.digit(PARAMS)
    assert [len(kernels[name].calls) for name in ("merge_draws", "next_digit")] == [1, 1]
