"""The distribution equals transformers' warpers: by draws, and as processed log-probabilities."""

import pytest
import torch

pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

from transformers import MinPLogitsWarper, TopPLogitsWarper
from transformers.generation import WatermarkingConfig

from goodness_of_fit import FALSE_ALARM, chi_square
from transformers_models import draw, model_of, prompts

V = 60
DRAWS = 20_000
SETTINGS = {
    "temperature": {"temperature": 1.7, "top_k": 0},
    "top-k": {"top_k": 7},
    "top-p": {"top_k": 0, "top_p": 0.6},
    "top-k and top-p": {"temperature": 1.5, "top_k": 20, "top_p": 0.7},
    "min-p": {"top_k": 0, "min_p": 0.1},
    "top-k and min-p": {"top_k": 10, "min_p": 0.05, "temperature": 2.0},
    "top-p and min-p": {"top_k": 0, "top_p": 0.8, "min_p": 0.08},
    "all": {"temperature": 1.5, "top_k": 20, "top_p": 0.8, "min_p": 0.06},
    "default": {},
    "watermark": {"top_k": 12, "watermarking_config": {"bias": 2.5, "greenlist_ratio": 0.5}},
}
RECORD = {"max_new_tokens": 1, "return_dict_in_generate": True, "output_scores": True}


def settings_of(name):
    """Arguments for ``generate``, made anew."""
    settings = dict(SETTINGS[name])
    if "watermarking_config" in settings:
        settings["watermarking_config"] = WatermarkingConfig(**settings["watermarking_config"])
    return settings


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_draws_have_the_distribution_of_transformers_own_warpers(name):
    model, prompt = model_of("llama", V), prompts(1, vocab_size=V)
    own = model.generate(prompt, do_sample=True, **settings_of(name), **RECORD)
    probabilities = own.scores[0][0].double().softmax(-1).numpy()
    many = prompt.expand(DRAWS, -1)
    drawn = draw(model, many, max_new_tokens=1, seeds=list(range(DRAWS)), **settings_of(name))
    assert chi_square(drawn[:, -1].numpy(), probabilities) > FALSE_ALARM


@pytest.mark.parametrize("name", ["top-p and min-p", "all"])
def test_the_settings_distinguish_the_orders_of_min_p_and_top_p(name):
    """tokendraw's order, min-p before top-p, keeps other tokens in some of the rows below."""
    model, ids = model_of("qwen2", V), prompts(200, vocab_size=V)
    settings = settings_of(name)
    min_p, top_p = settings.pop("min_p"), settings.pop("top_p")
    before = model.generate(ids, do_sample=True, **settings, **RECORD).scores[0]
    first, last = MinPLogitsWarper(min_p), TopPLogitsWarper(top_p)
    assert not torch.equal(last(ids, first(ids, before)), first(ids, last(ids, before)))


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "watermark"])
def test_processed_logprobs_are_the_softmax_of_the_scores_over_the_whole_vocabulary(name):
    model, ids = model_of("qwen2", V), prompts(200, vocab_size=V)
    out = draw(model, ids, **settings_of(name), **RECORD, logprobs=-1, logprobs_mode="processed_logprobs")
    ours = torch.empty_like(out.scores[0]).scatter_(-1, out.top_token_ids[:, 0], out.top_logprobs[:, 0])
    torch.testing.assert_close(ours, out.scores[0].log_softmax(-1), atol=2e-5, rtol=1e-5)
