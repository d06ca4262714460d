"""DESIGN section 2, the parameter table: ranges, off values, bad values, facts; and the shapes of a call."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from calling import call, shown_values, tokens
from tokendraw import BatchFacts, InvalidInputError, SamplingMetadata, SamplingParams
from tokendraw_testing.logits_families import gaussian, zipf

V = 37
NAN, INF = math.nan, math.inf


def row(seed=0, size=V):
    return gaussian(np.random.default_rng(seed), size)


def test_values_are_not_checked_on_construction():
    assert SamplingParams(temperature=-1.0, top_p=7.0, seed="x").top_p == 7.0


def test_integers_of_numpy_and_torch_are_integers():
    params = SamplingParams(top_k=np.int32(3), seed=np.uint64(2**64 - 1), logprobs=np.int64(2))
    metadata = SamplingMetadata.from_params([params], positions=[0])
    assert metadata.top_k.tolist() == [3]
    assert metadata.seed.tolist() == [-1]
    assert metadata.facts.max_logprobs == 2


@pytest.mark.parametrize(
    "off",
    [
        *({"top_k": k} for k in (0, -1, V, V + 1, 2**30, 2**31, 2**63, 2**70)),
        *({"top_p": p} for p in (1.0, 1)),
        *({"min_p": p} for p in (0.0, 0)),
    ],
    ids=str,
)
def test_an_off_value_is_exactly_a_no_op(load_native, off):
    """1.0 is exactly a no-op for top_p: the kept mass is 1 to the last bit, and no token is dropped."""
    logits = torch.from_numpy(np.stack([row(), row() - 60 * np.arange(V), np.zeros(V)])).float()
    params = SamplingParams(seed=5, logprobs=-1, **off)
    processed = call(load_native("processed_logprobs"), logits, params)
    before_filters = call(load_native("temperature_logprobs"), logits, params)
    assert torch.equal(processed.logprobs.logprobs, before_filters.logprobs.logprobs)
    assert processed.log_kept_mass.tolist() == [0.0] * 3
    assert tokens(processed) == tokens(call(load_native(), logits, SamplingParams(seed=5)))


def test_temperature_0_is_the_argmax_whatever_the_filters_and_the_seed_say(sampler):
    logits = np.stack([row(s) for s in range(5)])
    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0, seed=3, top_k=5),
        SamplingParams(temperature=-0.0, top_p=0.1),
        SamplingParams(temperature=0.0, min_p=1.0, top_k=1, filter_order="joint"),
        SamplingParams(temperature=0.0, seed=2**63, logprobs=3),
    ]
    assert tokens(call(sampler, logits, params)) == logits.argmax(1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [2, 1025, 5000])
def test_a_greedy_tie_goes_to_the_lowest_token_id(sampler, dtype, size):
    """Also across the tiles of the draw, and between the equal values 0.0 and -0.0."""
    logits = torch.full((6, size), -3.0)
    ties = [
        [0, size - 1],
        [1, size - 1],
        [size // 2, size - 1],
        [size - 1],
        list(range(size)),
        [size - 2, size - 1],
    ]
    for i, ids in enumerate(ties):
        logits[i, ids] = 2.0
    signs = torch.full((2, size), -1.0)
    signs[0, size // 2], signs[0, -1] = -0.0, 0.0
    signs[1, size // 2], signs[1, -1] = 0.0, -0.0
    out = call(sampler, torch.cat([logits, signs]).to(dtype), SamplingParams(temperature=0.0))
    assert tokens(out) == [min(ids) for ids in ties] + [size // 2, size // 2]


def test_a_tiny_temperature_is_the_limit_of_small_ones(load_native):
    """1e-40 is a subnormal float32, 1e-300 is 0 in float32: either draws the argmax, without NaN."""
    logits = np.stack([row(s) for s in range(8)])
    params = [SamplingParams(temperature=t, seed=1, logprobs=-1) for t in (1e-30, 1e-38, 1e-40, 1e-45)] * 2
    params[4:] = [SamplingParams(temperature=t, seed=1, logprobs=-1) for t in (1e-46, 1e-100, 1e-300, 5e-324)]
    for mode in ("raw_logprobs", "temperature_logprobs", "processed_logprobs"):
        out = call(load_native(mode), logits, params)
        assert tokens(out) == logits.argmax(1).tolist()
        assert out.valid.tolist() == [True] * 8
        assert out.log_kept_mass.tolist() == [0.0] * 8
        if mode != "raw_logprobs":
            certain = np.arange(V) == logits.argmax(1)[:, None]
            assert np.array_equal(np.exp(shown_values(out)), certain)


def test_a_huge_temperature_flattens_the_finite_tokens_and_no_others(load_native):
    """1e300 is finite, though not in float32."""
    logits = np.stack([row()] * 4)
    logits[:, 5:] = -np.inf
    params = [SamplingParams(temperature=t, seed=1, logprobs=-1) for t in (1e20, 1e38, 1e39, 1e300)]
    out = call(load_native("temperature_logprobs"), logits, params)
    uniform = np.where(np.arange(V) < 5, -np.log(5), -np.inf)
    np.testing.assert_allclose(shown_values(out), np.tile(uniform, (4, 1)), atol=1e-6)
    assert max(tokens(out)) < 5
    assert out.valid.tolist() == [True] * 4


def test_a_batch_of_no_rows_with_logprobs_and_filters_gives_empty_tensors(sampler, device):
    empty = torch.empty(0, device=device)
    metadata = SamplingMetadata(
        temperature=empty,
        top_k=empty.long(),
        top_p=empty,
        min_p=empty,
        seed=empty.long(),
        positions=empty.long(),
        logprobs=empty.long(),
        facts=BatchFacts(max_logprobs=4),
    )
    out = sampler.sample(torch.empty(0, V, device=device), metadata)
    assert [tuple(t.shape) for t in (out.token_ids, out.valid, out.log_kept_mass)] == [(0,)] * 3
    assert out.logprobs.token_ids.shape == out.logprobs.logprobs.shape == (0, 5)
    assert out.logprobs.ranks.shape == (0,)


def test_a_vocabulary_of_one_gives_token_0(load_native):
    logits = np.array([[3.0], [-np.inf], [np.inf], [np.nan], [-3e38], [0.0], [1.0], [2.0]], np.float32)
    params = [SamplingParams()] * 5 + [
        SamplingParams(temperature=0.0),
        SamplingParams(top_k=1, top_p=0.5, min_p=1.0, seed=1),
        SamplingParams(top_k=3, top_p=1e-9, filter_order="joint", logprobs=2),
    ]
    out = call(load_native("processed_logprobs"), logits, params)
    assert tokens(out) == [0] * 8
    assert out.valid.tolist() == [True, False, True, False, True, True, True, True]
    assert out.logprobs.logprobs[7].tolist() == [0.0, 0.0]
    assert out.logprobs.token_ids[7].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.zeros(V), f"'logits' needs shape [B, V] with V >= 1, found [{V}]."),
        (torch.zeros(2, 2, V), f"'logits' needs shape [B, V] with V >= 1, found [2, 2, {V}]."),
        (torch.zeros(2, 0), "'logits' needs shape [B, V] with V >= 1, found [2, 0]."),
        (torch.zeros(2, V).double(), "'logits' needs dtype float32, bfloat16, float16, found torch.float64."),
        (torch.zeros(2, V).long(), "'logits' needs dtype float32, bfloat16, float16, found torch.int64."),
        (torch.zeros(3, V), "'metadata' needs as many rows as 'logits', 3, found 2."),
    ],
)
def test_logits_that_cannot_be_sampled_are_refused_before_anything_happens(sampler, device, logits, message):
    metadata = SamplingMetadata.from_params([SamplingParams()] * 2, device=device)
    with pytest.raises(InvalidInputError) as caught:
        sampler.sample(logits.to(device), metadata)
    assert str(caught.value) == message


def test_facts_change_nothing_but_what_is_skipped(load_native, device):
    """A batch of known kinds gives the result of a batch that "may hold" anything, bit for bit."""
    rng = np.random.default_rng(9)
    filters = [(0, 1.0, 0.0), (20, 1.0, 0.0), (0, 0.9, 0.0), (20, 0.9, 0.0), (0, 1.0, 0.05), (20, 0.9, 0.05)]
    params = [SamplingParams(t, *of_row, seed=8, logprobs=3) for t in (0.5, 1.3) for of_row in filters]
    sampler = load_native("processed_logprobs")
    for one in params:
        logits = torch.from_numpy(np.stack([zipf(rng, 3000) for _ in range(4)])).to(device)
        known = SamplingMetadata.from_params([one] * 4, device=device, positions=[0, 1, 2, 3])
        joint = torch.zeros(4, dtype=torch.bool, device=device)
        unknown = replace(known, joint=joint, facts=BatchFacts(max_logprobs=3), row_kinds=None)
        one_way, other_way = sampler.sample(logits, known), sampler.sample(logits, unknown)
        assert tokens(one_way) == tokens(other_way)
        assert torch.equal(one_way.logprobs.token_ids, other_way.logprobs.token_ids)
        torch.testing.assert_close(one_way.logprobs.logprobs, other_way.logprobs.logprobs, rtol=0, atol=2e-6)
