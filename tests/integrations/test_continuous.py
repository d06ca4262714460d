"""Continuous batching with a seed for every request, behind a flag that names the private names in use."""

import pytest
import torch

pytest.importorskip("transformers", minversion="5.23", reason="needs transformers >= 5.23")
pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

import tokendraw_transformers
from tokendraw import InvalidParameterError
from transformers_models import STEPS, draw, model_of, prompts

SEEDS = [5, -6, 2**64 - 1, 8]


def batch(inputs, **arguments):
    """Draw in a cache of a few pages, in steps of at most 64 tokens."""
    settings = {"max_new_tokens": STEPS, "do_sample": True, "eos_token_id": -1, "pad_token_id": 0}
    settings |= arguments.pop("settings", {})
    few = {"num_blocks": 16, "page_size": 16, "max_batch_tokens": 64, "max_requests_per_batch": 3}
    results = tokendraw_transformers.generate_batch(
        model_of("llama"),
        inputs,
        generation_config=GenerationConfig(**settings),
        continuous_batching_config=ContinuousBatchingConfig(**few, **arguments.pop("config", {})),
        **{"allow_private_names": True, **arguments},
    )
    assert [result.error for result in results.values()] == [None] * len(inputs)
    return [result.generated_tokens for result in results.values()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0.8, "top_k": 50, "top_p": 0.9}, {"top_k": 30, "top_p": 0.9, "min_p": 0.02}],
)
def test_requests_draw_the_tokens_of_generate_and_of_a_batch_of_one(settings):
    """Four requests of different lengths; a step has room for three."""
    ids = prompts(4)
    inputs = [ids[i, : 5 - i].tolist() for i in range(4)]
    found = batch(inputs, seeds=SEEDS, settings=settings)
    for row, seed in enumerate(SEEDS):
        alone = draw(model_of("llama"), torch.tensor([inputs[row]]), seeds=[seed], **settings)
        assert found[row] == alone[0, len(inputs[row]) :].tolist()
    assert batch(inputs[2:3], seeds=SEEDS[2:3], settings=settings) == found[2:3]


def generated(rows, **arguments):
    """The draws of ``generate`` for as many prompts."""
    return draw(model_of("llama"), prompts(rows), **arguments)[:, 5:].tolist()


@pytest.mark.slow
def test_missing_settings_are_filled_in_as_in_generate():
    seeds = list(range(6))
    found = batch(prompts(6).tolist(), seeds=seeds)
    assert found == generated(6, seeds=seeds) == generated(6, seeds=seeds, top_k=50)
    assert found != batch(prompts(6).tolist(), seeds=seeds, settings={"top_k": 0})


@pytest.mark.slow
def test_the_settings_of_the_model_fill_in_before_the_defaults(monkeypatch):
    monkeypatch.setattr(model_of("llama").generation_config, "top_k", 5)
    seeds = list(range(6))
    found = batch(prompts(6).tolist(), seeds=seeds)
    assert found == generated(6, seeds=seeds)
    monkeypatch.undo()
    assert found == generated(6, seeds=seeds, top_k=5)


@pytest.mark.slow
def test_a_base_seed_or_a_callable_gives_the_seeds_of_generate():
    ids = prompts(3)[[0, 1, 0]]
    for seeds in (7, lambda row: 100 + row):
        expected = draw(model_of("llama"), ids, seeds=seeds)[:, 5:].tolist()
        assert batch(ids, seeds=seeds) == expected
        assert batch(ids, settings={"seeds": seeds}) == expected
        assert expected[0] != expected[2]


@pytest.mark.slow
def test_seeds_of_greedy_requests_are_warned_of():
    with pytest.warns(tokendraw_transformers.SeedsUnusedWarning) as found:
        batch(prompts(1), seeds=[1], settings={"do_sample": False})
    assert found[0].filename == __file__


@pytest.mark.slow
def test_without_a_seed_each_run_differs():
    inputs = prompts(2).tolist()
    first, second = batch(inputs, seeds=[None, 3]), batch(inputs, seeds=[None, 3])
    assert first[1] == second[1]
    assert first[0] != second[0]


REFUSED = {
    "no flag": (
        {"allow_private_names": False},
        "'generate_batch' needs allow_private_names=True, found False: it touches "
        "GenerationMixin._prepare_generation_config, GenerationMixin._prepare_special_tokens, "
        "GenerationMixin._get_logits_processor, ContinuousBatchingManager.logit_processor, "
        "ContinuousBatchingManager.generation_config, ContinuousBatchingManager.continuous_batching_config, "
        "ContinuousBatchingLogitsProcessorList.logits_processor, "
        "ContinuousBatchingLogitsProcessorList.tensors_required, ContinuousBatchingLogitsProcessor, "
        "RequestState.request_id, RequestState.initial_tokens, RequestState.generated_tokens, "
        "RequestState.position_offset, RequestState.logit_processor_kwargs, which any release of transformers may "
        "change. Pass it, or use custom_generate=tokendraw_transformers.generate.",
    ),
    "too few seeds": (
        {"seeds": [1]},
        "'seeds' needs one entry a prompt, 2, found 1. Pass a list of integers or None.",
    ),
    "a seed that is none": (
        {"seeds": [1, "x"]},
        "'seed' of row 1 needs an integer in [-2**63, 2**64) or None, found 'x'.",
    ),
    "a generator for seeds": (
        {"seeds": (seed for seed in [1, 2])},
        "'seeds' needs an integer, one entry a prompt, 2, or a callable of the row, found a generator. Pass one of "
        "these.",
    ),
    "text for inputs": (
        {"inputs": ["one", "two"]},
        "'inputs' needs the token ids of each prompt, lists of integers, found something else. Pass "
        "tokenizer(texts)['input_ids'].",
    ),
    "several sequences": (
        {"settings": {"num_return_sequences": 2}},
        "'generate_batch' needs num_return_sequences=1, found 2: copies of a request have its seed. Pass the prompt as "
        "often, each with a seed of its own.",
    ),
    "log-probabilities": (
        {"config": {"return_logprobs": True}},
        "'generate_batch' needs return_logprobs=False in its ContinuousBatchingConfig, found True. Leave it out, or "
        "use model.generate_batch.",
    ),
    "parameters per request": (
        {"config": {"per_request_processors": True}},
        "'generate_batch' needs per_request_processors=False in its ContinuousBatchingConfig, found True. Leave it "
        "out, or use model.generate_batch.",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_refusals_name_a_remedy(arguments, message):
    with pytest.raises(InvalidParameterError) as error:
        batch(**{"inputs": prompts(2).tolist(), **arguments})
    assert str(error.value) == message
