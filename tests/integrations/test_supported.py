"""The range of transformers stands in a single place; other versions and signatures are a clear error."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

from packaging.requirements import Requirement
from transformers import GenerationMixin

import tokendraw_transformers
from tokendraw_transformers import TransformersVersionError
from tokendraw_transformers._errors import check_signatures, check_version, supported_range

PROJECT = Path(__file__).parents[2] / "integrations" / "transformers"


def test_the_range_is_that_of_the_project_file():
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (line,) = [line for line in project["dependencies"] if line.startswith("transformers")]
    assert supported_range() == Requirement(line)


@pytest.mark.parametrize("version", ["5.0.0", "5.23.0", "5.99.1", "5.1.0rc1"])
def test_a_version_in_the_range_is_taken(version):
    check_version(version, supported_range())


@pytest.mark.parametrize("version", ["4.57.6", "6.0.0", "6.0.0.dev0"])
def test_a_version_outside_is_refused(version):
    with pytest.raises(TransformersVersionError) as error:
        check_version(version, Requirement("transformers<6,>=5.0"))
    assert str(error.value) == (
        f"'tokendraw-transformers' needs transformers<6,>=5.0, found transformers {version}. "
        "Run: pip install 'transformers<6,>=5.0'"
    )
    assert isinstance(error.value, ImportError)


def test_the_installed_one_has_the_signatures():
    check_signatures(GenerationMixin, "installed")


class OtherLoop(GenerationMixin):
    def _sample(self, input_ids, sampler, **model_kwargs):
        """Have a different signature."""


class OtherGenerate(GenerationMixin):
    def generate(self, inputs, streamer):
        """Take fewer arguments."""


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (
            OtherLoop,
            "'GenerationMixin._sample' of transformers 5.99.0 needs the parameters self, input_ids, logits_processor, "
            "stopping_criteria, generation_config, synced_gpus, streamer, model_kwargs, found self, input_ids, "
            "sampler, model_kwargs",
        ),
        (
            OtherGenerate,
            "'GenerationMixin.generate' of transformers 5.99.0 needs the parameters assistant_model, streamer, "
            "synced_gpus, found streamer",
        ),
    ],
)
def test_other_parameters_are_refused(later, words):
    with pytest.raises(TransformersVersionError) as error:
        check_signatures(later, "5.99.0")
    assert str(error.value) == (
        f"{words}. Install a transformers that tokendraw-transformers was tested with, or leave out custom_generate."
    )


def test_a_loop_with_another_choice_of_tokens_is_refused(monkeypatch):
    import torch

    from tokendraw_transformers._drawing import DrawnScores
    from transformers_models import draw, model_of, prompts

    monkeypatch.setattr("tokendraw_transformers._drawing._ARGMAX", (torch.argmin,))
    with pytest.raises(TransformersVersionError) as error:
        draw(model_of("llama"), prompts(1), seeds=[1])
    assert str(error.value) == (
        "'GenerationMixin._sample' needs to take its tokens by torch.argmax, found that it took others. Install a "
        "transformers that tokendraw-transformers was tested with, or leave out custom_generate."
    )
    assert issubclass(DrawnScores, torch.Tensor)


def test_importing_the_adapter_loads_neither_torch_nor_transformers():
    code = "import sys, tokendraw_transformers; print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_all_names_the_exported_names():
    assert dir(tokendraw_transformers) == sorted(tokendraw_transformers.__all__)
    for name in tokendraw_transformers.__all__:
        assert getattr(tokendraw_transformers, name).__doc__
    with pytest.raises(AttributeError) as error:
        tokendraw_transformers.genrate  # noqa: B018
    assert str(error.value) == "module 'tokendraw_transformers' has no attribute 'genrate'"


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("generate_batch", "use generate, whose rows have seeds of their own too"),
        (
            "chat_logprobs",
            "the output's row(i) lists (token id, logprob, rank) of each step, for a server to format",
        ),
    ],
)
def test_a_removed_name_says_what_to_use_in_its_place(name, instead):
    with pytest.raises(ImportError) as error:
        exec(f"from tokendraw_transformers import {name}")
    assert str(error.value) == f"'tokendraw_transformers.{name}' was removed: {instead}."


def test_missing_metadata_is_an_error(monkeypatch):
    monkeypatch.setattr("tokendraw_transformers._errors.requires", lambda name: None)
    with pytest.raises(TransformersVersionError) as error:
        supported_range()
    assert str(error.value) == (
        "'tokendraw-transformers' needs its own metadata, found none that names transformers. Install it anew."
    )
