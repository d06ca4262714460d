"""``tokendraw generate --model``: tokendraw draws each token of a Hugging Face model on disk."""

import json
import shutil
import sys

import pytest
import torch

pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from command_line import DRAWN_BY_NATIVE, NATIVE_ON_CPU, call
from special_rows import SAMPLE
from tokendraw import SamplingParams
from tokendraw_testing import reference
from tokendraw_testing.cases.telling import POSITION, telling_rows
from transformers_models import constant_model, draw, model_of

WORDS = ["[PAD]", "[UNK]", "[END]", *(f"w{i}" for i in range(97))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of 100 words and its tokenizer in a folder written by save_pretrained."""
    path = tmp_path_factory.mktemp("model")
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[END]"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(path)
    model_of("llama", len(WORDS)).save_pretrained(path)
    return path


def generate(folder, *arguments):
    return call("generate", "w1 w2 w3", "--model", folder, *NATIVE_ON_CPU, *arguments)


def test_it_writes_what_the_adapter_draws(folder):
    result = generate(folder, "--seed", "7", "--top-k", "20", "-n", "9", "--json")
    assert (result.stderr, result.exit_code) == ("", 0)
    (entry,) = json.loads(result.stdout)["texts"]
    ids = [WORDS.index(word) for word in ("w1", "w2", "w3")]
    expected = draw(model_of("llama", len(WORDS)), torch.tensor([ids]), seeds=[7], top_k=20, max_new_tokens=9)
    assert entry["token_ids"] == expected[0, 3:].tolist()
    assert entry["text"] == "".join(f" {WORDS[i]}" for i in entry["token_ids"] if i > 2)


def test_it_prints_the_prompt_and_the_text(folder):
    result = generate(folder, "--seed", "7", "-n", "9")
    assert (result.stderr, result.exit_code) == (DRAWN_BY_NATIVE, 0)
    (entry,) = json.loads(generate(folder, "--seed", "7", "-n", "9", "--json").stdout)["texts"]
    assert result.stdout.split() == ["w1", "w2", "w3", *entry["text"].split()]


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_it_draws_with_the_noise_that_was_asked_for(folder, tmp_path, dtype):
    row = next(telling_rows(*SAMPLE))
    shutil.copytree(folder, tmp_path / "model")
    constant_model(row.logits).save_pretrained(tmp_path / "model")
    prompt = " ".join(["w1"] * (POSITION + 1))
    options = ("--seed", row.seed, "-n", 1, "--gumbel-dtype", dtype, "--json")
    result = call("generate", prompt, "--model", tmp_path / "model", *NATIVE_ON_CPU, *options)
    prepared = reference.prepare(row.logits, SamplingParams())
    tokens = {each: reference.draw(prepared, row.seed, POSITION, each)[0] for each in ("fp32", "fp64")}
    assert tokens["fp32"] != tokens["fp64"]
    assert json.loads(result.stdout)["texts"][0]["token_ids"] == [tokens[dtype]]


def test_a_folder_without_a_model_is_refused(tmp_path):
    result = generate(tmp_path)
    assert (result.stdout, result.exit_code) == ("", 1)
    assert result.stderr.startswith(
        f"'--model' needs a folder that transformers can load, found '{tmp_path}': "
    )
    assert result.stderr.endswith(" Give one that save_pretrained wrote, with its tokenizer.\n")
    assert len(result.stderr.splitlines()) == 1


def test_without_the_adapter_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokendraw_transformers", None)
    result = generate(tmp_path)
    assert (result.stdout, result.exit_code) == ("", 1)
    assert result.stderr == (
        "'--model' needs tokendraw-transformers, found it not installed; run `pip install "
        "./integrations/transformers` in tokendraw's checkout.\n"
    )
