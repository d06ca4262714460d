"""Moments in float64, worked examples of filters beside others, and what follows; check_filter compares kept sets."""

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


def rows_of(count):
    rng = np.random.default_rng(0)
    return torch.from_numpy(np.stack([logits_families.gaussian(rng, V) for _ in range(count)]))


def batch(*requests, **options):
    return SamplingMetadata.from_params(requests, **options)


def kept(sampler, logits, *requests):
    return tokendraw.kept_mask(logits, sampler.sample(logits, batch(*requests)).threshold).numpy()


def moments_of(x, temperature):
    """Return the moments of a row in float64, by their names."""
    x = np.asarray(x, np.float64)
    y = ((x - x.max()) / temperature)[np.isfinite(x)]
    mass = np.exp(y).sum()
    p = np.exp(y) / mass
    entropy = -(p[p > 0] * np.log(p[p > 0])).sum()
    values = len(y), y.mean(), y.std(), np.log(mass), entropy, (p * p).sum()
    return dict(zip(tokendraw.plugin.MOMENTS, values, strict=True))


def test_moments_are_those_of_float64_rounded_once():
    logits = rows_of(3)
    logits[0, ::3], logits[1, 5] = -INF, NAN
    temperatures = [0.3, 1.0, 30.0]
    params = RowParameters.of(batch(*[SamplingParams(temperature=t) for t in temperatures]), 3, logits.device)
    buffers = Buffers(logits.device)
    rows = load(logits, buffers)
    weight, _ = weights(rows, params, buffers)
    found = row_moments(rows, weight, params.inverse_temperature, tokendraw.plugin.MOMENTS, buffers)
    for i, t in enumerate(temperatures):
        moments = moments_of(logits[i].nan_to_num(nan=-INF, neginf=-INF).numpy(), t)
        for name, value in moments.items():
            column = getattr(found, name)
            assert (column.shape, column.dtype) == ((3,), torch.float32), name
            assert column[i] == pytest.approx(value, rel=1e-6), (name, t)


def test_moments_that_nobody_reads_are_not_computed():
    logits = rows_of(1)
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


def test_the_strictest_of_several_filters_decides(native):
    logits = rows_of(1)
    filters = {"top_n_sigma": 1.0, "epsilon_cutoff": 0.001}
    each = [kept(native, logits, SamplingParams(filters={name: value}))[0] for name, value in filters.items()]
    assert each[0].sum() != each[1].sum()
    np.testing.assert_array_equal(kept(native, logits, SamplingParams(filters=filters))[0], each[0] & each[1])


def test_an_empty_batch_gives_empty_tensors(native):
    nothing = SamplingMetadata(filters=dict.fromkeys(("top_n_sigma", "p_less"), torch.empty(0)))
    out = native.sample(torch.empty(0, 5), nothing)
    assert out.token_ids.shape == out.threshold.shape == (0,)


class TestWhatFollows:
    """Scores and verifications follow from the threshold."""

    REQUESTS = (
        SamplingParams(temperature=0.8, filters={"top_n_sigma": 1.5}, logprobs=-1, seed=1),
        SamplingParams(filters={"epsilon_cutoff": 0.004}, top_p=0.9, logprobs=-1, seed=2),
        SamplingParams(temperature=1.5, logprobs=-1, seed=3),
    )

    def test_a_score_looks_at_the_values_of_the_draw(self, native):
        logits = rows_of(3)
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
        logits = rows_of(3)
        params = [SamplingParams(temperature=0.8, filters={"top_n_sigma": 0.4, "p_less": 1}, seed=1)]
        drawn = native.sample(logits, batch(*params, row_index=[0, 0, 0], positions=[4, 5, 6]))
        drafts = Drafts.from_lists([drawn.token_ids[:2].tolist()])
        out = native.verify(logits, drafts, batch(*params, positions=[4]), mode="coupled")
        assert out.token_ids.tolist() == [drawn.token_ids.tolist()]
        assert torch.equal(out.threshold, drawn.threshold)

    def test_a_dropped_draft_is_rejected_and_replaced_by_a_kept_token(self, native):
        logits = rows_of(2)
        params = [SamplingParams(filters={"top_n_sigma": 0.5}, seed=9)]
        keeps = kept(native, logits, *[SamplingParams(filters={"top_n_sigma": 0.5})] * 2)
        dropped = int(np.flatnonzero(~keeps[0])[0])
        for mode in ("rejection", "block"):
            out = native.verify(
                logits, Drafts.from_lists([[dropped]]), batch(*params, positions=[0]), mode=mode
            )
            assert out.num_accepted.tolist() == [0]
            assert keeps[0, out.token_ids[0, 0]]
