"""Warpers of transformers: the ones taken over, and the tokens kept in their place."""

from pathlib import Path

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
from transformers.generation import WatermarkingConfig

from call_tables import pairs
from tokendraw import SamplingParams
from tokendraw_transformers._warpers import plan
from transformers_models import draw, model_of, prompts

PENALTY, T, K = RepetitionPenaltyLogitsProcessor(1.2), TemperatureLogitsWarper(0.7), TopKLogitsWarper(40)
P, M, H = TopPLogitsWarper(0.9), MinPLogitsWarper(0.1), TopHLogitsWarper(0.4)
NORMALIZED = LogitNormalization()
KEEPS_TWO, FINITE = TopPLogitsWarper(0.9, min_tokens_to_keep=2), TopKLogitsWarper(40, filter_value=-100.0)
TYPICAL, EPSILON, ETA = TypicalLogitsWarper(0.9), EpsilonLogitsWarper(0.01), EtaLogitsWarper(0.25)
EPSILON_FLOOR, ETA_FLOOR = {"epsilon_cutoff": 0.01}, {"eta_cutoff": 0.25}
JOINT = {"top_p": 0.9, "min_p": 0.1, "filter_order": "joint"}


@pytest.mark.parametrize(("name", "case"), pairs(Path(__file__).with_name("warpers.txt")))
def test_warpers_are_taken_from_the_end_of_the_list(name, case):
    prepared, stay, params, narrowing = eval(case, globals())
    result = plan(prepared, do_sample=True)
    assert list(result.processors) == prepared[:stay]
    assert result.params == SamplingParams(**params)
    assert list(result.narrowing) == narrowing
    assert [*result.processors, *result.recorded] == prepared
    greedy = plan(prepared, do_sample=False)
    assert (list(greedy.processors), greedy.params) == (prepared, SamplingParams(temperature=0.0))


V = 60
SETTINGS = {
    "default": {},
    "temperature": {"temperature": 1.7, "top_k": 0},
    "top-k": {"top_k": 7},
    "top-p": {"top_k": 0, "top_p": 0.6},
    "top-k and top-p": {"temperature": 1.5, "top_k": 20, "top_p": 0.7},
    "min-p": {"top_k": 0, "min_p": 0.1},
    "top-k and min-p": {"top_k": 10, "min_p": 0.05, "temperature": 2.0},
    "top-p and min-p": {"top_k": 0, "top_p": 0.8, "min_p": 0.08},
    "all": {"temperature": 1.5, "top_k": 20, "top_p": 0.8, "min_p": 0.06},
    "watermark": {"top_k": 12, "watermarking_config": {"bias": 2.5, "greenlist_ratio": 0.5}},
    **{
        f"{name} {beside}": {name: 0.3, "temperature": 1.5, **others}
        for name in ("top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
        for beside, others in {"alone": {"top_k": 0}, "beside others": {"top_k": 5, "top_p": 0.9}}.items()
    },
}
RECORD = {"max_new_tokens": 1, "return_dict_in_generate": True, "output_scores": True}


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_drawn_by_the_probabilities_that_transformers_own_warpers_leave(name):
    """The processed log-probabilities are those of the draw: see the kit. The scores are for the caller."""
    model, ids, settings = model_of("qwen2", V), prompts(200, vocab_size=V), dict(SETTINGS[name])
    if "watermarking_config" in settings:
        settings["watermarking_config"] = WatermarkingConfig(**settings["watermarking_config"])
    theirs = model.generate(ids, do_sample=True, **settings, **RECORD).scores[0]
    out = draw(model, ids, **settings, **RECORD, logprobs=-1, logprobs_mode="processed_logprobs")
    ours = torch.empty_like(theirs).scatter_(-1, out.top_token_ids[:, 0], out.top_logprobs[:, 0])
    torch.testing.assert_close(ours, theirs.log_softmax(-1), atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(out.scores[0], theirs, atol=1e-4, rtol=1e-4)
    assert theirs.isinf().any() or name == "temperature"
