"""Vocabularies too large for native's sort on a CPU: above 8192, without filling the last tile or the last block."""

import numpy as np
import pytest

from calling import call, kept_sets, shown_values
from tokendraw import SamplingParams
from tokendraw_testing import reference
from tokendraw_testing.logits_families import FAMILIES

SIZE = 10_007


@pytest.mark.parametrize("family", FAMILIES)
def test_top_p_alone_and_a_large_top_k_keep_what_the_reference_keeps(load_native, family):
    rng = np.random.default_rng(5)
    logits = np.stack([FAMILIES[family](rng, SIZE) for _ in range(12)])
    params = [SamplingParams(top_p=0.1 * (i % 9 + 1), top_k=1500 * (i // 6), logprobs=-1) for i in range(12)]
    found = kept_sets(load_native("processed_logprobs"), logits, params)
    rows = [reference.prepare(x, p) for x, p in zip(logits, params, strict=True)]
    judged = [i for i, row in enumerate(rows) if row.certain]
    assert len(judged) >= 6
    assert [i for i in judged if not np.array_equal(found[i], rows[i].kept)] == []


def test_a_nucleus_whose_edge_is_the_last_token_of_the_vocabulary_is_found(load_native):
    """10,007 is 156 blocks of 64 and 23 tokens."""
    logits = np.full((1, SIZE), -20.0, np.float32)
    logits[0, 0], logits[0, -1] = 1.0, 0.5
    shown = shown_values(
        call(load_native("processed_logprobs"), logits, SamplingParams(top_p=0.9, logprobs=-1))
    )[0]
    assert np.flatnonzero(np.isfinite(shown)).tolist() == [0, SIZE - 1]


def test_zeros_of_both_signs_are_ties(load_native):
    logits = np.full((1, SIZE), -0.0, np.float32)
    logits[0, 1::2] = 0.0
    shown = shown_values(
        call(load_native("processed_logprobs"), logits, SamplingParams(top_p=0.5, logprobs=-1))
    )[0]
    assert np.isfinite(shown).all()
    logits[0, 1::2] = -30.0
    logits[0, 3] = 0.0
    shown = shown_values(
        call(load_native("processed_logprobs"), logits, SamplingParams(top_p=0.5, logprobs=-1))
    )[0]
    assert np.isfinite(shown).sum() == (SIZE + 1) // 2 + 1
