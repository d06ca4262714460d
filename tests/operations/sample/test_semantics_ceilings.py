"""What typical-p, XTC and the order ``temperature_last`` keep of hand-made rows; the kit compares with float64."""

import math
from dataclasses import replace

import pytest
import torch

import tokendraw
from tokendraw import (
    Drafts,
    InvalidParameterError,
    Need,
    SamplingMetadata,
    SamplingParams,
    philox,
)

INF, NAN = math.inf, math.nan
FOUR, FIVE = (0.4, 0.3, 0.2, 0.1), (0.4, 0.3, 0.2, 0.06, 0.04)
LAST = {"filter_order": "temperature_last"}
ALWAYS = {"xtc_probability": 1.0}


@pytest.fixture(scope="module")
def sampler():
    return tokendraw.load_sampler("native", device="cpu", need=Need(threshold=True))


def logits_of(*probabilities):
    return torch.tensor(probabilities).log()


def kept(sampler, probabilities, metadata):
    logits = logits_of(probabilities)
    out = sampler.sample(logits, metadata)
    mask = tokendraw.kept_mask(logits, out.threshold, out.ceiling)
    assert mask[0, out.token_ids[0]]
    return mask[0].nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("probabilities", "request_fields", "expected"),
    [
        # |s - H| = 0.34, 0.17, 0.58
        ((0.5, 0.3, 0.2), {"typical_p": 0.2}, [1]),
        ((0.5, 0.3, 0.2), {"typical_p": 0.5}, [0, 1]),
        ((0.5, 0.3, 0.2), {"typical_p": 0.9}, [0, 1, 2]),
        # 0.36, 0.08, 0.33, 1.02; of the two largest 0.12, 0.16
        (FOUR, {"typical_p": 0.45}, [1, 2]),
        (FOUR, {"typical_p": 0.5, "top_k": 2}, [0]),
        (FOUR, {"typical_p": 0.45, "top_p": 0.55}, [1]),
        (FOUR, {"typical_p": 0.25, "top_p": 0.3, "filter_order": "joint"}, [1]),
        ((0.25,) * 4, {"typical_p": 0.1}, [0, 1, 2, 3]),
        ((0.1, 0.4, 0.1, 0.4), {"typical_p": 0.5}, [1, 3]),
        ((0.0, 1.0, 0.0), {"typical_p": 0.1, **ALWAYS}, [1]),
        (FOUR, {"typical_p": 0.5, "temperature": 0.0}, [0]),
        (FIVE, ALWAYS, [2, 3, 4]),
        (FIVE, {**ALWAYS, "xtc_threshold": 0.05}, [3, 4]),
        (FIVE, {**ALWAYS, "xtc_threshold": 0.35}, [0, 1, 2, 3, 4]),
        (FIVE, {**ALWAYS, "xtc_threshold": 0.5}, [0, 1, 2, 3, 4]),
        (FIVE, {**ALWAYS, "xtc_threshold": 0.35, "top_k": 2}, [1]),
        ((0.4, 0.4, 0.2), {**ALWAYS, "xtc_threshold": 0.3}, [0, 1, 2]),
        (FIVE, {**ALWAYS, "temperature": 0.0}, [0]),
        (FIVE, {"xtc_probability": 0.0}, [0, 1, 2, 3, 4]),
        (FOUR, {"min_p": 0.6, "temperature": 0.1, **LAST}, [0, 1]),
        (FOUR, {"min_p": 0.6, "temperature": 0.1}, [0]),
        (FOUR, {"min_p": 0.3, "top_p": 0.75, **LAST}, [0, 1, 2]),
        (FOUR, {"min_p": 0.3, "top_p": 0.75}, [0, 1]),
        (FOUR, {"min_p": 0.6, "typical_p": 0.45, **LAST}, [1, 2]),
        (FOUR, {**ALWAYS, "xtc_threshold": 0.05, "temperature": 1e-3, **LAST}, [3]),
    ],
)
def test_a_row_keeps(sampler, probabilities, request_fields, expected):
    metadata = SamplingMetadata.from_params([SamplingParams(**request_fields)])
    assert kept(sampler, probabilities, metadata) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"typical_p": 1.5}, [0, 1, 2, 3, 4]),
        ({"typical_p": NAN}, [0, 1, 2, 3, 4]),
        ({"typical_p": -1.0}, [1]),
        ({"xtc_probability": 2.0}, [2, 3, 4]),
        ({"xtc_probability": NAN}, [0, 1, 2, 3, 4]),
        ({"xtc_probability": 1.0, "xtc_threshold": NAN}, [0, 1, 2, 3, 4]),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.7}, [0, 1, 2, 3, 4]),
        ({"xtc_probability": 1.0, "xtc_threshold": -1.0}, [4]),
    ],
)
def test_values_in_ready_tensors_are_clamped(sampler, fields, expected):
    tensors = {name: torch.tensor([value]) for name, value in fields.items()}
    assert kept(sampler, FIVE, SamplingMetadata(**tensors)) == expected


def test_bounds_are_the_least_and_the_greatest_kept_logit(sampler):
    params = [
        SamplingParams(),
        SamplingParams(**ALWAYS),
        SamplingParams(typical_p=0.45),
        SamplingParams(**ALWAYS),
    ]
    logits = torch.stack([*logits_of(FIVE, FIVE, FIVE), torch.full((5,), -INF)])
    out = sampler.sample(logits, SamplingMetadata.from_params(params))
    x = logits[0].tolist()
    assert out.threshold[:3].tolist() == [-INF, x[4], x[2]]
    assert out.ceiling[:3].tolist() == [INF, x[2], x[1]]
    assert out.threshold[3].isnan()
    assert out.ceiling[3].isnan()


def test_a_row_has_xtc_where_the_uniform_of_its_seed_and_position_lies_below_the_probability(sampler):
    rows, share = 64, 0.5
    params = [replace(SamplingParams(xtc_probability=share), seed=seed) for seed in range(rows)]
    out = sampler.sample(
        logits_of(*[FIVE] * rows), SamplingMetadata.from_params(params, positions=range(rows))
    )
    seeds = torch.arange(rows)
    u = philox.uniform(seeds, seeds, torch.zeros(rows, dtype=torch.int64), philox.XTC)
    assert (out.threshold > -INF).tolist() == (u < share).tolist()
    assert philox.XTC == 7


def test_a_draw_far_below_the_dropped_tokens_has_exact_logprobs():
    sampler = tokendraw.load_sampler("native", device="cpu", logprobs_mode="processed_logprobs")
    params = SamplingParams(temperature=1e-4, logprobs=-1, xtc_probability=1.0, xtc_threshold=0.15, **LAST)
    out = sampler.sample(logits_of(FIVE), SamplingMetadata.from_params([params]))
    assert out.token_ids.tolist() == [2]
    assert out.logprobs.logprobs[0, :2].tolist() == [0.0, 0.0]
    assert out.log_kept_mass.item() == pytest.approx(math.log(0.5) / 1e-4, rel=1e-6)


def test_a_score_has_xtc_where_the_row_has_a_seed():
    sampler = tokendraw.load_sampler("native", device="cpu", logprobs_mode="processed_logprobs")
    params = [SamplingParams(seed=5, **ALWAYS), SamplingParams(**ALWAYS)]
    metadata = SamplingMetadata.from_params(params, positions=[3, 3])
    found = sampler.score(logits_of(FIVE, FIVE), torch.tensor([0, 0]), metadata).logprobs.logprobs[:, 0]
    assert found.tolist() == [-INF, pytest.approx(math.log(0.4))]


def test_drafts_are_drawn_without_xtc(sampler):
    params = SamplingMetadata.from_params([SamplingParams(xtc_threshold=0.3, **ALWAYS)] * 2)
    logits = logits_of(*[(0.999, 1e-3)] * 2)
    assert sampler.draft(logits, params).token_ids.tolist() == [0, 0]
    assert sampler.verify(
        torch.zeros(2, 2), Drafts.from_lists([[0]], draft_logits=logits[:1]), params
    ).num_accepted.shape == (1,)


@pytest.mark.parametrize(
    ("field", "value", "needed"),
    [
        *[("typical_p", value, "a number in (0, 1] (1: off)") for value in (0.0, 1.1, NAN, "x", True)],
        *[("xtc_probability", value, "a number in [0, 1] (0: off)") for value in (-0.1, 1.1, NAN, None)],
        *[("xtc_threshold", value, "a number in (0, 0.5]") for value in (0.0, 0.6, NAN)],
    ],
)
def test_bad_values_are_refused(field, value, needed):
    for check in (
        lambda params: params.check(),
        lambda params: SamplingMetadata.from_params([params]),
    ):
        with pytest.raises(InvalidParameterError) as refused:
            check(SamplingParams(**{field: value}))
        owner = "" if check.__code__.co_names == ("check",) else " of row 0"
        assert str(refused.value) == f"'{field}'{owner} needs {needed}, found {value!r}."


def test_batches_that_ask_for_none_of_it_have_no_tensors_of_it():
    metadata = SamplingMetadata.from_params([SamplingParams(top_p=0.5), SamplingParams(filter_order="joint")])
    rare = ("typical_p", "xtc_probability", "xtc_threshold", "temperature_last")
    assert [getattr(metadata, name) for name in rare] == [None] * 4
    assert (metadata.facts.any_ceiling, metadata.facts.any_temperature_last) == (False, False)
