"""The filters at the ends of rounding and of blocks; the kit compares all other requests with float64."""

import numpy as np
import pytest

from calling import kept_sets
from tokendraw import SamplingParams

BLOCKS = 10_007
"""A vocabulary above native's sorts on a CPU, 8192: 156 blocks of 64 and 23 tokens, nine tiles and a part."""


@pytest.fixture(scope="module")
def processed(load_native):
    return load_native("processed_logprobs")


def test_top_p_just_below_1_still_drops_what_the_rest_outweighs(processed):
    """1 - 2**-24 is the largest float32 below 1: it drops a token of 1e-13, and keeps 1e-3 and all ties."""
    p = 1 - 2.0**-24
    logits = np.full((4, 1000), -np.inf)
    logits[0, [7, 500]] = 0.0, -30.0
    logits[1, [7, 500]] = 0.0, -7.0
    logits[2] = 1.5
    logits[3] = np.linspace(0, -1, 1000)
    kept = kept_sets(processed, logits.astype(np.float32), SamplingParams(top_p=p, logprobs=-1))
    assert [set(np.flatnonzero(row)) for row in kept[:2]] == [{7}, {7, 500}]
    assert kept[2:].all()


def test_top_p_of_exactly_1_keeps_what_is_far_below_rounding(processed):
    logits = np.array([[0.0, -30.0, -80.0, -100.0, -1000.0]], np.float32)
    for order in ("top_k_first", "joint"):
        params = SamplingParams(top_p=1.0, filter_order=order, logprobs=-1)
        assert kept_sets(processed, logits, params).all()
        with_mate = [params, SamplingParams(top_p=0.5, top_k=2, min_p=0.1, logprobs=-1)]
        assert kept_sets(processed, np.repeat(logits, 2, 0), with_mate)[0].all()


def test_zeros_of_both_signs_are_tied(processed):
    logits = np.array([[-1.0, -0.0, 0.0, -2.0], [-1.0, 0.0, -0.0, -2.0]] * 3, np.float32)
    params = [
        SamplingParams(logprobs=-1, **s)
        for s in ({"top_k": 1}, {"top_p": 0.1}, {"min_p": 1.0})
        for _ in (0, 1)
    ]
    assert kept_sets(processed, logits, params).tolist() == [[False, True, True, False]] * 6


def test_zeros_of_both_signs_are_tied_where_a_large_vocabulary_is_searched_by_bins(processed):
    flat = np.full((2, BLOCKS), -0.0, np.float32)
    flat[0, 1::2] = 0.0
    flat[1, 1::2] = -30.0
    flat[1, 3] = 0.0
    kept = kept_sets(processed, flat, SamplingParams(top_p=0.5, logprobs=-1))
    assert kept.sum(-1).tolist() == [BLOCKS, (BLOCKS + 1) // 2 + 1]


@pytest.mark.parametrize("params", [{"top_p": 0.9}, {"top_k": 2}, {"top_k": 2, "top_p": 0.9}], ids=str)
def test_the_last_token_behind_the_last_block_may_be_the_edge(processed, params):
    logits = np.full((1, BLOCKS), -20.0, np.float32)
    logits[0, 0], logits[0, -1] = 1.0, 0.5
    kept = kept_sets(processed, logits, SamplingParams(**params, logprobs=-1))
    assert np.flatnonzero(kept[0]).tolist() == [0, BLOCKS - 1]


@pytest.mark.parametrize("k", [1025, 3000])
def test_a_top_k_above_the_values_that_torch_finds_quickly_keeps_k_tokens(processed, k):
    logits = np.random.default_rng(5).permutation(BLOCKS).astype(np.float32)
    kept = kept_sets(processed, logits[None], SamplingParams(top_k=k, logprobs=-1))
    assert np.array_equal(kept[0], logits >= BLOCKS - k)
