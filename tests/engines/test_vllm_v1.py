"""vLLM's V1 sampler through tokendraw: distribution, seeds, and the batches and rows for vLLM."""

from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import tokendraw
import tokendraw_vllm
from call_tables import pairs
from fake_dists import EVERYTHING, plugin
from tokendraw_vllm import _v1
from vllm_stand_in import v1_sampler

V = 40
LOGITS = torch.randn(V, generator=torch.Generator().manual_seed(1)) * 2.0
VLLMS = [0, 0]


@pytest.fixture
def sampler(vllm):
    tokendraw_vllm.register()
    return v1_sampler()


def batch(rows):
    return LOGITS.repeat(rows, 1)


def column(values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(("case", "reason"), pairs(Path(__file__).with_name("vllm_v1_left_alone.txt")))
def test_batches_that_are_vllms_with_one_line(vllm, log_lines, monkeypatch, case, reason):
    def drawn(device="cpu", *, logprobs_mode="raw_logprobs", **limits):
        for name, value in limits.items():
            monkeypatch.setattr(_v1, name, value)
        tokendraw_vllm.register()
        sampler = v1_sampler(logprobs_mode=logprobs_mode)
        return [sampler(batch(2).to(device), {}, column([3, 3]).to(device), None)[0] for _ in range(2)]

    for ids in eval(case, {"drawn": drawn}):
        assert ids.is_meta or ids.tolist() == VLLMS
    assert log_lines() == [("WARNING", f"tokendraw: V1 sampler left alone: {reason}")]


def test_the_reference_draws_where_it_is_asked_for_by_name(vllm, monkeypatch):
    monkeypatch.setattr(_v1, "MIN_REFERENCE_VOCABULARY", V + 1)
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    tokendraw_vllm.register()
    assert 0 not in v1_sampler()(batch(2), {}, column([3, 3]), None)[0].tolist()


def test_batches_without_filters_are_vllms_own_on_a_cpu(sampler):
    generators = {row: torch.Generator().manual_seed(row) for row in range(2)}
    for given in (({}, None, None), (generators, column([V, V]), column([1.0, 1.0], torch.float32))):
        assert sampler(batch(2), *given)[0].tolist() == VLLMS


@pytest.fixture
def specialised(vllm, dists, monkeypatch):
    """vLLM's sampler where a specialised sampler is installed, in a vocabulary that is small for plain PyTorch."""
    monkeypatch.setattr(_v1, "MIN_REFERENCE_VOCABULARY", V + 1)
    dists.add_plugin("quick", plugin("quick", capabilities=EVERYTHING))
    tokendraw_vllm.register()
    return v1_sampler()


def test_a_specialised_sampler_draws_batches_without_filters_on_a_cpu(specialised, log_lines):
    assert specialised(batch(20), {}, None, None)[0].tolist() == [int(LOGITS.argmax())] * 20 != [0] * 20
    assert log_lines() == [("INFO", "tokendraw: V1 sampler replaced (quick 1.0, vLLM 0.33.0)")]


def test_unseeded_rows_follow_the_global_generator_of_torch(sampler):
    def drawn():
        torch.manual_seed(9)
        return sampler(batch(50), {}, column([20] * 50), None)[0].tolist()

    assert drawn() == drawn()


def test_noise_is_float64_where_vllm_uses_float64(vllm, monkeypatch):
    load = Mock(wraps=tokendraw.load_sampler)
    monkeypatch.setattr(tokendraw, "load_sampler", load)
    tokendraw_vllm.register()
    monkeypatch.setattr("vllm.envs.VLLM_BATCH_INVARIANT", True)
    v1_sampler(use_fp64_gumbel=True)(batch(1), {}, column([2]), None)
    load.assert_called_once()
    assert load.call_args.kwargs["need"] == tokendraw.Need(gumbel_dtype="fp64", batch_invariant=True)
