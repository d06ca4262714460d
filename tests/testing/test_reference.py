"""The float64 reference equals a model by sets of values, and the expected distribution of a row the reference."""

import itertools
import math

import numpy as np
import pytest

from tokendraw import SamplingParams
from tokendraw_testing import reference, reference_walk
from tokendraw_testing.cases.rows import special_rows
from tokendraw_testing.expectation import expect
from tokendraw_testing.logits_families import FAMILIES, gaussian
from tokendraw_testing.reference import EDGE, TILE_SIZE, gumbel

SIZES = (2, 31, 96, 97, 33, 95, 1025, 96)
REQUESTS = [
    SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m, filter_order=order)
    for t, k, p, m, order in itertools.product(
        (0.003, 1.0, 12.0),
        (0, 1, 40, 95),
        (1.0, 0.9999, 0.5, 1e-30),
        (0.0, 0.05, 1.0),
        ("top_k_first", "joint"),
    )
]


def steps(rng, size):
    """Draw values on both sides of rounding, at the ends of float32, and merged by the temperature."""
    few = np.array([0, -1e-7, -1e-6, -2e-6, -1, -1 - 1e-6, 3e38, -3e38, 1e-45], np.float32)
    return rng.choice(few, size)


def levels(rng, size):
    return rng.integers(-3, 3, size).astype(np.float32)


def poisoned(rng, size):
    return list(special_rows(rng, max(64, size)).values())[rng.integers(11)]


# A sampling step by sets of values, as in the contract: slow, and without sorting.


def prepared(logits, params):
    """Return (x, y, kept, certain) of a random row."""
    x = np.where(np.isnan(logits), -np.inf, np.asarray(logits, np.float64))
    if np.isinf(x.max()):
        y = np.where(x == np.inf, 0.0, -np.inf)
    else:
        with np.errstate(over="ignore"):
            y = (x - x.max()) / params.temperature
    thresholds, certain = [], True
    if params.min_p > 0:
        thresholds.append(min(float(np.log(params.min_p)), 0.0))
        certain = not near(y, thresholds[0]).any()
    if 0 < params.top_k < len(y):
        at_least = {value: (y >= value).sum() for value in set(y.tolist())}
        thresholds.append(max(value for value, count in at_least.items() if count >= params.top_k))
    kept = y >= max(thresholds, default=-np.inf)
    if params.top_p < 1:
        counted = y if params.filter_order == "joint" else y[kept]
        values = sorted(set(counted.tolist()))
        above = {value: np.exp(counted[counted > value]).sum() / np.exp(counted).sum() for value in values}
        inside = [value for value in values if above[value] < params.top_p or value == values[-1]]
        contested = [value for value in values[:-1] if abs(above[value] - params.top_p) <= EDGE]
        thresholds.append(inside[0])
        kept, certain = kept & (y >= inside[0]), certain and not contested
    for threshold in thresholds:
        certain = certain and not (near(y, threshold) & (y < threshold)).any()
    merged = len(set(x[np.isfinite(y)].tolist())) != len(set(y[np.isfinite(y)].tolist()))
    return x, y, kept & (y > -np.inf), certain and not merged


def near(y, threshold):
    """Return a mask of the tokens next to a threshold, without tokens equal to the threshold."""
    if threshold == -np.inf:
        return np.zeros(y.shape, bool)
    return (y != threshold) & (np.abs(y - threshold) <= EDGE * max(1.0, abs(threshold)))


def drawn(y, kept, seed, position, streams, dtype):
    """The token, and the distance of the runner-up."""
    ids = np.flatnonzero(kept)
    masses = {tile: np.exp(y[ids[ids // TILE_SIZE == tile]]).sum() for tile in sorted(set(ids // TILE_SIZE))}
    with np.errstate(divide="ignore"):
        scores = np.log(list(masses.values())) + gumbel(seed, position, list(masses), streams[1], dtype)
    ids = ids[ids // TILE_SIZE == list(masses)[scores.argmax()]]
    keys = y[ids] + gumbel(seed, position, ids, streams[0], dtype)
    return ids[keys.argmax()], min(
        np.diff(np.sort(s)[-2:])[0] if len(s) > 1 else np.inf for s in (scores, keys)
    )


@pytest.mark.parametrize("family", [*FAMILIES.values(), steps, levels, poisoned])
@pytest.mark.fast_first
def test_rows_are_prepared_and_drawn_as_sets_of_values_say(family):
    rng = np.random.default_rng(7)
    certain = 0
    for i, params in enumerate(rng.permutation(np.array(REQUESTS, object))[:160]):
        logits = family(rng, SIZES[i % len(SIZES)])
        row = reference.prepare(logits, params)
        if row.empty:
            continue
        x, y, kept, is_certain = prepared(logits, params)
        assert np.array_equal(row.x, x)
        assert np.array_equal(row.y, y)
        assert row.certain == is_certain
        if not is_certain:
            continue
        certain += 1
        assert np.array_equal(row.kept, kept)
        seed, dtype = int(rng.integers(2**63)), ("fp32", "fp64")[i % 2]
        token, lead = drawn(y, kept, seed, i, (5, 6), dtype)
        result, found_lead = reference.draw(row, seed, i, dtype, (5, 6))
        assert result == token
        assert found_lead == pytest.approx(lead, abs=1e-9)
    assert certain > 10


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_draws_of_many_rows_together_are_those_of_each_alone(dtype):
    rng = np.random.default_rng(9)
    rows = [
        reference.prepare(
            gaussian(rng, int(rng.integers(1, 4000))), REQUESTS[int(rng.integers(len(REQUESTS)))]
        )
        for _ in range(40)
    ]
    rows.append(reference.prepare(gaussian(rng, 50), SamplingParams(temperature=0.0)))
    rows.append(reference.prepare(np.full(50, np.nan), SamplingParams()))
    seeds = [int(seed) for seed in rng.integers(-(2**63), 2**63, len(rows))]
    alone = [
        reference.draw(row, seed, 3 * i, dtype) for i, (row, seed) in enumerate(zip(rows, seeds, strict=True))
    ]
    draws = [reference.drawing(row, 3 * i) for i, row in enumerate(rows)]
    assert reference.together(draws, seeds, dtype) == alone


@pytest.mark.parametrize("mode", ["rejection", "coupled", "block"])
@pytest.mark.parametrize("kind", ["probs", "logits", "chosen"])
def test_walks_of_many_requests_together_are_those_of_each_alone(kind, mode):
    rng = np.random.default_rng(10)
    alone, walks, seeds = [], [], []
    for i in range(40):
        size, count = int(rng.integers(2, 1300)), int(rng.integers(0, 6))
        params = SamplingParams(temperature=float(i % 5 > 0), top_k=i % 3 * 20, seed=i - 20)
        target = np.stack([gaussian(rng, size) for _ in range(count + 1)])
        rows = [reference.prepare(x, params) for x in target[:count]]
        probs = np.array([reference_walk.distribution(row) for row in rows]).reshape(count, size)
        drafts = [int(rng.choice([x.argmax(), 0, size])) for x in target[:count]]
        given = {"probs": {"probs": probs}, "logits": {"logits": target}, "chosen": {}}[kind]
        request = (drafts, params, range(i, i + count + 1))
        alone.append(reference_walk.walk(target, *request, mode=mode, **given))
        ready = [reference.prepare(x, params) for x in target]
        given = {"logits": ready} if kind == "logits" else given
        walks.append(reference_walk.walking(ready, *request, mode=mode, **given))
        seeds.append(params.seed)
    assert reference.together(walks, seeds) == alone
    assert len({len(answer.tokens) for answer in alone}) > 2


@pytest.mark.parametrize(
    ("filters", "is_kept"),
    [
        ({"top_n_sigma": 0.8}, lambda y, p: y >= -0.8 * y[np.isfinite(y)].std()),
        ({"epsilon_cutoff": 0.05}, lambda y, p: p >= 0.05),
        ({"eta_cutoff": 0.3}, lambda y, p: p >= np.sqrt(0.3) * np.exp((p * np.log(p + (p == 0))).sum())),
        ({"p_less": 1}, lambda y, p: p >= (p * p).sum()),
        ({"p_less": 1, "epsilon_cutoff": 0.3}, lambda y, p: p >= max(0.3, (p * p).sum())),
        ({"epsilon_cutoff": 1.0}, lambda y, p: y == 0),
    ],
)
def test_a_row_keeps_what_the_floors_of_its_filters_keep(filters, is_kept):
    x = np.array([1.0, 0.2, 0.2, -0.5, -1.5, -np.inf, -3.0, 0.9])
    row = reference.prepare(x, SamplingParams(temperature=0.8, filters=filters))
    y = (x - x.max()) / 0.8
    np.testing.assert_array_equal(row.kept, is_kept(y, np.exp(y) / np.exp(y).sum()))
    assert row.certain
    assert 0 < row.kept.sum() < len(x)


# The expected distribution of a row: groups of ties, both tie rules, uncertain rows.

EXPECTED_REQUESTS = [
    SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m, filter_order=order)
    for t, k, p, m, order in itertools.product(
        (0.0, 0.5, 1.0), (0, 1, 7, 10**6), (1.0, 0.8, 0.3), (0.0, 0.2), ("top_k_first", "joint")
    )
]


@pytest.mark.parametrize("family", FAMILIES)
def test_with_ties_by_value_the_expectation_is_the_reference(family):
    rng = np.random.default_rng(4)
    judged = 0
    for params in EXPECTED_REQUESTS:
        logits = FAMILIES[family](rng, 300)
        row, result = reference.prepare(logits, params), expect(logits, params)
        if not (row.certain and result.certain):
            continue
        judged += 1
        assert np.array_equal(result.kept, row.kept)
        assert (result.share, result.in_part.any()) == (1.0, False)
        processed = np.exp(reference.values(row, int(np.argmax(row.x)), "processed_logprobs"))
        np.testing.assert_allclose(result.probabilities, processed, atol=1e-12)
        assert result.log_share == pytest.approx(reference.log_kept_mass(row), abs=1e-12)
        assert result.possible[row.kept].all()
    assert judged > 0.6 * len(EXPECTED_REQUESTS)


def brute_force(probabilities, top_k, top_p):
    """Return the kept values under ``exact_k``, by counting tokens down from the largest."""
    values = sorted(probabilities, reverse=True)
    if top_k:
        values = values[:top_k]
    total, kept, mass = sum(values), [], 0.0
    for value in values:
        if top_p < 1 and kept and mass >= top_p * total - 1e-12:
            break
        kept.append(value)
        mass += value
    return kept


@pytest.mark.parametrize(
    ("top_k", "top_p"), [(1, 1.0), (3, 1.0), (5, 1.0), (0, 0.35), (0, 0.65), (4, 0.7), (6, 0.95)]
)
def test_exact_k_keeps_as_many_of_the_last_group_as_there_is_room_for(top_k, top_p):
    probabilities = np.array([0.05, 0.3, 0.1, 0.1, 0.3, 0.1, 0.05])
    result = expect(np.log(probabilities), SamplingParams(top_k=top_k, top_p=top_p), "exact_k")
    kept = brute_force(probabilities, top_k, top_p)
    assert result.kept.sum() - round(result.in_part.sum() * (1 - result.share)) == len(kept)
    for value in set(probabilities):
        share = kept.count(value) * value / sum(kept)
        assert result.probabilities[probabilities == value].sum() == pytest.approx(share)
    assert result.log_share == pytest.approx(math.log(sum(kept)))


def test_a_nucleus_edge_within_rounding_is_a_doubt_and_both_answers_are_possible():
    logits = np.log([0.5, 0.3, 0.2])
    near, clear = (expect(logits, SamplingParams(top_p=p)) for p in (0.8 + 1e-9, 0.81))
    assert not near.certain
    assert near.possible.tolist() == [True, True, True]
    assert clear.certain
    assert expect(logits, SamplingParams(top_p=0.79)).possible.tolist() == [True, True, False]


def test_kept_tokens_without_any_mass_in_float64_are_kept_all_the_same():
    result = expect(np.array([0.0, -2000.0, -3000.0]), SamplingParams(top_k=2))
    assert result.kept.tolist() == [True, True, False]
    assert result.probabilities.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("logits", "probabilities"),
    [
        ([math.nan, math.nan], [1, 0]),
        ([-math.inf, -math.inf], [1, 0]),
        ([math.inf, 3.0, math.inf, math.nan], [0.5, 0, 0.5, 0]),
        ([math.nan, 1.0, -math.inf], [0, 1, 0]),
    ],
)
def test_special_rows_have_the_distribution_of_the_contract(logits, probabilities):
    assert expect(np.array(logits), SamplingParams()).probabilities.tolist() == probabilities
