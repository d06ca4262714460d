"""The division of a list of prepared processors between tokendraw and transformers."""

from dataclasses import fields

import pytest
import torch

pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    LogitNormalization,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from tokendraw import SamplingMetadata, SamplingParams, load_sampler
from tokendraw_transformers._warpers import plan

PENALTY = RepetitionPenaltyLogitsProcessor(1.2)
T, K, P, M = TemperatureLogitsWarper(0.7), TopKLogitsWarper(40), TopPLogitsWarper(0.9), MinPLogitsWarper(0.1)
NORMALIZED = LogitNormalization()
KEEPS_TWO = TopPLogitsWarper(0.9, min_tokens_to_keep=2)
FINITE = TopKLogitsWarper(40, filter_value=-100.0)
H, TYPICAL, EPSILON, ETA = (
    TopHLogitsWarper(0.4),
    TypicalLogitsWarper(0.9),
    EpsilonLogitsWarper(0.01),
    EtaLogitsWarper(0.25),
)
HAS_TYPICAL = "typical_p" in {field.name for field in fields(SamplingParams)}
EPSILON_FLOOR, ETA_FLOOR = {"epsilon_cutoff": 0.01}, {"eta_cutoff": 0.25}

CASES = {
    "nothing": ([], [], SamplingParams(), []),
    "all but min-p": (
        [PENALTY, T, K, P],
        [PENALTY],
        SamplingParams(temperature=0.7, top_k=40, top_p=0.9),
        [],
    ),
    "normalised": ([T, NORMALIZED], [], SamplingParams(temperature=0.7), []),
    "top-p and min-p": ([P, M], [], SamplingParams(top_p=0.9, min_p=0.1, filter_order="joint"), []),
    "all": (
        [T, K, P, M],
        [],
        SamplingParams(temperature=0.7, top_k=40, top_p=0.9, min_p=0.1, filter_order="joint"),
        [K],
    ),
    "top-k and min-p": ([K, M], [], SamplingParams(top_k=40, min_p=0.1), []),
    "min-p 0": ([K, P, MinPLogitsWarper(0.0)], [], SamplingParams(top_k=40, top_p=0.9), []),
    "top-p 0": ([TopPLogitsWarper(0.0)], [], SamplingParams(temperature=0.0), []),
    "a processor behind a warper": ([T, K, PENALTY], [T, K, PENALTY], SamplingParams(), []),
    "a warper out of order": ([P, K], [P], SamplingParams(top_k=40), []),
    "one of each kind": ([T, T, K], [T], SamplingParams(temperature=0.7, top_k=40), []),
    "more than one token kept": ([KEEPS_TWO, M], [KEEPS_TWO], SamplingParams(min_p=0.1), []),
    "another filter value": ([T, FINITE], [T, FINITE], SamplingParams(), []),
    "epsilon": ([PENALTY, T, EPSILON], [PENALTY], SamplingParams(temperature=0.7, filters=EPSILON_FLOOR), []),
    "eta": ([T, ETA, NORMALIZED], [], SamplingParams(temperature=0.7, filters=ETA_FLOOR), []),
    "epsilon beside top-k": ([T, K, EPSILON], [T, K], SamplingParams(filters=EPSILON_FLOOR), []),
    "eta beside epsilon": ([T, EPSILON, ETA], [T, EPSILON], SamplingParams(filters=ETA_FLOOR), []),
    "epsilon beside top-p and min-p": (
        [T, P, M, EPSILON],
        [T, P, M],
        SamplingParams(filters=EPSILON_FLOOR),
        [],
    ),
    "top-h": ([T, H, K, P], [T, H], SamplingParams(top_k=40, top_p=0.9), []),
}
if HAS_TYPICAL:
    CASES |= {
        "typical": ([T, TYPICAL], [], SamplingParams(temperature=0.7, typical_p=0.9), []),
        "typical beside top-k and min-p": (
            [K, M, TYPICAL],
            [],
            SamplingParams(top_k=40, min_p=0.1, typical_p=0.9),
            [],
        ),
        "typical beside top-p": ([T, K, P, TYPICAL], [T, K, P], SamplingParams(typical_p=0.9), []),
    }
else:
    CASES |= {"typical": ([T, K, TYPICAL], [T, K, TYPICAL], SamplingParams(), [])}


@pytest.mark.parametrize(("prepared", "processors", "params", "narrowing"), CASES.values(), ids=CASES)
def test_warpers_are_taken_from_the_end_of_the_list(prepared, processors, params, narrowing):
    result = plan(prepared, do_sample=True)
    assert list(result.processors) == processors
    assert result.params == params
    assert list(result.narrowing) == narrowing
    assert [*result.processors, *result.recorded] == prepared


def test_greedy_decoding_takes_nothing():
    result = plan([PENALTY, K], do_sample=False)
    assert list(result.processors) == [PENALTY, K]
    assert result.params == SamplingParams(temperature=0.0)
    assert list(result.recorded) == []


def kept_here(logits, **filters):
    """[B, V] bool: tokens kept by tokendraw."""
    sampler = load_sampler("native", device="cpu", logprobs_mode="processed_logprobs")
    params = [SamplingParams(logprobs=-1, **filters)] * len(logits)
    best = sampler.sample(logits, SamplingMetadata.from_params(params)).logprobs
    spread = torch.empty_like(logits).scatter_(1, best.token_ids[:, 1:], best.logprobs[:, 1:])
    return spread > -torch.inf


def kept_there(warper, logits):
    """[B, V] bool: tokens kept by a warper of transformers."""
    return warper(None, logits) > -torch.inf


def test_a_mass_of_just_p_is_enough_in_both():
    logits = torch.tensor([[0.25, 0.125, 0.125, 0.5]]).log()
    expected = [[True, False, False, True]]
    assert kept_here(logits, top_p=0.75).tolist() == expected
    assert kept_there(TopPLogitsWarper(0.75), logits).tolist() == expected


def test_ties_at_the_edge_are_kept_in_both_by_top_k_and_only_here_by_top_p():
    logits = torch.zeros(1, 5)
    assert kept_here(logits, top_k=2).sum() == kept_there(TopKLogitsWarper(2), logits).sum() == 5
    assert kept_here(logits, top_p=0.5).sum() == 5
    assert kept_there(TopPLogitsWarper(0.5), logits).sum() == 3


FLOORS = [
    (EpsilonLogitsWarper, {"filters": {"epsilon_cutoff": 0.004}}, 0.004),
    (EtaLogitsWarper, {"filters": {"eta_cutoff": 0.02}}, 0.02),
]
if HAS_TYPICAL:
    FLOORS.append((TypicalLogitsWarper, {"typical_p": 0.7}, 0.7))


@pytest.mark.parametrize(
    ("warper", "params", "value"), FLOORS, ids=lambda each: getattr(each, "__name__", "")
)
def test_the_rules_of_transformers_that_stand_alone_keep_the_same_tokens(warper, params, value):
    logits = 2 * torch.randn(40, 500, generator=torch.Generator().manual_seed(5))
    logits[1, 7] = 30.0  # above every other probability
    assert torch.equal(kept_here(logits, **params), kept_there(warper(value), logits))


@pytest.mark.parametrize("name", ["top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"])
@pytest.mark.parametrize("others", [{"top_k": 0}, {"top_k": 5, "top_p": 0.9}], ids=["alone", "beside others"])
def test_a_generation_draws_only_what_transformers_warpers_leave(name, others):
    from transformers import LogitsProcessorList

    from transformers_models import draw, model_of, prompts

    model, config = model_of("llama"), {name: 0.3, "temperature": 1.5, **others}
    out = draw(
        model, prompts(4), output_logits=True, return_dict_in_generate=True, seeds=[1, 2, 3, 4], **config
    )
    settings, _ = model._prepare_generation_config(None, do_sample=True, **config)
    warpers = model._get_logits_processor(settings, logits_processor=LogitsProcessorList(), device="cpu")
    steps = zip(out.logits, out.sequences[:, -len(out.logits) :].T, strict=True)
    for logits, tokens in steps:
        left = warpers(None, logits.float())
        assert torch.isfinite(left.gather(1, tokens[:, None])).all()
        assert torch.isinf(left).any()
