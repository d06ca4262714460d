"""The README of the adapter is true: its Python runs, on models made in memory."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

import transformers

from tokendraw_transformers._errors import supported_range
from transformers_models import byte_tokenizer, draw, model_of, prompts

FOLDER = Path(__file__).parents[2] / "integrations" / "transformers"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
SIX_LINES, PIPELINE, TRL, ASSISTED = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


class Tokenizer:
    """Knows two prompts."""

    def __call__(self, texts, return_tensors, padding):
        ids = prompts(len(texts))
        return transformers.BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})


@pytest.fixture
def no_download(monkeypatch):
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda name, **_: Tokenizer())
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda name: model_of("qwen2"))


def test_the_six_lines_to_paste_run(no_download):
    names = {}
    exec(compile(SIX_LINES, "README.md", "exec"), names)
    model = model_of("qwen2")
    expected = draw(model, prompts(2), seeds=[1, 2], max_new_tokens=64)
    assert torch.equal(names["out"], expected)
    assert len([line for line in SIX_LINES.splitlines() if line]) == 6


@pytest.mark.slow
def test_the_lines_on_pipelines_run():
    names = {"model": model_of("llama"), "tokenizer": byte_tokenizer()}
    exec(compile(PIPELINE, "README.md", "exec"), names)
    again = names["pipe"](["Write a haiku."], do_sample=True, max_new_tokens=64)
    assert names["texts"][1:] == again
    assert names["texts"][1][0]["generated_text"].startswith("Write a haiku.")


def test_the_lines_on_trl_run(monkeypatch):
    trl = ModuleType("trl")
    trl.GRPOTrainer = dict  # keeps what it is given
    monkeypatch.setitem(sys.modules, "trl", trl)
    names = dict.fromkeys(["model", "reward", "args", "prompts"])
    exec(compile(TRL, "README.md", "exec"), names)
    assert callable(names["trainer"]["rollout_func"])


@pytest.mark.slow
def test_the_lines_on_assisted_generation_run():
    model = model_of("llama")
    names = {"model": model, "small": model_of("llama", layers=1), "inputs": {"input_ids": prompts(1)}}
    exec(compile(ASSISTED, "README.md", "exec"), names)
    expected = draw(model, prompts(1), seeds=[7], temperature=0.7, top_k=0, top_p=0.9, max_new_tokens=64)
    assert torch.equal(names["out"], expected)


def test_the_range_is_the_declared_one():
    lowest, below = sorted(str(part) for part in supported_range().specifier)[::-1]
    assert f"transformers outside `{lowest},{below}`" in README


def test_every_named_file_exists():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (FOLDER / link).exists()] == []
    modules = re.findall(r"^\| `(_\w+\.py)`", README, re.MULTILINE)
    here = {path.name for path in (FOLDER / "src" / "tokendraw_transformers").glob("_*.py")}
    assert here - {"__init__.py"} == set(modules)
