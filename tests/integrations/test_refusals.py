"""Unsupported arguments are refused with the whole message; no argument is dropped silently."""

import pytest
import torch

pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

from transformers import GenerationMixin

import tokendraw
from tokendraw import InvalidParameterError, SamplerUnavailableError, SamplingParams
from tokendraw_transformers import DrawLogitsProcessor
from transformers_models import draw, model_of, prompts

WE = "'custom_generate=tokendraw_transformers.generate'"
ASSISTED = (
    f"{WE} needs one model and one token a step, found assisted generation. Leave out custom_generate, and pass "
    "logits_processor=[tokendraw_transformers.DrawLogitsProcessor(...)] with do_sample=False: it draws the same tokens."
)


def search(found):
    return (
        f"{WE} needs sampling or greedy search, found {found}. Leave out what asks for it, as num_beams, or "
        "custom_generate."
    )


NO_SEEDS = {
    "generator": (seed for seed in [1, 2]),
    "Generator": torch.Generator(),
    "str": "12",
    "set": {1, 2},
    "float": 1.0,
}
REFUSED = {
    "beams": ({"num_beams": 2, "do_sample": False}, search("beam_search")),
    "beams that sample": ({"num_beams": 2}, search("beam_sample")),
    "contrastive": ({"do_sample": False, "penalty_alpha": 0.6, "top_k": 4}, search("contrastive_search")),
    "dola": ({"dola_layers": "high"}, search("dola_generation")),
    "prompt lookup": ({"prompt_lookup_num_tokens": 2}, ASSISTED),
    "early exit": ({"assistant_early_exit": 1}, ASSISTED),
    "logprobs without a place": (
        {"logprobs": 3},
        "'logprobs' needs return_dict_in_generate=True, found False. Pass return_dict_in_generate=True.",
    ),
    "logprobs below -1": (
        {"logprobs": -2, "return_dict_in_generate": True},
        "'logprobs' of row 0 needs an integer >= -1 (-1: all) or None, found -2.",
    ),
    "too few seeds": (
        {"seeds": [1]},
        "'seeds' needs one entry a row, 2, found 1. Pass a list of integers or None.",
    ),
    **{
        f"{found} for seeds": (
            {"seeds": seeds},
            "'seeds' needs an integer, one entry a row, 2, or a callable of the row, found a "
            f"{found}. Pass one of these.",
        )
        for found, seeds in NO_SEEDS.items()
    },
    "a base seed that is too large": (
        {"seeds": 2**64},
        "'seeds' needs a base seed in [-2**63, 2**64), found 18446744073709551616. Pass an integer in that range.",
    ),
    "a base seed that is a bool": (
        {"seeds": True},
        "'seeds' needs a base seed in [-2**63, 2**64), found True. Pass an integer in that range.",
    ),
    "a callable that returns no seed": (
        {"seeds": lambda row: "x"},
        "'seed' of row 0 needs an integer in [-2**63, 2**64) or None, found 'x'.",
    ),
    "floats in a tensor for seeds": (
        {"seeds": torch.tensor([1.5, 2.0])},
        "'seed' of row 0 needs an integer in [-2**63, 2**64) or None, found 1.5.",
    ),
    "a sampler that is none": (
        {"sampler": 5},
        "'sampler' needs the name of a plugin or what tokendraw.load_sampler returned, found a int. Pass one of "
        "these, or leave it out.",
    ),
    "text for logprobs": (
        {"logprobs": "3", "return_dict_in_generate": True},
        "'logprobs' of row 0 needs an integer >= -1 (-1: all) or None, found '3'.",
    ),
    "too few seeds for several sequences": (
        {"seeds": [1, 2], "num_return_sequences": 3},
        "'seeds' needs one entry a row, 6 (2 prompts, num_return_sequences=3), found 2. Pass a list of integers or "
        "None.",
    ),
    "a seed that is none": (
        {"seeds": [1, "x"]},
        "'seed' of row 1 needs an integer in [-2**63, 2**64) or None, found 'x'.",
    ),
    "a mode that is none": (
        {"logprobs": 0, "logprobs_mode": "log", "return_dict_in_generate": True},
        "'logprobs_mode' needs raw_logprobs, raw_logits, processed_logprobs, processed_logits or "
        "temperature_logprobs, found 'log'. Pass one of these.",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_refusals_name_a_remedy(arguments, message):
    with pytest.raises(InvalidParameterError) as error:
        draw(model_of("llama"), prompts(2), **arguments)
    assert str(error.value) == message


def test_an_assistant_model_is_refused():
    with pytest.raises(InvalidParameterError) as error:
        draw(model_of("llama"), prompts(1), assistant_model=model_of("llama", layers=1))
    assert str(error.value) == ASSISTED


def test_a_mode_beside_a_loaded_sampler_is_refused():
    sampler = tokendraw.load_sampler("native", device="cpu")
    with pytest.raises(InvalidParameterError) as error:
        draw(model_of("llama"), prompts(1), sampler=sampler, logprobs_mode="raw_logprobs")
    assert str(error.value) == (
        "'logprobs_mode' needs a sampler that is yet to be loaded, found <tokendraw.Sampler 'native' on cpu>. Pass "
        "logprobs_mode to tokendraw.load_sampler."
    )


def test_a_sampler_that_is_not_installed_is_refused():
    with pytest.raises(SamplerUnavailableError, match="'acme'"):
        draw(model_of("llama"), prompts(1), sampler="acme")


def test_a_mask_that_does_not_tell_padding_is_refused():
    embeds = model_of("llama").get_input_embeddings()(prompts(1))
    mask = torch.ones(1, 1, 5, 5, dtype=torch.long).tril()
    with pytest.raises(InvalidParameterError) as error:
        draw(
            model_of("llama"),
            None,
            inputs_embeds=embeds,
            attention_mask=mask,
            position_ids=torch.arange(5)[None],
        )
    assert str(error.value) == (
        "'attention_mask' needs shape [B, L], by which padding is told from tokens, found [1, 1, 5, 5]."
    )


def test_a_model_with_a_loop_of_its_own_is_refused():
    model = model_of("llama")

    class OwnLoop(type(model)):
        def _sample(self, *arguments, **more):
            return GenerationMixin._sample(self, *arguments, **more)

    own = OwnLoop(model.config)
    with pytest.raises(InvalidParameterError) as error:
        draw(own, prompts(1))
    assert str(error.value) == (
        f"{WE} needs the decoding loop of transformers, found that OwnLoop has one of its own. Leave out "
        "custom_generate."
    )


def test_transformers_itself_refuses_stop_strings_since_it_drops_the_tokenizer():
    with pytest.raises(ValueError, match="we could not locate a tokenizer"):
        draw(model_of("llama"), prompts(1), stop_strings=["x"], tokenizer=object())


def test_the_processor_refuses_logprobs_and_a_wrong_number_of_rows():
    with pytest.raises(InvalidParameterError) as error:
        DrawLogitsProcessor(SamplingParams(logprobs=3))
    assert str(error.value) == (
        "'logprobs' needs an output to stand in, found a logits processor, which has none. Leave it out, or use "
        "custom_generate=tokendraw_transformers.generate."
    )
    two = DrawLogitsProcessor([SamplingParams(), SamplingParams()])
    with pytest.raises(InvalidParameterError) as error:
        two(prompts(3), torch.zeros(3, 8))
    assert str(error.value) == "'params' needs one entry a row, 3, found 2. Pass as many, or one for all."
    for params in (None, 5, {"top_p": 0.9}, [None]):
        with pytest.raises(InvalidParameterError) as error:
            DrawLogitsProcessor(params)
        assert str(error.value) == (
            "'params' needs a tokendraw.SamplingParams, or a list of them, one a row, found something else. Pass one "
            "of these."
        )
    with pytest.raises(InvalidParameterError) as error:
        DrawLogitsProcessor(SamplingParams(top_p=0.0))
    assert str(error.value) == "'top_p' of row 0 needs a number in (0, 1] (1: off), found 0.0."


@pytest.mark.parametrize("width", [-1, "2", 1.0, None, [1, "2"], True])
def test_the_processor_refuses_padding_that_is_no_number_of_tokens(width):
    with pytest.raises(InvalidParameterError) as error:
        DrawLogitsProcessor(SamplingParams(), left_padding=width)
    assert str(error.value) == (
        f"'left_padding' needs an integer >= 0, or a list of them, one a row, found {width!r}. Pass one of these."
    )


def test_the_processor_refuses_padding_of_another_number_of_rows():
    with pytest.raises(InvalidParameterError) as error:
        DrawLogitsProcessor(SamplingParams(), left_padding=[1, 2])(prompts(3), torch.zeros(3, 8))
    assert str(error.value) == (
        "'left_padding' needs one entry a row, 3, found 2. Pass as many, or one for all."
    )
