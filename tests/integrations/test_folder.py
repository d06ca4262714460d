"""A model repository with the folder ``custom_generate`` draws through tokendraw, whatever the model is used for."""

import shutil
from pathlib import Path

import pytest
import torch

pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

from transformers import AutoModelForCausalLM

import tokendraw_transformers
from tokendraw import InvalidParameterError
from transformers_models import STEPS, draw, model_of, prompts

ADAPTER = Path(__file__).parents[2] / "integrations" / "transformers"
SETTINGS = {"do_sample": True, "max_new_tokens": STEPS}
PAGED = (
    "'cache_implementation' needs another value than 'paged', for which transformers calls no custom_generate. Leave "
    "it out, or use tokendraw_transformers.generate_batch."
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A folder with a model's weights and our decoding method."""
    folder = tmp_path_factory.mktemp("repository")
    model_of("llama").save_pretrained(folder)
    shutil.copytree(ADAPTER / "custom_generate", folder / "custom_generate")
    return folder


@pytest.fixture(scope="module")
def folder_model(repository):
    """The model of the folder, with the folder's ``generate``."""
    return AutoModelForCausalLM.from_pretrained(repository, trust_remote_code=True)


def test_a_model_takes_the_method_from_a_folder():
    out = model_of("llama").generate(
        prompts(2),
        custom_generate=str(ADAPTER),
        trust_remote_code=True,
        seeds=[1, 2],
        logprobs=0,
        return_dict_in_generate=True,
        **SETTINGS,
    )
    assert torch.equal(out.sequences, draw(model_of("llama"), prompts(2), seeds=[1, 2]))
    assert out.logprobs.shape == (2, STEPS)


def test_a_model_loaded_from_the_folder_draws_by_default(folder_model):
    expected = draw(model_of("llama"), prompts(2), seeds=[1, 2])
    assert torch.equal(folder_model.generate(prompts(2), seeds=[1, 2], **SETTINGS), expected)
    assert torch.equal(folder_model.generate(inputs=prompts(2), seeds=[1, 2], **SETTINGS), expected)


def test_a_model_loaded_from_the_folder_takes_the_folder_as_an_argument(folder_model, repository):
    expected = draw(model_of("llama"), prompts(2), seeds=[1, 2])
    for method in (str(repository), tokendraw_transformers.generate):
        found = folder_model.generate(
            prompts(2), custom_generate=method, trust_remote_code=True, seeds=[1, 2], **SETTINGS
        )
        assert torch.equal(found, expected)


def test_another_method_of_the_callers_goes_first(folder_model):
    def untouched(model, input_ids, **prepared):
        return input_ids

    assert torch.equal(folder_model.generate(prompts(2), custom_generate=untouched, **SETTINGS), prompts(2))


def test_the_paged_cache_is_refused_where_it_can_be_seen(folder_model):
    with pytest.raises(InvalidParameterError) as error:
        folder_model.generate(prompts(2), cache_implementation="paged", seeds=[1, 2], **SETTINGS)
    assert str(error.value) == PAGED
