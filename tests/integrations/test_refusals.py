"""Unsupported arguments, and versions of transformers, are refused with the whole message, as refusals.txt has it.

No argument is dropped silently. The range of versions stands in a single place.
"""

import tomllib

import pytest
import torch

pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

from packaging.requirements import Requirement
from transformers import GenerationMixin

import call_tables
import tokendraw
import tokendraw_transformers
from checkout import ROOT
from tokendraw_transformers._errors import check_signatures, check_version, supported_range
from transformers_models import draw, model_of, prompts


class OtherLoop(GenerationMixin):
    def _sample(self, input_ids, sampler, **model_kwargs):
        """Have a different signature."""


class OtherGenerate(GenerationMixin):
    def generate(self, inputs, streamer):
        """Take fewer arguments."""


def own_loop(input_ids):
    """Generate with a model's own loop."""
    model = model_of("llama")

    class OwnLoop(type(model)):
        def _sample(self, *arguments, **more):
            return GenerationMixin._sample(self, *arguments, **more)

    return draw(OwnLoop(model.config), input_ids)


def with_another_choice_of_tokens():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokendraw_transformers._generate._ARGMAX", (torch.argmin,))
        draw(model_of("llama"), prompts(1), seeds=[1])


def without_metadata():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokendraw_transformers._errors.requires", lambda name: None)
        supported_range()


WORDS = {
    "OtherLoop": OtherLoop,
    "OtherGenerate": OtherGenerate,
    "check_signatures": check_signatures,
    "check_version": check_version,
    "own_loop": own_loop,
    "without_metadata": without_metadata,
    "with_another_choice_of_tokens": with_another_choice_of_tokens,
    "prompts": prompts,
    "torch": torch,
    "SamplingParams": tokendraw.SamplingParams,
    "generate": lambda **given: draw(model_of("llama"), **{"input_ids": prompts(2)} | given),
    "small": model_of("llama", layers=1),
    "native": tokendraw.load_sampler("native", device="cpu"),
    "embeds": model_of("llama").get_input_embeddings()(prompts(1)),
    "places": torch.arange(5)[None],
    "record": {"return_dict_in_generate": True},
    "processor": tokendraw_transformers.DrawLogitsProcessor,
    "versions": Requirement("transformers<6,>=5.0"),
    "imported": lambda name: exec(f"from tokendraw_transformers import {name}"),
}


def test_refusals_name_a_remedy():
    table = call_tables.Table(__file__, "refusals.txt")
    assert table.found(lambda: WORDS) == table.text


def test_transformers_itself_refuses_stop_strings_since_it_drops_the_tokenizer():
    with pytest.raises(ValueError, match="we could not locate a tokenizer"):
        draw(model_of("llama"), prompts(1), stop_strings=["x"], tokenizer=object())


def test_the_range_is_the_project_files_and_the_installed_one_has_the_signatures():
    project = tomllib.loads((ROOT / "integrations/transformers/pyproject.toml").read_text("utf-8"))["project"]
    (line,) = [line for line in project["dependencies"] if line.startswith("transformers")]
    assert supported_range() == Requirement(line)
    check_signatures(GenerationMixin, "installed")
    for version in ("5.0.0", "5.23.0", "5.99.1", "5.1.0rc1"):
        check_version(version, supported_range())


def test_an_unknown_name_is_none_of_the_package():
    with pytest.raises(AttributeError) as unknown:
        tokendraw_transformers.genrate  # noqa: B018
    assert str(unknown.value) == "module 'tokendraw_transformers' has no attribute 'genrate'"
    assert dir(tokendraw_transformers) == sorted(tokendraw_transformers.__all__)
