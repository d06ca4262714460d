"""The READMEs of the adapters are true: files, versions, lines of the log, figures, and the Python of transformers'."""

import re
import sys
from types import ModuleType

import pytest
import torch

pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

import transformers

import pages
import tokendraw_sglang._engine as sglang
from tokendraw_transformers._errors import supported_range
from tokendraw_vllm import _parts as vllm_log
from tokendraw_vllm._engine import SWITCHED_OFF, TESTED
from tokendraw_vllm.v2.parameters import NOT_REPLACED
from transformers_models import byte_tokenizer, draw, model_of, prompts

READMES = {
    name: pages.text_of(f"integrations/{name}/README.md") for name in ("sglang", "transformers", "vllm")
}
ENGINES = pages.text_of("docs/engines.md")
SIX_LINES, PIPELINE, TRL, ASSISTED = pages.blocks(READMES["transformers"], "python")


def test_the_named_versions_are_the_tested_versions():
    assert f"vLLM {' or '.join(TESTED)}" in READMES["vllm"]
    assert f"| vLLM {', '.join(TESTED)} |" in ENGINES
    (tested,) = sglang.TESTED
    named = re.findall(r"[Ss][Gg][Ll]ang (?:other than )?(0\.5\.\d+)", READMES["sglang"])
    assert {*named, *re.findall(r"SGLang (0\.5\.\d+)", ENGINES)} == {tested}
    assert f"sglang=={tested}" in pages.text_of("Makefile")
    lowest, below = sorted(str(part) for part in supported_range().specifier)[::-1]
    assert f"transformers outside `{lowest},{below}`" in READMES["transformers"]


def test_the_log_lines_are_the_written_lines(caplog, monkeypatch):
    caplog.set_level("INFO", "vllm.tokendraw")
    vllm_log._say.cache_clear()
    vllm_log.log_replaced("V2 sampler", f"triton-gumbel 0.1.0, vLLM {TESTED[-1]}")
    vllm_log.log_kept(SWITCHED_OFF)
    vllm_log.log_kept("...", part="V2 sampler")
    vllm_log.give_up("V2 sampler", "triton-gumbel", RuntimeError("..."))
    monkeypatch.setattr(vllm_log, "_reasons_of_losses", set())
    vllm_log.log_lost(["top_n_sigma", "typical_p"], NOT_REPLACED)
    vllm_log._say.cache_clear()
    lines = [f"| `{record.getMessage()}` |" for record in caplog.records]
    assert [line for line in lines if line not in READMES["vllm"]] == []
    assert len(lines) == 5
    lines = [
        sglang.KEPT_WITH_BACKEND % ("SGLang 0.6.1 is untested, tested are 0.5.23", "flashinfer"),
        sglang.FELL_BACK % ("triton-gumbel", "RuntimeError: ...", "flashinfer"),
        sglang.OWN_VERIFICATION % "--speculative-algorithm DFLASH has a verification of its own",
        sglang.OWN_LOGPROBS % "RuntimeError: ...",
    ]
    assert [line for line in lines if f"`{line}`" not in READMES["sglang"]] == []


@pytest.mark.parametrize(("name", "least"), [("vllm_cpu", 6), ("h100_vllm_start", 6)])
def test_the_figures_of_vllm_are_those_of_their_tables(name, least):
    text = pages.text_of(f"benchmarks/results/{name}.md")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) >= least
    assert "\n".join(rows) in READMES["vllm"]
    if name == "vllm_cpu":
        times = {row.split("|")[1].strip(): float(row.split("|")[4]) for row in rows[2:]}
        found = re.search(
            r"are (\d+) times as many with top-k and top-p, and (\d+) times with top-p alone",
            " ".join(ENGINES.split()),
        )
        assert found is not None
        assert tuple(map(int, found.groups())) == (int(times["k = 50, p = 0.9"]), int(times["p = 0.9"]))


# The Python of transformers' README.


class Tokenizer:
    """Knows two prompts."""

    def __call__(self, texts, return_tensors, padding):
        ids = prompts(len(texts))
        return transformers.BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})


def run(lines, **names):
    exec(compile(lines, "README.md", "exec"), names)
    return names


def test_the_six_lines_to_paste_run(monkeypatch):
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda name, **_: Tokenizer())
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda name: model_of("qwen2"))
    expected = draw(model_of("qwen2"), prompts(2), seeds=[1, 2], max_new_tokens=64)
    assert torch.equal(run(SIX_LINES)["out"], expected)
    assert len([line for line in SIX_LINES.splitlines() if line]) == 6


@pytest.mark.slow
def test_the_lines_on_pipelines_and_on_assisted_generation_run():
    names = run(PIPELINE, model=model_of("llama"), tokenizer=byte_tokenizer())
    again = names["pipe"](["Write a haiku."], do_sample=True, max_new_tokens=64)
    assert names["texts"][1:] == again
    assert names["texts"][1][0]["generated_text"].startswith("Write a haiku.")
    small, inputs = model_of("llama", layers=1), {"input_ids": prompts(1)}
    names = run(ASSISTED, model=model_of("llama"), small=small, inputs=inputs)
    options = {"temperature": 0.7, "top_k": 0, "top_p": 0.9, "max_new_tokens": 64}
    assert torch.equal(names["out"], draw(model_of("llama"), prompts(1), seeds=[7], **options))


def test_the_lines_on_trl_run(monkeypatch):
    trl = ModuleType("trl")
    trl.GRPOTrainer = dict  # keeps what it is given
    monkeypatch.setitem(sys.modules, "trl", trl)
    names = run(TRL, model=None, reward=None, args=None, prompts=None)
    assert callable(names["trainer"]["rollout_func"])
