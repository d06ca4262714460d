"""Designed rows lie on the threshold of their filter in every dtype, at any temperature."""

from dataclasses import replace

import numpy as np
import pytest

from tokendraw import SamplingParams
from tokendraw_native import plugin
from tokendraw_testing import Effort, reference
from tokendraw_testing.cases.factors import Site, covering, is_allowed, request_factors
from tokendraw_testing.cases.rows import DESIGNS, TOPS, crossed_row
from tokendraw_testing.cases.telling import LEAST_LEAD, LUCK, POSITION, make_near_tie, place_row, telling_rows
from tokendraw_testing.judges.expectation import expect
from tokendraw_testing.statistics.draws import coincidences

CAPABILITIES = plugin.tokendraw_describe().operations["sample"]
DTYPES = ("float32", "bfloat16", "float16")
SAMPLE = (reference.TOKEN, reference.TILE)


def rows(sizes=(2, 33, 1025, 5003), seed=0, tie_rule="value"):
    """The rows of a covering table."""
    rng = np.random.default_rng(seed)
    sites = [Site(dtype, size) for dtype in DTYPES for size in sizes]
    factors = {"site": sites, "design": DESIGNS, "top": TOPS, **request_factors(CAPABILITIES)}
    return [crossed_row(case, rng, tie_rule) for case in covering(factors, rng, is_allowed)]


def of_design(name, **fields):
    """Return the large enough rows of a design with these fields."""
    return [
        row
        for row in rows((1025, 5003))
        if row.design == name and all(getattr(row.params, key) == value for key, value in fields.items())
    ]


@pytest.mark.slow
def test_rounding_decides_the_filters_of_few_rows():
    made = [row for seed in range(3) for row in rows(seed=seed)]
    assert sum(row.is_settled for row in made) > 0.85 * len(made)


def test_sites_of_the_quick_effort_lie_in_every_class_of_widths_and_leave_remainders():
    sizes = Effort.of(quick=True, device_type="cpu").crossed_sizes
    assert [sum(low < size <= high for size in sizes) for low, high in ((0, 1024), (1024, 65536))] == [1, 2]
    assert [size > 131072 for size in sizes] == [False, False, False, False, True]
    assert all(size % 4 for size in sizes)


def test_a_sampler_that_keeps_exactly_k_drops_most_of_the_mass_of_rows_with_ties_at_k():
    for row in of_design("ties at k"):
        if row.params.top_k < 3000 and row.is_settled:
            exact = expect(row.x, row.params, "exact_k")
            assert exact.count == row.params.top_k < row.expected.count / 1.3
            assert row.expected.probabilities[row.expected.edge].sum() > 0.5


def test_the_levels_of_min_p_lie_on_either_side_of_the_threshold_within_a_step_of_bfloat16():
    looked = 0
    for row in of_design("edges of min-p", min_p=0.05):
        if row.params.temperature < 0.001 and row.site.dtype == "float16":
            continue  # below the subnormals of float16
        y, floor = row.prepared.y, np.log(0.05)
        near = np.abs(y - floor) < 0.01
        assert near.sum() > 100
        assert set(row.prepared.kept[near]) == {True, False}
        looked += 1
    assert looked


def test_a_plateau_that_crosses_p_is_kept_whole():
    for row in of_design("plateau at p"):
        kept = row.expected.probabilities[row.expected.edge].sum()
        assert row.is_settled
        assert row.params.top_p < 0.01 or kept > 0.3


@pytest.mark.parametrize("size", [33, 1025, 5003])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [0.003, 0.7, 1.7])
@pytest.mark.fast_first
def test_a_near_tie_turns_when_y_is_rounded_to_bfloat16(dtype, size, temperature):
    rng = np.random.default_rng(size)
    params = SamplingParams(temperature=temperature)
    made = [make_near_tie(Site(dtype, size), params, rng, "fp32") for _ in range(24)]
    result = [request for request in made if request is not None]
    assert len(result) >= 20
    turned = 0
    for request in result:
        prepared, seed = request.row.prepared, request.params.seed
        token, lead = reference.draw(prepared, seed, request.position)
        assert lead > LEAST_LEAD / 2 > 4 * reference.NEAR_TIE
        rounded = replace(prepared, y=as_bfloat16(prepared.y))
        turned += reference.draw(rounded, seed, request.position)[0] != token
    assert turned >= 5


def as_bfloat16(values):
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("size", [2100, 65_543])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_distinguish_the_noise_in_every_dtype_and_wide_vocabulary(dtype, size):
    for row in telling_rows(*SAMPLE):
        assert len({token for token, _ in drawn(row, dtype, size)}) == 2
    for row in telling_rows(*SAMPLE, LUCK):
        (narrow, lead), (wide, other) = drawn(row, dtype, size)
        assert narrow // reference.TILE_SIZE == wide // reference.TILE_SIZE == 0
        assert min(lead, other) > 100 * reference.NEAR_TIE


def drawn(row, dtype, size):
    """Token and lead of a row at either precision of the noise."""
    logits = place_row(row, Site(dtype, size).torch_dtype, size).double().numpy()
    prepared = reference.prepare(logits, SamplingParams())
    return [reference.draw(prepared, row.seed, POSITION, noise) for noise in ("fp32", "fp64")]


def test_noise_of_24_bits_never_draws_the_token_of_a_lucky_row():
    for row in list(telling_rows(*SAMPLE, LUCK))[::2]:
        w0, *_ = reference.random_words(row.seed, POSITION, np.arange(reference.TILE_SIZE), reference.TOKEN)
        u = ((w0 >> np.uint64(8)).astype(np.float64) + 0.5) / 2**24
        scores = row.logits[: reference.TILE_SIZE] - np.log(-np.log1p(-u))
        assert scores.argmax() != 0


class TestCoincidences:
    SIZE, ROWS = 20_011, 1100

    def tokens(self, seed):
        return np.random.default_rng(seed).integers(0, self.SIZE, self.ROWS)

    @pytest.mark.slow
    def test_independent_rows_are_seldom_suspicious(self):
        p_values = [coincidences(self.tokens(seed), 1 / self.SIZE, "tokens").p_value for seed in range(200)]
        assert sum(p < 0.01 for p in p_values) < 10
        assert min(p_values) > 1e-5

    @pytest.mark.parametrize("distance", [1, 3, 64, 300, 1000])
    def test_noise_shared_at_any_distance_is_seen(self, distance):
        tokens = self.tokens(0)
        verdict = coincidences(
            tokens[np.arange(self.ROWS) % distance] if distance > 1 else tokens // 2 * 0,
            1 / self.SIZE,
            "tokens",
        )
        assert verdict.p_value < 1e-12

    def test_ten_rows_with_shared_noise_are_seen_and_the_distance_is_named(self):
        tokens = self.tokens(0)
        tokens[1000:1010] = tokens[:10]
        verdict = coincidences(tokens, 1 / self.SIZE, "tokens")
        assert verdict.p_value < 1e-12
        assert verdict.worst == "1000 rows apart: the same tokens 10 times, expected 0.00"
