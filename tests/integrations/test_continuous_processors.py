"""``generate_batch`` applies each setting of a processor as ``generate`` does, or refuses the setting by name."""

import copy
import inspect
import re
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers", minversion="5.23", reason="needs transformers >= 5.23")
pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    Qwen2ForCausalLM,
    SuppressTokensLogitsProcessor,
    WatermarkingConfig,
)
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.requests import RequestState

import tokendraw_transformers
from tokendraw import InvalidParameterError, SamplingParams
from tokendraw_transformers._batch_edits import BatchEdits
from transformers_models import model_of

V = 8
STEPS = 8
PROMPTS = [[1, 2], [5], [3, 3, 1, 2, 6], [7, 2]]
SEEDS = [1, 2, 3, 4]
INF = float("inf")
HERE = "'generate_batch' needs settings that it serves in continuous batching, found "
ELSEWHERE = " or use model.generate with custom_generate=tokendraw_transformers.generate."
SERVED = {
    "nothing": {},
    "sequence_bias": {"sequence_bias": [[[4], 3.0], [[7], -INF], [[1], -2.5]]},
    "sequence_bias that forbids sequences": {
        "sequence_bias": [[[2, 4], -INF], [[4], -2.0], [[1, 2, 7], -INF]]
    },
    "repetition_penalty": {"repetition_penalty": 1e30},
    "repetition_penalty below 1": {"repetition_penalty": 0.3},
    "bad_words_ids": {"bad_words_ids": [[4], [2, 7], [3, 3, 1], [0, 5]], "eos_token_id": 4},
    "bad_words_ids that are as long as a prompt": {"bad_words_ids": [[1, 2, 4], [5, 6], [7, 2, 1]]},
    "min_length": {"min_length": 7, "eos_token_id": [4, 1, 0, 3]},
    "min_new_tokens": {"min_new_tokens": 5, "eos_token_id": [4, 1, 0, 3]},
    "min_new_tokens before min_length": {"min_new_tokens": 1, "min_length": 9, "eos_token_id": [4, 1, 0, 3]},
    "min_length without an end": {"min_length": 7},
    "remove_invalid_values": {"remove_invalid_values": True, "bad_words_ids": [[4]], "suppress_tokens": [1]},
    "suppress_tokens": {"suppress_tokens": [4, 7, 99]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [4, 6, 2]},
    "begin_suppress_tokens beside min_length": {
        "begin_suppress_tokens": [6, 2, 7],
        "min_length": 6,
        "eos_token_id": [4, 1],
    },
    "temperature": {"temperature": 0.5},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.2},
    "renormalize_logits": {"renormalize_logits": True},
    "epsilon_cutoff alone": {"epsilon_cutoff": 0.15, "top_k": 0},
    "eta_cutoff beside top-k": {"eta_cutoff": 0.3, "top_k": 4, "temperature": 1.5},
    "all": {
        "sequence_bias": [[[4], 1.5]],
        "repetition_penalty": 2.5,
        "bad_words_ids": [[2, 7]],
        "min_length": 6,
        "eos_token_id": [4, 1],
        "suppress_tokens": [0],
        "begin_suppress_tokens": [6],
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.01,
        "renormalize_logits": True,
    },
}
REFUSED = {
    "guidance_scale": 1.5,
    "sequence_bias": [[[2, 4], 2.5]],
    "encoder_repetition_penalty": 1.5,
    "no_repeat_ngram_size": 2,
    "encoder_no_repeat_ngram_size": 2,
    "forced_bos_token_id": 3,
    "forced_eos_token_id": 3,
    "exponential_decay_length_penalty": (2, 1.5),
    "watermarking_config": WatermarkingConfig(),
    "top_h": 0.4,
}
(SERVED if hasattr(SamplingParams, "typical_p") else REFUSED)["typical_p"] = (
    {"typical_p": 0.3} if hasattr(SamplingParams, "typical_p") else 0.9
)
OTHERS = {"do_sample", "num_beams", "use_cache", "max_length", "_eos_token_tensor"}
"""Settings that ``_get_logits_processor`` reads and makes no processor of."""


@pytest.fixture
def model():
    return copy.deepcopy(model_of("qwen2", V))


@pytest.fixture
def forwards(monkeypatch):
    """Number of calls of the model."""
    calls, forward = [], Qwen2ForCausalLM.forward
    monkeypatch.setattr(
        Qwen2ForCausalLM,
        "forward",
        lambda self, *given, **more: calls.append(1) or forward(self, *given, **more),
    )
    return calls


def batch(model, inputs=PROMPTS, seeds=SEEDS, config=None, **settings):
    """Draw in steps of at most three requests, so that some have to wait."""
    few = {"num_blocks": 16, "page_size": 16, "max_batch_tokens": 64, "max_requests_per_batch": 3}
    arguments = settings.pop("arguments", {})
    results = tokendraw_transformers.generate_batch(
        model,
        inputs,
        seeds=seeds,
        generation_config=GenerationConfig(**{"do_sample": True, "max_new_tokens": STEPS, **settings}),
        continuous_batching_config=ContinuousBatchingConfig(**{**few, **(config or {})}),
        allow_private_names=True,
        **arguments,
    )
    assert [result.error for result in results.values()] == [None] * len(inputs)
    return [result.generated_tokens for result in results.values()]


def alone(model, inputs=PROMPTS, seeds=SEEDS, **settings):
    """Draw by ``generate``, prompt by prompt."""
    config = GenerationConfig(**{"do_sample": True, "max_new_tokens": STEPS, **settings})
    return [
        model.generate(
            torch.tensor([prompt]),
            seeds=[seed],
            generation_config=config,
            custom_generate=tokendraw_transformers.generate,
        )[0, len(prompt) :].tolist()
        for prompt, seed in zip(inputs, seeds, strict=True)
    ]


UNCHANGED = ("nothing", "renormalize_logits", "min_length without an end")
"""Settings that change no token of ``generate`` either."""


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.fast_first
def test_a_served_setting_changes_tokens_and_gives_those_of_generate(model, name):
    settings = SERVED[name]
    needed = alone(model, **settings)
    assert batch(model, **settings) == needed
    if name not in UNCHANGED:
        ends = {"eos_token_id": settings["eos_token_id"]} if "eos_token_id" in settings else {}
        assert needed != alone(model, **ends)


@pytest.mark.parametrize("field", REFUSED)
def test_a_refused_setting_is_named_before_the_model_is_called(model, forwards, field):
    with pytest.raises(InvalidParameterError) as error:
        batch(model, eos_token_id=4, **{field: REFUSED[field]})
    assert f"found {field}" in str(error.value)
    assert f"Leave out {field}" in str(error.value)
    assert forwards == []


@pytest.mark.parametrize("field", REFUSED)
@pytest.mark.fast_first
def test_a_setting_of_the_model_is_refused_alike(model, forwards, field):
    setattr(model.generation_config, field, REFUSED[field])
    with pytest.raises(InvalidParameterError, match=f"found {field}"):
        batch(model, eos_token_id=4)
    assert forwards == []


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1e30},
        {"min_new_tokens": 5, "eos_token_id": [4, 1, 0, 3]},
        {"suppress_tokens": [4]},
    ],
    ids=str,
)
@pytest.mark.slow
def test_a_setting_of_the_model_is_served_alike(model, settings):
    needed = alone(model, **settings)
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    assert batch(model) == alone(model) == needed


def test_every_setting_that_makes_a_processor_is_in_these_tables():
    source = inspect.getsource(GenerationMixin._get_logits_processor)
    read = set(re.findall(r"generation_config\.(\w+)", source)) - OTHERS
    assert read == {name for settings in SERVED.values() for name in settings if name in read} | set(REFUSED)


@pytest.mark.slow
def test_greedy_requests_are_edited_too(model):
    settings = {"do_sample": False, "repetition_penalty": 1e30, "bad_words_ids": [[4]], "top_k": None}
    seeds = [None] * len(PROMPTS)
    needed = alone(model, seeds=seeds, **settings)
    assert batch(model, seeds=seeds, **settings) == needed
    assert needed != alone(model, seeds=seeds, do_sample=False, top_k=None)


REFUSED_OTHERWISE = {
    "num_beams": (
        {"num_beams": 2},
        "'generate_batch' needs sampling or greedy search, found beam_sample. Leave out what asks for it, as "
        "num_beams.",
    ),
    "prompt lookup": (
        {"prompt_lookup_num_tokens": 2},
        "'generate_batch' needs sampling or greedy search, found assisted_generation. Leave out what asks for it, as "
        "num_beams.",
    ),
    "max_time": ({"max_time": 1.0}, f"{HERE}max_time=1.0. Leave out max_time,{ELSEWHERE}"),
    "stop_strings": (
        {"stop_strings": ["x"]},
        f"{HERE}stop_strings=['x']. Leave out stop_strings,{ELSEWHERE}",
    ),
    "token_healing": (
        {"token_healing": True},
        f"{HERE}token_healing=True. Leave out token_healing,{ELSEWHERE}",
    ),
    "logprobs": ({"logprobs": 0}, f"{HERE}logprobs=0. Leave out logprobs,{ELSEWHERE}"),
    "no_repeat_ngram_size": (
        {"no_repeat_ngram_size": 2},
        f"{HERE}no_repeat_ngram_size=2. Leave out no_repeat_ngram_size,{ELSEWHERE}",
    ),
    "top_h": ({"top_h": 0.4}, f"{HERE}top_h=0.4. Leave out top_h,{ELSEWHERE}"),
    "a bias that is not finite": (
        {"sequence_bias": [[[2], INF]]},
        f"{HERE}sequence_bias=[[[2], inf]]: 'logit_bias' needs finite float32 values, found inf. Leave out "
        f"sequence_bias,{ELSEWHERE}",
    ),
    "a bad word outside the vocabulary": (
        {"bad_words_ids": [[2, 8]]},
        f"{HERE}bad_words_ids=[[2, 8]]: 'bad_words' needs token ids in [0, 8), found 8. Leave out "
        f"bad_words_ids,{ELSEWHERE}",
    ),
    "a penalty beyond float32": (
        {"repetition_penalty": 1e40},
        f"{HERE}repetition_penalty=1e+40: 'repetition_penalty' needs a finite float32 > 0 (1: off), found 1e+40. Leave "
        f"out repetition_penalty,{ELSEWHERE}",
    ),
    "asynchronous batches": (
        {"repetition_penalty": 2.0, "config": {"use_async_batching": True}},
        "'generate_batch' needs use_async_batching=False in its ContinuousBatchingConfig for settings that edit "
        "scores, as repetition_penalty, found True. Leave it out.",
    ),
    "a prompt as long as max_length": (
        {"max_new_tokens": None, "max_length": 5},
        "'max_length' of prompt 2 needs more than its 5 tokens, found 5. Pass max_new_tokens.",
    ),
}


@pytest.mark.parametrize(("settings", "message"), REFUSED_OTHERWISE.values(), ids=REFUSED_OTHERWISE)
def test_settings_without_a_way_in_a_batch_are_refused_before_the_model_is_called(
    model, forwards, settings, message
):
    with pytest.raises(InvalidParameterError) as error:
        batch(model, **settings)
    assert str(error.value) == message
    assert forwards == []


def test_a_processor_that_the_model_makes_itself_is_refused_by_its_class(model, forwards):
    class OwnProcessor(LogitsProcessor):
        def __repr__(self):
            return "OwnProcessor()"

    class OwnProcessors(Qwen2ForCausalLM):
        def _get_logits_processor(self, *given, **more):
            return [*super()._get_logits_processor(*given, **more), OwnProcessor()]

    model.__class__ = OwnProcessors
    with pytest.raises(InvalidParameterError) as error:
        batch(model)
    assert str(error.value) == f"{HERE}OwnProcessor=OwnProcessor(). Leave out OwnProcessor,{ELSEWHERE}"
    assert forwards == []


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`")
@pytest.mark.parametrize(
    "settings", [{}, {"max_length": 9}, {"max_new_tokens": 3, "max_length": 30}], ids=str
)
@pytest.mark.slow
def test_lengths_equal_those_of_generate(model, settings):
    settings = {"max_new_tokens": None, **settings}
    needed = alone(model, **settings)
    assert batch(model, **settings) == needed
    assert {len(row) for row in needed} != {STEPS}


@pytest.mark.slow
def test_preempted_requests_are_edited_as_without_the_preemption(model, monkeypatch):
    """In a cache too small for all of them at their full lengths, requests leave and come back."""
    left, again = [], RequestState.create_equivalent_initial_request
    monkeypatch.setattr(
        RequestState, "create_equivalent_initial_request", lambda state: left.append(state) or again(state)
    )
    settings = {**SERVED["all"], "eos_token_id": 99, "min_length": 20, "max_new_tokens": 24}
    small = {"num_blocks": 7, "page_size": 8, "max_batch_tokens": 32}
    assert batch(model, config=small, **settings) == alone(model, **settings)
    assert left


def test_padding_rows_belong_to_an_unassigned_slot(model):
    """Padding rows occur in the warmup of a CUDA graph, and after the rows of a batch in a graph."""
    batching = SimpleNamespace(max_requests_per_batch=3)
    edits = BatchEdits([SuppressTokensLogitsProcessor([1])], batching, 9, 20, V, torch.device("cpu"))

    def request(name, tokens, **more):
        return SimpleNamespace(
            state=SimpleNamespace(
                request_id=name, initial_tokens=tokens, generated_tokens=[], logit_processor_kwargs=more
            )
        )

    assert edits.prepare_tensor_args([request("__warmup__", [0] * 99)]).tolist() == [3, 3, 3]
    rows = edits.prepare_tensor_args([request("a", [1], prompt_length=1), request("b", [2], prompt_length=1)])
    assert sorted(rows[:2].tolist()) == [1, 2]
    assert rows[2:].tolist() == [3]
    scores = edits(torch.zeros(3, V), rows)
    assert scores.isinf().sum(1).tolist() == [1, 1, 0]
    more = [request(name, [3], prompt_length=1) for name in "cda"]
    assert sorted(edits.prepare_tensor_args(more).tolist()) == [0, 1, 2]
