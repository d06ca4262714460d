"""The tokens that filters from moments keep, against float64, in draws, verifications and scores of native."""

import math

import numpy as np
import pytest
import torch

import tokendraw
from tokendraw import Drafts, Need, SamplingMetadata, SamplingParams
from tokendraw.filters import RowMoments
from tokendraw.row_parameters import RowParameters
from tokendraw_native.buffers import Buffers
from tokendraw_native.moments import row_moments
from tokendraw_native.row_stats import weights
from tokendraw_native.rows import load
from tokendraw_testing import logits_families

INF, NAN = math.inf, math.nan
V = 1500


@pytest.fixture(scope="module")
def native():
    need = Need(threshold=True, logprobs_mode="processed_logprobs")
    return tokendraw.load_sampler("native", device="cpu", need=need)


def rows_of(family, count, size=V):
    rng = np.random.default_rng(sum(map(ord, family)))
    return torch.from_numpy(np.stack([logits_families.FAMILIES[family](rng, size) for _ in range(count)]))


def batch(*requests, **options):
    return SamplingMetadata.from_params(requests, **options)


def kept(sampler, logits, *requests):
    return tokendraw.kept_mask(logits, sampler.sample(logits, batch(*requests)).threshold).numpy()


def moments_of(x, temperature):
    """Return y and its moments in float64, by the names of the moments."""
    x = np.asarray(x, np.float64)
    y = ((x - x.max()) / temperature)[np.isfinite(x)]
    mass = np.exp(y).sum()
    p = np.exp(y) / mass
    entropy = -(p[p > 0] * np.log(p[p > 0])).sum()
    values = len(y), y.mean(), y.std(), np.log(mass), entropy, (p * p).sum()
    return (x - x.max()) / temperature, dict(zip(tokendraw.plugin.MOMENTS, values, strict=True))


def floor_of(name, value, m):
    """Return the floor of a shipped filter in float64."""
    with np.errstate(divide="ignore"):
        floor = {
            "top_n_sigma": -value * m["std"],
            "epsilon_cutoff": np.log(value) + m["log_mass"],
            "eta_cutoff": np.log(min(value, math.sqrt(value) * math.exp(-m["entropy"]))) + m["log_mass"],
            "p_less": np.log(m["collision"]) + m["log_mass"],
        }[name]
    return min(floor, 0.0)


FILTERS = [
    *[("top_n_sigma", n) for n in (0.1, 1.0, 2.5)],
    *[("epsilon_cutoff", e) for e in (3e-4, 0.02)],
    *[("eta_cutoff", e) for e in (3e-4, 0.02)],
    ("p_less", 1.0),
]


@pytest.mark.parametrize("family", ["gaussian", "zipf", "bimodal", "cauchy", "tied"])
@pytest.mark.parametrize(("name", "value"), FILTERS)
def test_a_shipped_filter_keeps_what_its_definition_keeps(native, family, name, value):
    temperatures = (0.05, 0.7, 1.0, 4.0, 100.0)
    logits = rows_of(family, len(temperatures))
    found = kept(
        native, logits, *[SamplingParams(temperature=t, filters={name: value}) for t in temperatures]
    )
    for x, t, keeps in zip(logits.numpy(), temperatures, found, strict=True):
        y, moments = moments_of(x, t)
        floor = floor_of(name, value, moments)
        is_certain = np.abs(y - floor) > 1e-5 * max(1.0, abs(floor))
        assert keeps.any()
        np.testing.assert_array_equal(keeps[is_certain], (y >= floor)[is_certain])
        assert is_certain.mean() > 0.9


def test_moments_are_those_of_float64_rounded_once():
    logits = rows_of("gaussian", 3)
    logits[0, ::3], logits[1, 5] = -INF, NAN
    temperatures = [0.3, 1.0, 30.0]
    params = RowParameters.of(batch(*[SamplingParams(temperature=t) for t in temperatures]), 3, logits.device)
    buffers = Buffers(logits.device)
    rows = load(logits, buffers)
    weight, _ = weights(rows, params, buffers)
    found = row_moments(rows, weight, params.inverse_temperature, tokendraw.plugin.MOMENTS, buffers)
    for i, t in enumerate(temperatures):
        _, moments = moments_of(logits[i].nan_to_num(nan=-INF, neginf=-INF).numpy(), t)
        for name, value in moments.items():
            column = getattr(found, name)
            assert (column.shape, column.dtype) == ((3,), torch.float32), name
            assert column[i] == pytest.approx(value, rel=1e-6), (name, t)


def test_moments_that_nobody_reads_are_not_computed():
    logits = rows_of("gaussian", 1)
    buffers = Buffers(logits.device)
    rows, params = load(logits, buffers), RowParameters.of(batch(SamplingParams()), 1, logits.device)
    weight, _ = weights(rows, params, buffers)
    found = row_moments(rows, weight, params.inverse_temperature, ("entropy",), buffers)
    assert found == RowMoments(entropy=found.entropy)


SHARES = torch.tensor([[0.4, 0.2, 0.2, 0.1, 0.1]]).log()
HEAD, THREE, ALL = [True, *[False] * 4], [True] * 3 + [False] * 2, [True] * 5


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({}, THREE),
        ({"top_p": 0.45}, HEAD),  # 0.4 is half of the 0.8 that are left
        ({"top_p": 0.45, "filter_order": "joint"}, THREE),  # and less than 0.45 of all
        ({"top_k": 1}, HEAD),
        ({"top_k": 4}, THREE),
        ({"min_p": 0.6}, HEAD),
        ({"min_p": 0.1}, THREE),
        ({"top_k": 2}, THREE),  # a tie
        ({"temperature": 0.0}, HEAD),
    ],
)
def test_floors_come_before_the_other_filters(native, options, needed):
    params = SamplingParams(filters={"epsilon_cutoff": 0.15}, **options)
    assert kept(native, SHARES, params)[0].tolist() == needed


def test_the_floor_is_that_of_the_whole_row_whatever_top_k_leaves(native):
    """After top-k 2 the entropy, and with it the cutoff, would be another one."""
    x = torch.tensor([[0.5, 0.3, 0.12, 0.08]]).log()
    p = x.exp()[0]
    eta = math.sqrt(0.2) * math.exp(float((p * p.log()).sum()))
    assert 0.08 < eta < 0.2
    alone = kept(native, x, SamplingParams(filters={"eta_cutoff": 0.2}))[0]
    assert alone.tolist() == (p >= eta).tolist()
    both = kept(native, x, SamplingParams(filters={"eta_cutoff": 0.2}, top_k=2))[0]
    assert both.tolist() == [True, True, False, False]


def test_the_strictest_of_several_filters_decides(native):
    logits = rows_of("gaussian", 1)
    filters = {"top_n_sigma": 1.0, "epsilon_cutoff": 0.001}
    each = [kept(native, logits, SamplingParams(filters={name: value}))[0] for name, value in filters.items()]
    assert each[0].sum() != each[1].sum()
    np.testing.assert_array_equal(kept(native, logits, SamplingParams(filters=filters))[0], each[0] & each[1])


def test_top_n_sigma_keeps_the_same_at_any_temperature(native):
    temperatures = (1e-3, 0.2, 1.0, 50.0, 1e6)
    logits = rows_of("zipf", 1).expand(len(temperatures), V)
    found = kept(
        native, logits, *[SamplingParams(temperature=t, filters={"top_n_sigma": 1.2}) for t in temperatures]
    )
    assert (found == found[0]).all()
    assert 1 <= found[0].sum() < V


@pytest.mark.parametrize(("name", "value"), FILTERS)
@pytest.mark.parametrize(
    ("fill", "at", "token", "valid"),
    [
        (NAN, {}, 0, False),
        (-INF, {}, 0, False),
        (0.0, {2: INF}, 2, True),
        (NAN, {2: INF}, 2, False),
        (-INF, {7: 1.0}, 7, True),
        (0.0, {}, None, True),
        (3e38, {5: -3e38}, None, True),
    ],
)
def test_special_rows_draw_as_without_the_filter(native, name, value, fill, at, token, valid):
    logits = torch.full((2, 9), fill)
    logits[1] = torch.arange(9.0)
    for column, special in at.items():
        logits[0, column] = special
    alone, other = SamplingParams(seed=5), SamplingParams(seed=6)
    filtered = SamplingParams(seed=5, filters={name: value})
    plain = native.sample(logits, batch(alone, other, positions=[0, 1]))
    out = native.sample(logits, batch(filtered, other, positions=[0, 1]))
    assert out.token_ids.tolist() == plain.token_ids.tolist()
    assert out.valid.tolist() == plain.valid.tolist() == [valid, True]
    assert token is None or out.token_ids[0] == token
    is_special = fill != 3e38  # of which -3e38 lies below every floor
    assert not is_special or torch.equal(out.threshold.nan_to_num(), plain.threshold.nan_to_num())


def test_a_vocabulary_of_one_gives_its_token(native):
    requests = [SamplingParams(filters={name: value}) for name, value in FILTERS]
    out = native.sample(torch.full((len(requests), 1), 3.0), batch(*requests))
    assert out.token_ids.tolist() == [0] * len(requests)


def test_an_empty_batch_gives_empty_tensors(native):
    nothing = SamplingMetadata(filters={name: torch.empty(0) for name, _ in FILTERS})
    out = native.sample(torch.empty(0, 5), nothing)
    assert out.token_ids.shape == out.threshold.shape == (0,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_measured_as_they_are(native, dtype):
    logits = rows_of("gaussian", 2).to(dtype)
    requests = [SamplingParams(temperature=0.6, filters=f) for f in ({"top_n_sigma": 1.3}, {"p_less": 1})]
    np.testing.assert_array_equal(kept(native, logits, *requests), kept(native, logits.float(), *requests))


def test_a_row_keeps_the_same_set_in_any_batch(native):
    logits = rows_of("gaussian", 5)
    requests = [
        SamplingParams(temperature=0.5 + i, filters={name: value})
        for i, (name, value) in enumerate(FILTERS[:5])
    ]
    whole = native.sample(logits, batch(*requests)).threshold
    for i, params in enumerate(requests):
        assert native.sample(logits[i : i + 1], batch(params)).threshold[0] == whole[i]


class TestWhatFollows:
    """Log-probabilities, kept mass, scores and verifications follow from the threshold."""

    REQUESTS = (
        SamplingParams(temperature=0.8, filters={"top_n_sigma": 1.5}, logprobs=-1, seed=1),
        SamplingParams(filters={"epsilon_cutoff": 0.004}, top_p=0.9, logprobs=-1, seed=2),
        SamplingParams(temperature=1.5, logprobs=-1, seed=3),
    )

    def test_processed_logprobs_are_those_of_the_kept_set(self, native):
        logits = rows_of("gaussian", 3)
        out = native.sample(logits, batch(*self.REQUESTS, positions=[4, 5, 6]))
        keeps = tokendraw.kept_mask(logits, out.threshold)
        temperature = torch.tensor([[0.8], [1.0], [1.5]]).double()
        y = logits.double() / temperature
        needed = y.masked_fill(~keeps, -INF).log_softmax(-1)
        ids, values = out.logprobs.token_ids, out.logprobs.logprobs.double()
        assert torch.allclose(values, needed.gather(-1, ids), atol=1e-5)
        share = y.softmax(-1).masked_fill(~keeps, 0.0).sum(-1).log()
        assert torch.allclose(out.log_kept_mass.double(), share, atol=1e-5)
        assert keeps.sum(-1).tolist()[2] == V > max(keeps.sum(-1).tolist()[:2])

    def test_a_score_looks_at_the_values_of_the_draw(self, native):
        logits = rows_of("gaussian", 3)
        metadata = batch(*self.REQUESTS, positions=[4, 5, 6])
        out = native.sample(logits, metadata)
        scored = native.score(logits, out.token_ids, metadata)
        assert torch.equal(scored.logprobs.logprobs[:, 0], out.logprobs.logprobs[:, 0])
        assert torch.equal(scored.threshold, out.threshold)
        p = tokendraw.kept_mask(logits, out.threshold) * torch.softmax(
            logits.double() / torch.tensor([[0.8], [1.0], [1.5]]), -1
        )
        p /= p.sum(-1, keepdim=True)
        assert torch.allclose(scored.entropy.double(), -torch.special.xlogy(p, p).sum(-1), atol=1e-4)

    def test_a_coupled_verification_emits_the_tokens_of_the_draw(self, native):
        logits = rows_of("gaussian", 3)
        params = [SamplingParams(temperature=0.8, filters={"top_n_sigma": 0.4, "p_less": 1}, seed=1)]
        drawn = native.sample(logits, batch(*params, row_index=[0, 0, 0], positions=[4, 5, 6]))
        drafts = Drafts.from_lists([drawn.token_ids[:2].tolist()])
        out = native.verify(logits, drafts, batch(*params, positions=[4]), mode="coupled")
        assert out.token_ids.tolist() == [drawn.token_ids.tolist()]
        assert torch.equal(out.threshold, drawn.threshold)

    def test_a_dropped_draft_is_rejected_and_replaced_by_a_kept_token(self, native):
        logits = rows_of("gaussian", 2)
        params = [SamplingParams(filters={"top_n_sigma": 0.5}, seed=9)]
        keeps = kept(native, logits, *[SamplingParams(filters={"top_n_sigma": 0.5})] * 2)
        dropped = int(np.flatnonzero(~keeps[0])[0])
        for mode in ("rejection", "block"):
            out = native.verify(
                logits, Drafts.from_lists([[dropped]]), batch(*params, positions=[0]), mode=mode
            )
            assert out.num_accepted.tolist() == [0]
            assert keeps[0, out.token_ids[0, 0]]

    def test_the_draw_is_from_the_renormalised_kept_tokens(self, native):
        """Chi-square of 4,000 seeded draws: a false alarm in 10^6 of seeds, which are fixed."""
        from scipy.stats import chisquare

        x = 2 * torch.randn(1, 40, generator=torch.Generator().manual_seed(3))
        count = 4000
        params = [
            SamplingParams(temperature=1.3, filters={"epsilon_cutoff": 0.03}, seed=i) for i in range(count)
        ]
        out = native.sample(x.expand(count, -1), batch(*params, positions=[0] * count))
        keeps = tokendraw.kept_mask(x, out.threshold[:1])[0]
        p = (x[0].double() / 1.3).masked_fill(~keeps, -INF).softmax(-1)
        counts = torch.bincount(out.token_ids, minlength=40).double()
        assert not counts[~keeps].any()
        assert chisquare(counts[keeps].numpy(), (count * p[keeps]).numpy()).pvalue > 1e-6
