"""Unsupported arguments, and versions of transformers, are refused with the whole message.

No argument is dropped silently. The range of versions stands in a single place.
"""

import subprocess
import sys
import tomllib

import pytest
import torch

pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

from packaging.requirements import Requirement
from transformers import GenerationMixin

import tokendraw
import tokendraw_transformers
from checkout import ROOT
from tokendraw import InvalidParameterError, SamplerUnavailableError, SamplingParams
from tokendraw_transformers import DrawLogitsProcessor, TransformersVersionError
from tokendraw_transformers._errors import check_signatures, check_version, supported_range
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
    "an assistant model": (lambda: {"assistant_model": model_of("llama", layers=1)}, ASSISTED),
    "a mode beside a loaded sampler": (
        lambda: {"sampler": tokendraw.load_sampler("native", device="cpu"), "logprobs_mode": "raw_logprobs"},
        "'logprobs_mode' needs a sampler that is yet to be loaded, found <tokendraw.Sampler 'native' on cpu>. Pass "
        "logprobs_mode to tokendraw.load_sampler.",
    ),
    "kept ids of a sampler without thresholds": (
        lambda: {
            "sampler": tokendraw.load_sampler("native", device="cpu"),
            "kept_ids": 3,
            "return_dict_in_generate": True,
        },
        "'kept_ids' needs a sampler with thresholds, found <tokendraw.Sampler 'native' on cpu>. Load it with "
        "tokendraw.Need(threshold=True), or pass its name.",
    ),
    **{
        f"{name} without a place": (
            {name: value},
            f"'{name}' needs return_dict_in_generate=True, found False. Pass return_dict_in_generate=True.",
        )
        for name, value in {"kept_ids": 3, "entropy": True}.items()
    },
    "a mask that does not tell padding": (
        lambda: {
            "input_ids": None,
            "inputs_embeds": model_of("llama").get_input_embeddings()(prompts(1)),
            "attention_mask": torch.ones(1, 1, 5, 5, dtype=torch.long).tril(),
            "position_ids": torch.arange(5)[None],
        },
        "'attention_mask' needs shape [B, L], by which padding is told from tokens, found [1, 1, 5, 5].",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_refusals_name_a_remedy(arguments, message):
    given = {"input_ids": prompts(2)} | (arguments() if callable(arguments) else arguments)
    with pytest.raises(InvalidParameterError) as error:
        draw(model_of("llama"), **given)
    assert str(error.value) == message


def test_a_sampler_that_is_not_installed_is_refused():
    with pytest.raises(SamplerUnavailableError, match="'acme'"):
        draw(model_of("llama"), prompts(1), sampler="acme")


def test_a_model_with_a_loop_of_its_own_is_refused():
    model = model_of("llama")

    class OwnLoop(type(model)):
        def _sample(self, *arguments, **more):
            return GenerationMixin._sample(self, *arguments, **more)

    with pytest.raises(InvalidParameterError) as error:
        draw(OwnLoop(model.config), prompts(1))
    assert str(error.value) == (
        f"{WE} needs the decoding loop of transformers, found that OwnLoop has one of its own. Leave out "
        "custom_generate."
    )


def test_transformers_itself_refuses_stop_strings_since_it_drops_the_tokenizer():
    with pytest.raises(ValueError, match="we could not locate a tokenizer"):
        draw(model_of("llama"), prompts(1), stop_strings=["x"], tokenizer=object())


# The processor.

TWO = [SamplingParams(), SamplingParams()]
PARAMS = (
    "'params' needs a tokendraw.SamplingParams, or a list of them, one a row, found something else. Pass one "
    "of these."
)
OF_THE_PROCESSOR = {
    "log-probabilities": (
        lambda: DrawLogitsProcessor(SamplingParams(logprobs=3)),
        "'logprobs' needs an output to stand in, found a logits processor, which has none. Leave it out, or use "
        "custom_generate=tokendraw_transformers.generate.",
    ),
    "another number of rows": (
        lambda: DrawLogitsProcessor(TWO)(prompts(3), torch.zeros(3, 8)),
        "'params' needs one entry a row, 3, found 2. Pass as many, or one for all.",
    ),
    **{
        f"{params} for params": (lambda params=params: DrawLogitsProcessor(params), PARAMS)
        for params in (None, 5, {"top_p": 0.9}, [None])
    },
    "a bad value": (
        lambda: DrawLogitsProcessor(SamplingParams(top_p=0.0)),
        "'top_p' of row 0 needs a number in (0, 1] (1: off), found 0.0.",
    ),
    **{
        f"{width!r} for padding": (
            lambda width=width: DrawLogitsProcessor(SamplingParams(), left_padding=width),
            f"'left_padding' needs an integer >= 0, or a list of them, one a row, found {width!r}. Pass one of these.",
        )
        for width in (-1, "2", 1.0, None, [1, "2"], True)
    },
    "padding of another number of rows": (
        lambda: DrawLogitsProcessor(SamplingParams(), left_padding=[1, 2])(prompts(3), torch.zeros(3, 8)),
        "'left_padding' needs one entry a row, 3, found 2. Pass as many, or one for all.",
    ),
}


@pytest.mark.parametrize(("call", "message"), OF_THE_PROCESSOR.values(), ids=OF_THE_PROCESSOR)
def test_the_processor_refuses_what_it_cannot_serve(call, message):
    with pytest.raises(InvalidParameterError) as error:
        call()
    assert str(error.value) == message


# Versions of transformers, and the names of the package.


def test_the_range_is_that_of_the_project_file_and_the_installed_one_has_the_signatures():
    project = tomllib.loads((ROOT / "integrations/transformers/pyproject.toml").read_text("utf-8"))["project"]
    (line,) = [line for line in project["dependencies"] if line.startswith("transformers")]
    assert supported_range() == Requirement(line)
    check_signatures(GenerationMixin, "installed")
    for version in ("5.0.0", "5.23.0", "5.99.1", "5.1.0rc1"):
        check_version(version, supported_range())


class OtherLoop(GenerationMixin):
    def _sample(self, input_ids, sampler, **model_kwargs):
        """Have a different signature."""


class OtherGenerate(GenerationMixin):
    def generate(self, inputs, streamer):
        """Take fewer arguments."""


REMEDY = "Install a transformers that tokendraw-transformers was tested with, or leave out custom_generate."
RANGE = Requirement("transformers<6,>=5.0")
UNSUPPORTED = {
    **{
        version: (
            lambda patch, version=version: check_version(version, RANGE),
            f"'tokendraw-transformers' needs transformers<6,>=5.0, found transformers {version}. "
            "Run: pip install 'transformers<6,>=5.0'",
        )
        for version in ("4.57.6", "6.0.0", "6.0.0.dev0")
    },
    "another loop": (
        lambda patch: check_signatures(OtherLoop, "5.99.0"),
        "'GenerationMixin._sample' of transformers 5.99.0 needs the parameters self, input_ids, logits_processor, "
        "stopping_criteria, generation_config, synced_gpus, streamer, model_kwargs, found self, input_ids, sampler, "
        f"model_kwargs. {REMEDY}",
    ),
    "fewer arguments": (
        lambda patch: check_signatures(OtherGenerate, "5.99.0"),
        "'GenerationMixin.generate' of transformers 5.99.0 needs the parameters assistant_model, streamer, "
        f"synced_gpus, found streamer. {REMEDY}",
    ),
    "another choice of tokens": (
        lambda patch: (
            patch.setattr("tokendraw_transformers._drawing._ARGMAX", (torch.argmin,)),
            draw(model_of("llama"), prompts(1), seeds=[1]),
        ),
        f"'GenerationMixin._sample' needs to take its tokens by torch.argmax, found that it took others. {REMEDY}",
    ),
    "missing metadata": (
        lambda patch: (
            patch.setattr("tokendraw_transformers._errors.requires", lambda name: None),
            supported_range(),
        ),
        "'tokendraw-transformers' needs its own metadata, found none that names transformers. Install it anew.",
    ),
}


@pytest.mark.parametrize(("call", "message"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_a_transformers_that_does_not_fit_is_refused(monkeypatch, call, message):
    with pytest.raises(TransformersVersionError) as error:
        call(monkeypatch)
    assert str(error.value) == message
    assert isinstance(error.value, ImportError)


def test_importing_the_adapter_loads_neither_torch_nor_transformers():
    code = "import sys, tokendraw_transformers; print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


INSTEAD = {
    "generate_batch": "use generate, whose rows have seeds of their own too",
    "chat_logprobs": "the output's row(i) lists (token id, logprob, rank) of each step, for a server to format",
}


@pytest.mark.parametrize("name", INSTEAD)
def test_a_removed_name_says_what_to_use_in_its_place(name):
    with pytest.raises(ImportError) as error:
        exec(f"from tokendraw_transformers import {name}")
    assert str(error.value) == f"'tokendraw_transformers.{name}' was removed: {INSTEAD[name]}."
    with pytest.raises(AttributeError) as unknown:
        tokendraw_transformers.genrate  # noqa: B018
    assert str(unknown.value) == "module 'tokendraw_transformers' has no attribute 'genrate'"
    assert dir(tokendraw_transformers) == sorted(tokendraw_transformers.__all__)
