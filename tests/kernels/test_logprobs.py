"""Compares logprobs of triton-gumbel and native in Triton's interpreter; compiles the kernels."""

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

import torch

from tokendraw import SamplingMetadata, SamplingParams
from tokendraw_triton_gumbel.logprob_launches import SEARCHES
from triton_stand_ins import ENDS, SOME, compiled, has_machine_code, interpreted, sampler_for

V = 4096


COMPARISONS = {
    "every mode and family of logits": ("families", 8 * (3 * 7 + 2 * 12)),
    "large vocabularies": ("large", 3 * 8),
    "NaN, infinities and ties": ("special", 14 * (2 * 6 + 4)),
    "more of the best than are compared all with all": ("wide", 7 * 17),
    "scores of tokens and of padding": ("scores", 8 * 17),
    "scores of rows that keep intervals": ("interval_scores", 10 * 24),
    "what is kept below a ceiling at temperatures near 0": ("ceilings", 5 * 2 * 6),
    "parameters by slot, absent or out of range": ("tensors", 16 * 6),
    "values of -inf in the order of their ids": ("order", 2 * 2 * 2 * 3),
    "logits that require grad, and calls without ranks": ("calls", 2 * 2 * 3),
    "no log-probability and no kept mass above 0": ("bounds", 3 * 3 * 2 * 8 * 2),
    "thresholds among the collected logits of thousands of tokens": ("collected", 18),
}
"""Function of interpreted/logprobs.py, and the number of rows."""


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARISONS)
def test_logprobs_agree_with_native(name):
    function, rows = COMPARISONS[name]
    assert interpreted("logprobs", function) == {"judged": rows, "wrong": []}


@pytest.mark.slow
def test_no_log_probability_and_no_kept_mass_exceeds_0():
    assert interpreted("logprobs", "few_bounds") == {"judged": 28, "wrong": []}


def described(target, dtype, num_logprobs, vocab_size=V):
    """Make a call with log-probabilities, for the stand-ins to record."""
    params = SamplingParams(temperature=0.8, top_k=50, seed=1, logprobs=num_logprobs)
    metadata = SamplingMetadata.from_params([params, params], positions=[0, 1])
    sampler_for(target).sample(torch.zeros(2, vocab_size, dtype=dtype), metadata)


def giving(target, ids):
    """Make a call with the log-probabilities of given ids."""
    params = SamplingParams(temperature=0.8, top_k=50, seed=1, logprob_token_ids=ids)
    metadata = SamplingMetadata.from_params([params, params], positions=[0, 1])
    sampler_for(target).sample(torch.zeros(2, V, dtype=torch.bfloat16), metadata)


def scored(target, dtype, mode="processed_logprobs", **params):
    """Score two tokens, for the stand-ins to record."""
    params = SamplingParams(temperature=0.8, **params)
    metadata = SamplingMetadata.from_params([params, params])
    sampler = sampler_for(target, logprobs_mode=mode)
    sampler.score(torch.zeros(2, V, dtype=dtype), torch.tensor([5, -100]), metadata)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "bounds"), [("sm_80", "tiles"), ("gfx1201", "quarters of tiles")])
def test_the_kernel_compiles(kernels, target, bounds):
    """The maxima of tiles bound the N-th value, or with few tiles the maxima of their quarters."""
    dtype, num_logprobs = (torch.bfloat16, 1) if bounds == "tiles" else (torch.float32, 20)
    described(target, dtype, num_logprobs)
    config = kernels["row_logprobs"].calls[-1][2]["config"]
    assert (config.MAXIMA > 0) == (num_logprobs > 2)
    assert has_machine_code(compiled(kernels["row_logprobs"], target))


@pytest.mark.slow
def test_the_kernel_with_a_sort_compiles(kernels):
    """Compile for AMD only: the kernels for NVIDIA run on one."""
    described("gfx1201", torch.float32, SEARCHES[1].width)
    assert has_machine_code(compiled(kernels["row_logprobs"], "gfx1201"))


@pytest.mark.slow
@pytest.mark.parametrize("target", SOME)
def test_the_kernel_of_given_ids_compiles(kernels, target):
    giving(target, [3, 7])
    assert has_machine_code(compiled(kernels["given_logprobs"], target))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "dtype"), [*zip(SOME, (torch.bfloat16, torch.float32), strict=True)], ids=str
)
def test_the_kernels_of_scores_compile(kernels, target, dtype):
    scored(target, dtype, "raw_logprobs")
    for name in ("tile_statistics", "score_rows"):
        assert has_machine_code(compiled(kernels[name], target))
    scored(target, dtype, top_p=0.9)
    assert has_machine_code(compiled(kernels["score_rows"], target))


@pytest.mark.slow
@pytest.mark.parametrize("target", ENDS)
def test_scores_of_kept_intervals_compile(kernels, target):
    """In raw modes and in others the entropies of rows with two temperatures are those of different sums."""
    fields = {"min_p": 0.1, "top_p": 0.9, "filter_order": "temperature_last", "xtc_probability": 0.5}
    for dtype, mode in (
        (torch.bfloat16, "raw_logprobs"),
        (torch.float32, "temperature_logprobs"),
        (torch.bfloat16, "processed_logprobs"),
    ):
        scored(target, dtype, mode, **fields)
        for name in ("tile_statistics", "draw_rows", "redraw_rows", "score_rows"):
            assert has_machine_code(compiled(kernels[name], target))


def test_given_ids_of_any_number_take_one_kernel(kernels):
    for ids in (range(1), range(64), range(65), range(300)):
        giving("sm_90", ids)
    assert len(kernels["given_logprobs"].compilations) == 1


def test_rows_without_given_ids_launch_no_kernel_for_them(kernels):
    described("sm_90", torch.float32, 3)
    assert not kernels["given_logprobs"].compilations


def test_more_best_tokens_take_a_wider_search(kernels):
    widths = {}
    for n in (1, 64, 65, 256, 257, 1024):
        described("sm_90", torch.float32, n)
        widths[n] = kernels["row_logprobs"].calls[-1][2]["config"].WIDTH
    assert widths == {1: 64, 64: 64, 65: 256, 256: 256, 257: 1024, 1024: 1024}
    # With few tiles the maxima of their quarters bound the 64th value, not the first.
    assert len(kernels["row_logprobs"].compilations) == 1 + len(SEARCHES)


@pytest.mark.slow
def test_the_kernel_compiles_for_a_vocabulary_of_one(kernels):
    described("sm_90", torch.float32, 1, vocab_size=1)
    assert has_machine_code(compiled(kernels["row_logprobs"], "sm_90"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "dtype"), [*zip(SOME, (torch.bfloat16, torch.float32), strict=True)], ids=str
)
def test_the_count_of_ranks_compiles(kernels, target, dtype):
    described(target, dtype, 1)
    assert has_machine_code(compiled(kernels["count_ranks"], target))
