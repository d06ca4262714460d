"""DESIGN section 2, the filters: kept tokens, compared with the float64 reference token by token."""

import itertools

import numpy as np
import pytest
import torch

from calling import call, kept_sets, shown_values
from tokendraw import SamplingParams
from tokendraw_testing import reference
from tokendraw_testing.logits_families import FAMILIES, gaussian

SIZES = [1, 2, 3, 31, 1023, 1024, 1025, 5000, 10_007]
ROWS = 96


@pytest.fixture(scope="module")
def processed(load_native):
    return load_native("processed_logprobs")


def random_params(rng, size, seed=1):
    """Every filter is off in a part of the rows, so that all combinations occur."""

    def pick(*values):
        return values[rng.integers(len(values))]

    return SamplingParams(
        temperature=pick(0.3, 1.0, 2.0),
        top_k=pick(0, 0, 1, 2, 50, max(1, size // 2), size - 1, size),
        top_p=pick(1.0, 1.0, 0.1, 0.5, 0.9, 0.95, 0.999),
        min_p=pick(0.0, 0.0, 0.0, 0.01, 0.2, 1.0),
        filter_order=pick("top_k_first", "joint"),
        seed=seed,
        logprobs=-1,
    )


@pytest.mark.fast_first
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_kept_sets_equal_the_reference(processed, family, size):
    """Every filter and every order, over every shape of logits. Decisions within rounding of an edge are left out."""
    rng = np.random.default_rng(sum(map(ord, family)) * 10_000 + size)
    logits = np.stack([FAMILIES[family](rng, size) for _ in range(ROWS)])
    params = [random_params(rng, size) for _ in range(ROWS)]
    found = kept_sets(processed, logits, params)
    rows = [reference.prepare(x, p) for x, p in zip(logits, params, strict=True)]
    judged = [i for i, row in enumerate(rows) if row.certain]
    wrong = {i: params[i] for i in judged if not np.array_equal(found[i], rows[i].kept)}
    assert not wrong
    # seen from a maximum in the thousands, the middle of a Cauchy row is dense: many of its k-th values are edges
    assert len(judged) >= (0.7 if family == "cauchy" else 0.9) * ROWS


@pytest.mark.slow
def test_kept_sets_of_a_large_vocabulary_equal_the_reference(processed):
    """Where no sampler sorts: 128,256 tokens, in every shape, with every combination of filters."""
    size, families = 128_256, list(FAMILIES.values())
    rng = np.random.default_rng(8)
    logits = np.stack([families[i % len(families)](rng, size) for i in range(40)])
    params = [random_params(rng, size) for _ in range(40)]
    out = call(processed, logits, params)
    found = np.isfinite(shown_values(out))
    rows = [reference.prepare(x, p) for x, p in zip(logits, params, strict=True)]
    judged = [i for i, row in enumerate(rows) if row.certain]
    assert not {i: params[i] for i in judged if not np.array_equal(found[i], rows[i].kept)}
    assert len(judged) >= 25  # the spacing of 128,256 values comes close to EDGE
    for i in judged:
        token, lead = reference.draw(rows[i], 1, i)
        assert out.token_ids[i] == token or lead < reference.NEAR_TIE


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


def test_tokens_at_minus_infinity_are_never_kept(processed):
    """A structured-output mask stays a mask, also with top_k above the number of allowed tokens."""
    rng = np.random.default_rng(3)
    logits = np.full((ROWS, 2000), -np.inf, np.float32)
    allowed = [rng.choice(2000, 1 + i % 7, replace=False) for i in range(ROWS)]
    for row, ids in zip(logits, allowed, strict=True):
        row[ids] = gaussian(rng, len(ids))
    params = [random_params(rng, 2000) for _ in range(ROWS)]
    out = call(processed, logits, params)
    kept = np.isfinite(shown_values(out))
    assert not kept[np.isinf(logits)].any()
    assert all(int(token) in ids for token, ids in zip(out.token_ids, allowed, strict=True))
    rows = [reference.prepare(x, p) for x, p in zip(logits, params, strict=True)]
    assert all(np.array_equal(kept[i], row.kept) for i, row in enumerate(rows) if row.certain)
    assert out.valid.all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_filtered_like_its_float32_values(processed, dtype):
    rng = np.random.default_rng(4)
    logits = torch.from_numpy(np.stack([gaussian(rng, 3000) for _ in range(ROWS)])).to(dtype)
    params = [random_params(rng, 3000) for _ in range(ROWS)]
    kept = kept_sets(processed, logits, params)
    assert np.array_equal(kept, kept_sets(processed, logits.float(), params))
    rows = [reference.prepare(x.float(), p) for x, p in zip(logits, params, strict=True)]
    judged = [i for i, row in enumerate(rows) if row.certain]
    assert all(np.array_equal(kept[i], rows[i].kept) for i in judged)
    assert len(judged) >= 0.9 * ROWS


def test_the_kept_set_does_not_depend_on_the_order_of_the_vocabulary(processed):
    """Ties and tiles included: a permuted row keeps the permuted set."""
    rng = np.random.default_rng(5)
    logits = np.stack([FAMILIES["tied"](rng, 2500) for _ in range(ROWS)])
    params = [random_params(rng, 2500) for _ in range(ROWS)]
    order = rng.permutation(2500)
    certain = [reference.prepare(x, p).certain for x, p in zip(logits, params, strict=True)]
    straight, permuted = kept_sets(processed, logits, params), kept_sets(processed, logits[:, order], params)
    assert np.array_equal(straight[certain][:, order], permuted[certain])


def test_the_kept_set_does_not_depend_on_the_batch(processed):
    """A row is filtered alone as beside rows with other filters, whatever path the batch as a whole takes."""
    rng = np.random.default_rng(6)
    logits = np.stack([FAMILIES["zipf"](rng, 2500) for _ in range(ROWS)])
    params = [random_params(rng, 2500) for _ in range(ROWS)]
    together = kept_sets(processed, logits, params)
    for i in range(24):
        alone = kept_sets(processed, logits[i : i + 1], params[i : i + 1])
        if reference.prepare(logits[i], params[i]).certain:
            assert np.array_equal(alone[0], together[i]), params[i]


def test_the_reference_itself_agrees_with_a_brute_force_over_all_sets():
    """A search by definition over all sets has to find the reference's sets."""
    rng = np.random.default_rng(7)
    for _, k, p in itertools.product(range(20), (0, 1, 3), (0.3, 0.7, 1.0)):
        x = rng.integers(-3, 3, 7).astype(np.float64)
        row = reference.prepare(x, SamplingParams(top_k=k, top_p=p))
        survivors = [v for v in x if k == 0 or sum(w > v for w in x) < k]
        total = sum(np.exp(survivors))
        cuts = [
            v
            for v in set(survivors)
            if sum(np.exp(w) for w in survivors if w >= v) >= p * total * (1 - 1e-12)
        ]
        assert np.array_equal(row.kept, x >= (min(survivors) if p == 1 else max(cuts))), (x, k, p)
