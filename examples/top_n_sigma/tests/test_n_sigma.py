"""The filter: kept sets against numpy, and rows without the filter."""

import dataclasses

import numpy as np
import pytest
import torch

import tokendraw
from tokendraw import (
    BatchFacts,
    InvalidInputError,
    InvalidParameterError,
    SamplerUnavailableError,
    SamplingMetadata,
    SamplingParams,
)
from tokendraw_testing import logits_families, reference
from top_n_sigma_tokendraw.metadata import TopNSigmaMetadata

NAN, INF = float("nan"), float("inf")
V = 3000


@pytest.fixture(scope="module")
def sampler():
    return tokendraw.load_sampler("top-n-sigma", device="cpu", logprobs_mode="processed_logprobs")


def with_n_sigma(params, n_sigma, **rest):
    if any(p.seed is not None for p in params):
        rest.setdefault("positions", list(range(len(params))))
    return TopNSigmaMetadata.of(SamplingMetadata.from_params(params, **rest), n_sigma)


def kept(output, rows, size):
    """[rows, size] bool, read off the log-probabilities of all tokens."""
    found = np.zeros((rows, size), bool)
    ids, shown = output.logprobs.token_ids[:, 1:].numpy(), output.logprobs.logprobs[:, 1:].numpy()
    np.put_along_axis(found, ids, np.isfinite(shown), axis=1)
    return found


def within(x, n):
    """Return the tokens within n standard deviations of the largest, by numpy in float64, and whether the border is
    clear.
    """
    x = np.asarray(x, np.float64)
    below = np.where(np.isnan(x), -INF, x) - x[np.isfinite(x)].max()
    edge = -n * x[np.isfinite(x)].std()
    return below >= edge, np.abs(below - edge).min() > 1e-9


def rows_of(family, count, size=V):
    rng = np.random.default_rng(sum(map(ord, family)))
    return np.stack([logits_families.FAMILIES[family](rng, size) for _ in range(count)])


@pytest.mark.parametrize("family", logits_families.FAMILIES)
def test_a_row_keeps_tokens_within_n_standard_deviations_of_its_maximum(sampler, family):
    logits, n_sigma = rows_of(family, 24), [0.1, 0.5, 1.0, 1.7, 3.0, 100.0] * 4
    metadata = with_n_sigma([SamplingParams(logprobs=-1)] * 24, n_sigma)
    found = kept(sampler.sample(torch.from_numpy(logits), metadata), 24, V)
    for row, n in enumerate(n_sigma):
        wanted, clear = within(logits[row], n)
        assert clear or family == "flat"
        np.testing.assert_array_equal(found[row], wanted if family != "flat" else np.ones(V, bool))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_measured_as_they_are(sampler, dtype):
    logits = torch.from_numpy(rows_of("gaussian", 4)).to(dtype)
    out = sampler.sample(logits, with_n_sigma([SamplingParams(logprobs=-1)] * 4, [1.3] * 4))
    wanted = np.stack([within(row, 1.3)[0] for row in logits.double().numpy()])
    np.testing.assert_array_equal(kept(out, 4, V), wanted)


def test_the_kept_set_is_the_same_at_any_temperature(sampler):
    logits = torch.from_numpy(rows_of("zipf", 1)).expand(4, V)
    params = [SamplingParams(temperature=t, logprobs=-1) for t in (0.2, 1.0, 3.0, 50.0)]
    found = kept(sampler.sample(logits, with_n_sigma(params, [1.2] * 4)), 4, V)
    assert (found == found[0]).all()


def test_the_draw_is_from_the_renormalised_kept_tokens(sampler):
    x = rows_of("gaussian", 1)[0]
    params = [SamplingParams(seed=i, logprobs=-1) for i in range(200)]
    out = sampler.sample(torch.from_numpy(x).expand(200, V), with_n_sigma(params, [0.4] * 200))
    inside, _ = within(x, 0.4)
    masked = np.where(inside, x, -INF)
    for i in range(200):
        row = reference.prepare(masked, params[i])
        token, lead = reference.draw(row, i, i)
        assert out.token_ids[i] == token or lead < reference.NEAR_TIE
    share = np.exp(x[inside] - x.max()).sum() / np.exp(x.astype(np.float64) - x.max()).sum()
    assert float(out.log_kept_mass[0]) == pytest.approx(np.log(share), abs=1e-6)
    assert float(out.logprobs.logprobs[0, 1:].double().exp().sum()) == pytest.approx(1.0, abs=1e-5)


HEAD, ALL_THREE = [True, False, False, False, False], [True, True, True, False, False]


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        (SamplingParams(logprobs=-1), ALL_THREE),
        (SamplingParams(top_p=0.45, logprobs=-1), HEAD),  # 0.4 is half of the 0.8 that are left
        (
            SamplingParams(top_p=0.45, filter_order="joint", logprobs=-1),
            ALL_THREE,
        ),  # and less than 0.45 of all
        (SamplingParams(top_k=1, logprobs=-1), HEAD),
        (SamplingParams(top_k=4, logprobs=-1), ALL_THREE),
        (SamplingParams(min_p=0.6, logprobs=-1), HEAD),
        (SamplingParams(min_p=0.1, logprobs=-1), ALL_THREE),
    ],
)
def test_n_sigma_comes_before_the_other_filters(sampler, params, wanted):
    logits = np.log([0.4, 0.2, 0.2, 0.1, 0.1])
    metadata = with_n_sigma([params], [np.log(3.0) / logits.std()])
    out = sampler.sample(torch.from_numpy(logits.astype(np.float32))[None], metadata)
    assert kept(out, 1, 5)[0].tolist() == wanted


def assert_same(left, right):
    for one, other in zip(dataclasses.astuple(left), dataclasses.astuple(right), strict=True):
        for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (one, other)), strict=True):
            assert (a is None and b is None) or torch.equal(a, b)


def test_rows_without_n_sigma_are_unaffected_by_their_neighbours(sampler):
    logits = torch.from_numpy(rows_of("gaussian", 6))
    params = [
        SamplingParams(seed=i, logprobs=4, top_k=k, top_p=p, temperature=t)
        for i, (k, p, t) in enumerate([(0, 1, 1), (9, 1, 1), (0, 0.9, 2), (5, 0.5, 1), (0, 1, 0), (0, 1, 1)])
    ]
    positions = list(range(6))
    plain = sampler.sample(logits, SamplingMetadata.from_params(params, positions=positions))
    assert_same(plain, sampler.sample(logits, with_n_sigma(params, [0.0] * 6)))
    mixed = sampler.sample(logits, with_n_sigma(params, [0.0, 0.0, 0.0, 0.0, 0.0, 0.5]))
    assert mixed.token_ids[:5].tolist() == plain.token_ids[:5].tolist()
    assert torch.equal(mixed.logprobs.logprobs[:5], plain.logprobs.logprobs[:5])
    assert mixed.log_kept_mass[5] < plain.log_kept_mass[5] == 0


def test_ready_tensors_are_off_at_zero_below_and_nan_and_keep_all_at_infinity(sampler):
    logits = torch.from_numpy(rows_of("gaussian", 5))
    n_sigma = torch.tensor([0.0, -1.0, NAN, INF, 1e-30])
    metadata = TopNSigmaMetadata(n_sigma=n_sigma, facts=BatchFacts(max_logprobs=-1))
    assert kept(sampler.sample(logits, metadata), 5, V).sum(-1).tolist() == [V, V, V, V, 1]


def test_a_flat_row_keeps_every_token(sampler):
    out = sampler.sample(torch.zeros(1, V), with_n_sigma([SamplingParams(logprobs=-1)], [1e-9]))
    assert kept(out, 1, V).all()


def test_nan_and_masked_tokens_have_no_part_in_the_deviation(sampler):
    x = logits_families.gaussian(np.random.default_rng(3), V)
    masked = x.copy()
    masked[::2], masked[1] = -INF, NAN
    out = sampler.sample(torch.from_numpy(masked)[None], with_n_sigma([SamplingParams(logprobs=-1)], [1.0]))
    wanted, clear = within(masked, 1.0)
    assert clear
    assert 1 < wanted.sum() < 500
    np.testing.assert_array_equal(kept(out, 1, V)[0], wanted)
    assert out.valid.tolist() == [False]


@pytest.mark.parametrize(
    ("fill", "at", "token", "valid"),
    [
        (NAN, {}, 0, False),
        (-INF, {}, 0, False),
        (0.0, {2: INF}, 2, True),
        (-INF, {7: 1.0}, 7, True),
        (3e38, {5: -3e38}, None, True),
    ],
)
def test_rows_of_special_values_answer_as_without_the_filter(sampler, fill, at, token, valid):
    logits = torch.full((1, V), fill)
    for place, value in at.items():
        logits[0, place] = value
    params = [SamplingParams(seed=5, logprobs=3)]
    plain = sampler.sample(logits, SamplingMetadata.from_params(params, positions=[0]))
    out = sampler.sample(logits, with_n_sigma(params, [1.0]))
    assert_same(plain, out)
    assert out.valid.tolist() == [valid]
    assert token is None or out.token_ids.tolist() == [token]


def test_greedy_rows_stay_greedy(sampler):
    logits = torch.from_numpy(rows_of("tied", 4))
    out = sampler.sample(logits, with_n_sigma([SamplingParams(temperature=0.0)] * 4, [0.3] * 4))
    assert out.token_ids.tolist() == logits.argmax(-1).tolist()


def test_a_vocabulary_of_one_gives_its_token(sampler):
    out = sampler.sample(torch.tensor([[3.0]]), with_n_sigma([SamplingParams()], [1.0]))
    assert out.token_ids.tolist() == [0]


def test_an_empty_batch_gives_empty_tensors(sampler):
    out = sampler.sample(torch.empty(0, V), with_n_sigma([], []))
    assert out.token_ids.shape == out.valid.shape == (0,)


def test_rows_of_one_request_share_its_n_sigma(sampler):
    logits = torch.from_numpy(rows_of("gaussian", 3))
    metadata = with_n_sigma([SamplingParams(logprobs=-1)] * 2, [0.0, 1.0], row_index=[1, 0, 1])
    found = kept(sampler.sample(logits, metadata), 3, V)
    assert found[1].all()
    np.testing.assert_array_equal(found[[0, 2]], [within(logits[i], 1.0)[0] for i in (0, 2)])


def test_new_positions_keep_the_parameter():
    metadata = with_n_sigma([SamplingParams(seed=1)], [2.0])
    moved = metadata.with_positions(torch.tensor([9]))
    assert isinstance(moved, TopNSigmaMetadata)
    assert (moved.n_sigma.tolist(), moved.positions.tolist()) == ([2.0], [9])


def test_a_sampler_without_the_declared_parameter_does_not_get_it():
    native = tokendraw.load_sampler("native", device="cpu")
    with pytest.raises(SamplerUnavailableError) as error:
        native.sample(torch.zeros(2, V), with_n_sigma([SamplingParams()] * 2, [1.0, 0.0]))
    assert str(error.value) == (
        "'metadata' of every row needs a sampler that declares the class "
        "'top_n_sigma_tokendraw.metadata.TopNSigmaMetadata', found 'native', which does not. Load the sampler that "
        "declares it by its name, or pass a tokendraw.SamplingMetadata."
    )


@pytest.mark.parametrize("value", [-1.0, NAN, INF, True, "2", None])
def test_a_bad_value_is_refused_by_field_and_row(value):
    with pytest.raises(InvalidParameterError) as error:
        with_n_sigma([SamplingParams()] * 2, [1.0, value])
    assert str(error.value) == f"'n_sigma' of row 1 needs a finite number >= 0 (0: off), found {value!r}."


@pytest.mark.parametrize(
    ("n_sigma", "rest", "message"),
    [
        ([1.0], {}, "'n_sigma' needs a value for each of 2 requests, found 1."),
        ([1.0] * 3, {"row_index": [0, 1, 1]}, "'n_sigma' needs a value for each of 2 requests, found 3."),
        (torch.ones(2, 1), {}, "'n_sigma' needs one dimension, found shape [2, 1]."),
        (
            torch.ones(2, dtype=torch.int64),
            {},
            "'n_sigma' needs a floating-point dtype, found torch.int64.",
        ),
        (
            torch.ones(2, device="meta"),
            {},
            "'n_sigma' needs the device of the other tensors, cpu, found meta.",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(n_sigma, rest, message):
    with pytest.raises(InvalidInputError) as error:
        with_n_sigma([SamplingParams()] * 2, n_sigma, **rest)
    assert str(error.value) == message
