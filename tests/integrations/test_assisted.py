"""Assisted generation draws the tokens of the unassisted: noise depends on nothing but the seed and the position."""

import pytest
import torch

pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

from tokendraw import SamplingParams
from tokendraw_transformers import DrawLogitsProcessor
from transformers_models import STEPS, V, draw, model_of, prompts

PARAMS = SamplingParams(temperature=0.8, top_k=50, top_p=0.9)
WARPERS = {"temperature": 0.8, "top_k": 50, "top_p": 0.9}
RUNS = 10


def processor(seed, **more):
    return DrawLogitsProcessor(SamplingParams(**WARPERS, seed=seed), **more)


@pytest.fixture(scope="module")
def model():
    return model_of("llama")


@pytest.fixture(scope="module")
def assistant(model):
    """The same model with a little noise on its weights: often right, and not always."""
    torch.manual_seed(9)
    twin = type(model)(model.config).eval()
    twin.load_state_dict(model.state_dict())
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    twin.generation_config.pad_token_id = 0
    twin.generation_config.eos_token_id = None
    return twin


def forwards(model, run):
    """The result of ``run``, and the number of forward passes of the model."""
    count = 0

    def counting(*_):
        nonlocal count
        count += 1

    handle = model.register_forward_hook(counting)
    result = run()
    handle.remove()
    return result, count


@pytest.mark.slow
def test_assisted_equals_unassisted_in_every_run(model, assistant):
    equal, asked = 0, 0
    for seed in range(RUNS):
        ids = prompts(RUNS)[seed : seed + 1]
        unassisted = draw(model, ids, seeds=[seed], max_new_tokens=16, **WARPERS)
        assisted, count = forwards(
            model,
            lambda ids=ids, seed=seed: model.generate(
                ids,
                assistant_model=assistant,
                do_sample=False,
                max_new_tokens=16,
                logits_processor=[processor(seed)],
            ),
        )
        equal += torch.equal(assisted, unassisted)
        asked += count
    assert equal == RUNS
    assert asked < RUNS * 16 * 0.7  # drafts were accepted


@pytest.mark.slow
def test_sampling_through_the_rejection_rule_draws_the_same_tokens(model, assistant):
    """With do_sample=True both models are certain of their token, so the rule keeps the draft or takes the model's
    token.
    """
    for seed in range(5):
        assisted = model.generate(
            prompts(1),
            assistant_model=assistant,
            do_sample=True,
            top_k=0,
            max_new_tokens=STEPS,
            logits_processor=[processor(seed)],
        )
        assert torch.equal(assisted, draw(model, prompts(1), seeds=[seed], **WARPERS))


@pytest.mark.slow
def test_prompt_lookup_draws_them_too(model):
    ids = prompts(1).repeat(1, 3)
    for seed in range(5):
        found = model.generate(
            ids,
            prompt_lookup_num_tokens=3,
            do_sample=False,
            eos_token_id=V - 1,  # transformers 5.0 needs one here
            max_new_tokens=STEPS,
            logits_processor=[processor(seed)],
        )
        assert torch.equal(found, draw(model, ids, seeds=[seed], eos_token_id=V - 1, **WARPERS))


@pytest.mark.slow
def test_rows_of_a_padded_batch_draw_the_tokens_of_the_callable(model):
    ids = prompts(3)
    padded = torch.nn.functional.pad(ids, (2, 0))
    mask = (padded != 0).long()
    params = [SamplingParams(**WARPERS, seed=seed) for seed in (1, 2, 3)]
    found = model.generate(
        padded,
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=STEPS,
        logits_processor=[DrawLogitsProcessor(params, left_padding=[2, 2, 2])],
    )
    expected = draw(model, padded, attention_mask=mask, seeds=[1, 2, 3], **WARPERS)
    assert torch.equal(found, expected)
    assert torch.equal(found[:, 2:], draw(model, ids, seeds=[1, 2, 3], **WARPERS))


@pytest.mark.slow
def test_one_set_of_parameters_serves_any_number_of_rows(model):
    shared = processor(4, sampler="native")
    for rows in (1, 3, 1):
        found = model.generate(
            prompts(rows), do_sample=False, max_new_tokens=STEPS, logits_processor=[shared]
        )
        assert torch.equal(found, draw(model, prompts(rows), seeds=[4] * rows, **WARPERS))


def test_the_scores_are_finite_and_their_softmax_is_the_token():
    scores = torch.randn(2, 50)
    left = processor(3)(torch.zeros(2, 4, dtype=torch.long), scores)
    assert left.isfinite().all()
    assert ((left == 0).sum(-1) == 1).all()
    assert torch.equal(left.softmax(-1), (left == 0).float())
