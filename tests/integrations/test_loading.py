"""The overhead of ``generate``: a sampler is loaded once, and a batch is laid out once."""

import threading
from unittest.mock import Mock

import pytest
import torch

pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

import tokendraw
from fake_dists import faulty
from tokendraw import Need, SamplerFallbackWarning, SamplerUnavailableError, SamplingMetadata
from tokendraw_transformers import _drawing
from tokendraw_transformers._drawing import load_sampler
from transformers_models import draw, model_of, prompts

CPU = torch.device("cpu")


@pytest.fixture
def loads(dists, monkeypatch):
    """``tokendraw.load_sampler``, whose calls are noted, starting with an empty cache."""
    load = Mock(wraps=tokendraw.load_sampler)
    monkeypatch.setattr(_drawing, "_cache", {})
    monkeypatch.setattr(tokendraw, "load_sampler", load)
    return load


def test_threads_that_come_together_load_once_and_later_calls_share_the_sampler(loads):
    start, samplers = threading.Barrier(8), []

    def load():
        start.wait()
        samplers.append(load_sampler(None, CPU, Need()))

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(samplers) == 8
    assert {id(sampler) for sampler in samplers} == {id(load_sampler(None, CPU, Need()))}
    for _ in range(2):
        draw(model_of("llama"), prompts(2), seeds=[1, 2])
    loads.assert_called_once()


def test_a_changed_decision_loads_anew_and_few_samplers_are_kept(loads, monkeypatch, tmp_path):
    first = load_sampler(None, CPU, Need())
    different = [
        load_sampler("native", CPU, Need()),
        load_sampler(None, CPU, Need(filter_orders=("joint",))),
        load_sampler(None, CPU, Need(), "processed_logprobs"),
    ]
    monkeypatch.setenv("TOKENDRAW_PRIORITY", "native")
    different.append(load_sampler(None, CPU, Need()))
    config = tmp_path / "config.toml"
    monkeypatch.setenv("TOKENDRAW_CONFIG", str(config))
    for text in ('priority = ["native"]', 'sampler = "native"'):
        config.write_text(text)
        different.append(load_sampler(None, CPU, Need()))
    monkeypatch.syspath_prepend(tmp_path)  # where another plugin may lie
    different.append(load_sampler(None, CPU, Need()))
    assert len({id(sampler) for sampler in (first, *different)}) == loads.call_count == 1 + len(different)
    for count in range(2, 20):
        monkeypatch.setenv("TOKENDRAW_PRIORITY", ",".join(["native"] * count))
        load_sampler(None, CPU, Need())
    assert len(_drawing._cache) == 16


def test_settings_are_read_at_every_call(loads, monkeypatch):
    draw(model_of("llama"), prompts(1), seeds=[1])
    monkeypatch.setenv("TOKENDRAW_DISABLE", "native")
    with pytest.raises(SamplerUnavailableError):
        draw(model_of("llama"), prompts(1), seeds=[1])


@pytest.mark.slow
def test_the_successor_of_a_failed_sampler_stays_and_is_announced_once(dists, loads):
    dists.add_plugin("acme", faulty("acme", "raise RuntimeError('no kernel image')"))
    expected = draw(model_of("llama"), prompts(2), seeds=[1, 2], sampler="native")
    with pytest.warns(SamplerFallbackWarning) as told:
        first = draw(model_of("llama"), prompts(2), seeds=[1, 2])
    assert len(told) == 1
    second = draw(model_of("llama"), prompts(2), seeds=[1, 2])  # warnings are errors here
    assert torch.equal(first, expected)
    assert torch.equal(second, expected)
    assert [call.args for call in loads.call_args_list] == [("native",), (None,)]


def test_a_step_lays_out_no_batch(monkeypatch):
    made, check = [], SamplingMetadata.__post_init__

    def counting(metadata):
        made.append(metadata)
        check(metadata)

    monkeypatch.setattr(SamplingMetadata, "__post_init__", counting)
    draw(model_of("llama"), prompts(2), seeds=[1, 2], max_new_tokens=1)  # a sampler is proven with a batch
    counts = []
    for steps in (1, 9):
        made.clear()
        draw(model_of("llama"), prompts(2), seeds=[1, 2], max_new_tokens=steps)
        counts.append(len(made))
    assert counts[0] == counts[1]
