"""Log-probabilities of the V2 runner: by vLLM or tokendraw, and their form.

test_vllm_v2_itself.py compares the values with those of vLLM's kernels.
"""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

import tokendraw
import tokendraw_vllm
import vllm_stand_in
from call_tables import pairs
from calling import CPU
from tokendraw_vllm._parts import LeftAlone
from tokendraw_vllm.v2 import logprobs
from tokendraw_vllm.v2.loading import Setup
from tokendraw_vllm.v2.logprobs import load_scorer
from vllm_engine import Engine

V, PADDING, MOST = 40, 24, 20
LOGITS = torch.randn(3, V + PADDING, generator=torch.Generator().manual_seed(4))[:, :V]
TOKENS = torch.tensor([7, 0, 39])
VLLMS = "vLLM's"
CALLERS = ("sample.sampler", "sample.prompt_logprob", "spec_decode.rejection_sampler")


def config(**changes):
    model = {"dtype": torch.float32, "max_logprobs": MOST, **changes}
    return SimpleNamespace(model_config=SimpleNamespace(**model), speculative_config=None)


@pytest.fixture(autouse=True)
def registered(vllm, monkeypatch):
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    tokendraw_vllm.register()


def loaded(mode="raw_logprobs", **changes):
    """An engine with a loaded scorer."""
    engine = Engine(V, config=config(**changes), logprobs_mode=mode)
    assert engine.sampler._tokendraw.can_draw()
    return engine


def function(caller="sample.sampler"):
    """vLLM's function, called as in the runner's module."""
    return importlib.import_module(f"vllm.v1.worker.gpu.{caller}").compute_topk_scores


def is_vllms(result):
    return result.cu_num_generated_tokens == VLLMS


IDS = SimpleNamespace(
    token_ids=SimpleNamespace(gpu=torch.ones(3, 128, dtype=torch.int32)),
    num_token_ids=SimpleNamespace(gpu=torch.ones(3, dtype=torch.int32)),
)
"""vLLM's ``LogprobTokenIdsState``."""


@pytest.mark.parametrize(("case", "arguments"), pairs(Path(__file__).with_name("vllm_scores_left_alone.txt")))
def test_other_batches_are_vllms_and_later_ones_are_not(case, arguments):
    loaded()
    for caller in CALLERS:
        assert is_vllms(function(caller)(*eval(arguments)))
        assert not is_vllms(function(caller)(LOGITS, 1, TOKENS))


@pytest.mark.parametrize("allowed", [-1, 5000])
def test_at_most_as_many_best_tokens_are_served_as_kernels_order(allowed):
    loaded(max_logprobs=allowed)
    wide = torch.randn(1, 1100)
    assert not is_vllms(function()(wide, 1024, TOKENS[:1]))
    assert is_vllms(function()(wide, 1025, TOKENS[:1]))


def test_the_load_asks_for_the_best_scorer_of_the_engines_mode_by_its_name(monkeypatch):
    load = Mock(wraps=tokendraw.load)
    monkeypatch.setattr(tokendraw, "load", load)
    monkeypatch.setattr("vllm.envs.VLLM_BATCH_INVARIANT", True)
    loaded("processed_logits")
    load.assert_called_once()
    need = load.call_args.kwargs["need"]
    assert load.call_args.args == ("score", {"score": ("native",)})
    assert (need.logprobs_mode, need.batch_invariant) == ("raw_logits", True)


@pytest.mark.parametrize(
    ("mode", "layouts"),
    [
        ("raw_logprobs", [(64, torch.bfloat16)]),
        ("processed_logprobs", [(64, torch.bfloat16), (V, torch.float32)]),
    ],
)
def test_the_load_knows_the_layouts_of_the_logits(monkeypatch, mode, layouts):
    """Processed logits are a float32 copy without padding; those of prompts and greedy batches are the model's."""
    load = Mock()
    monkeypatch.setattr("tokendraw_vllm.v2.loading.load_scorer", load)
    loaded(mode, dtype=torch.bfloat16)
    assert load.call_args.args == (CPU, V, layouts)


def test_the_load_imports_nothing_of_vllm():
    """The thread of the load runs beside vLLM's own imports, which may be half done."""
    options = SimpleNamespace(
        use_fp64_gumbel=False, logprobs_mode="processed_logprobs", return_sampling_mask=False
    )
    setup = Setup.of(config(), options, device=CPU, vocab_size=V, max_requests=4)
    vllm_stand_in.forget()
    assert setup.load() is not None
    assert not [name for name in sys.modules if name.partition(".")[0] == "vllm"]


def test_on_a_gpu_the_reference_in_pytorch_scores_nothing(monkeypatch):
    monkeypatch.setattr(tokendraw, "resolve", lambda **_: SimpleNamespace(chosen="native"))
    with pytest.raises(LeftAlone) as caught:
        load_scorer(torch.device("cuda:0"), V, [(V, torch.float32)], need=tokendraw.Need(), max_best=MOST)
    assert str(caught.value) == "'native' is the best scorer for cuda:0, and no quicker than vLLM's own"
    assert logprobs.scorers == {}
