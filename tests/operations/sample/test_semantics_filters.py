"""DESIGN section 2, the filters, by worked examples. ``test_conformance.py`` compares all requests with float64."""

import numpy as np
import pytest
import torch

from calling import kept_sets
from tokendraw import SamplingParams

BLOCKS = 10_007
"""A vocabulary above native's sorts on a CPU, 8192: 156 blocks of 64 and 23 tokens, nine tiles and a part."""


@pytest.fixture(scope="module")
def processed(load_native):
    return load_native("processed_logprobs")


PROBABILITIES = np.array([0.05, 0.4, 0.1, 0.2, 0.1, 0.1, 0.05])
"""Cumulated from the largest: 0.4, 0.6, then three ties to 0.9, then two ties to 1."""

WORKED = {
    "top_k keeps every token whose value is >= the k-th largest": [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 3}, {1, 2, 3, 4, 5}),
        ({"top_k": 5}, {1, 2, 3, 4, 5}),
        ({"top_k": 6}, {0, 1, 2, 3, 4, 5, 6}),
    ],
    "top_p keeps the smallest set with mass >= p and every token tied with its last": [
        ({"top_p": 1e-9}, {1}),
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.41}, {1, 3}),
        ({"top_p": 0.61}, {1, 2, 3, 4, 5}),
        ({"top_p": 0.89}, {1, 2, 3, 4, 5}),
        ({"top_p": 0.91}, {0, 1, 2, 3, 4, 5, 6}),
    ],
    "min_p is relative to the largest probability": [
        ({"min_p": 1.0}, {1}),
        ({"min_p": 0.51}, {1}),
        ({"min_p": 0.49}, {1, 3}),
        ({"min_p": 0.26}, {1, 3}),
        ({"min_p": 0.24}, {1, 2, 3, 4, 5}),
        ({"min_p": 0.12}, {0, 1, 2, 3, 4, 5, 6}),
    ],
    "top_p counts the mass that top_k left, renormalised": [
        ({"top_k": 2, "top_p": 0.65}, {1}),  # 0.4 of 0.6
        ({"top_k": 2, "top_p": 0.68}, {1, 3}),
        ({"top_k": 3, "top_p": 0.66}, {1, 3}),  # 0.6 of 0.9
    ],
    "top_p counts the mass that min_p left, renormalised": [
        ({"min_p": 0.4, "top_p": 0.65}, {1}),
        ({"min_p": 0.4, "top_p": 0.68}, {1, 3}),
    ],
    "joint: top_k and top_p are both on the unfiltered mass": [
        ({"top_k": 2, "top_p": 0.65, "filter_order": "joint"}, {1, 3}),
        ({"top_k": 2, "top_p": 0.39, "filter_order": "joint"}, {1}),
        ({"top_k": 5, "top_p": 0.59, "filter_order": "joint"}, {1, 3}),
        ({"min_p": 0.4, "top_p": 0.65, "filter_order": "joint"}, {1, 3}),
    ],
    "temperature goes before min_p and top_p": [
        ({"min_p": 0.49, "temperature": 0.9}, {1}),  # 0.5 ** (1 / 0.9) = 0.463
        ({"min_p": 0.51, "temperature": 1.1}, {1, 3}),
        ({"top_p": 0.41, "temperature": 0.5}, {1}),  # the head's share grows to 0.66
        ({"top_p": 0.61, "temperature": 0.5}, {1}),
    ],
}


@pytest.mark.parametrize("rule", WORKED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_worked_examples(processed, rule, dtype):
    settings_, expected = zip(*WORKED[rule], strict=True)
    logits = torch.from_numpy(np.log(PROBABILITIES)).to(dtype).repeat(len(expected), 1)
    kept = kept_sets(processed, logits, [SamplingParams(logprobs=-1, **s) for s in settings_])
    assert [set(np.flatnonzero(row)) for row in kept] == list(expected)


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
