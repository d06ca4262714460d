"""The float64 reference equals a model by sets of values, for a row alone and for many rows at once."""

import itertools

import numpy as np
import pytest

from numpy_sampler import drawn, prepared
from tokendraw import SamplingParams
from tokendraw_testing import reference, reference_walk
from tokendraw_testing.cases.rows import special_rows
from tokendraw_testing.judges.expectation import expect
from tokendraw_testing.logits_families import FAMILIES, gaussian

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


def test_one_reading_of_a_row_serves_every_request():
    rng = np.random.default_rng(8)
    logits = gaussian(rng, 1100)
    own = reference.SortedLogits.of(logits)
    for params in REQUESTS[::7]:
        once, anew = reference.prepare(own, params), reference.prepare(logits, params)
        assert np.array_equal(once.kept, anew.kept)
        assert np.array_equal(once.y, anew.y)
        assert np.array_equal(expect(own, params).probabilities, expect(logits, params).probabilities)


def test_a_prepared_row_is_a_copy():
    logits = np.array([0.0, 1.0, 2.0])
    row = reference.prepare(logits, SamplingParams())
    logits[:] = np.nan
    assert row.x.tolist() == [0.0, 1.0, 2.0]


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


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (8191,), (8193,), (3, 6000)])
def test_philox_in_blocks_is_philox_of_each_counter(shape):
    rng = np.random.default_rng(11)
    counter = [rng.integers(0, 2**32, shape, np.uint64) for _ in range(4)]
    for key in ((5, 7), tuple(rng.integers(0, 2**32, (2, *shape), np.uint64))):
        result = reference.philox4x32(counter, key)
        assert all(np.shape(word) == shape for word in result)
        flat = [np.broadcast_to(x, shape).ravel() for x in (*counter, *key, *result)]
        for c0, c1, c2, c3, k0, k1, *words in zip(
            *(x[:: max(1, len(x) // 40)].tolist() for x in flat), strict=True
        ):
            assert reference.inverse_philox4x32(words, (k0, k1)) == (c0, c1, c2, c3)


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
