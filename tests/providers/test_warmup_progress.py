"""A warmup with nothing to compile, and the progress of a warmup with kernels."""

import logging

import pytest
import torch

import tokendraw
from tokendraw import InvalidInputError

ARGUMENTS = {"vocab_size": 50, "dtypes": [torch.float32], "batch_sizes": [2], "logprobs": (), "seeds": False}


@pytest.fixture
def sampler():
    return tokendraw.load_sampler("native", device="cpu")


def counting(sampler, monkeypatch):
    calls = []
    for name in ("sample", "draft", "verify"):
        monkeypatch.setattr(sampler, name, lambda *args, name=name, **kwargs: calls.append(name))
    return calls


def test_on_a_cpu_it_draws_nothing_and_says_so(sampler, monkeypatch, caplog):
    calls = counting(sampler, monkeypatch)
    with caplog.at_level(logging.INFO, "tokendraw"):
        assert sampler.warmup(**ARGUMENTS, progress=True) == 0.0
    assert calls == []
    assert caplog.messages == ["warmup calls nothing: on cpu there is nothing to compile"]


def test_on_a_cpu_the_arguments_are_checked_all_the_same(sampler):
    with pytest.raises(InvalidInputError, match="'batch_sizes' needs integers >= 1, found 0"):
        sampler.warmup(**(ARGUMENTS | {"batch_sizes": [0]}))


def test_on_a_cpu_who_verifies_is_settled_all_the_same(sampler, monkeypatch):
    calls = counting(sampler, monkeypatch)
    assert sampler.warmup(**ARGUMENTS, max_drafts=2) == 0.0
    assert "verify" in sampler._negotiator.selections
    assert calls == []


def test_an_operation_without_a_warmup_has_nothing_to_warm(dists):
    dists.add_engine_ops()
    assert tokendraw.load("plan_paged_kv", device="cpu").warmup() == 0.0


def test_a_pipe_stays_quiet(sampler, warmup_on_a_cpu, capsys):
    assert sampler.warmup(**ARGUMENTS) > 0
    assert sampler.warmup(**ARGUMENTS, progress=False) > 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("on_terminal", "progress"), [(True, None), (False, True)])
def test_a_terminal_shows_how_far_it_is(sampler, warmup_on_a_cpu, monkeypatch, capsys, on_terminal, progress):
    monkeypatch.setattr("sys.stderr.isatty", lambda: on_terminal)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich believes in a terminal
    monkeypatch.setenv("COLUMNS", "100")
    assert sampler.warmup(**ARGUMENTS, max_drafts=1, progress=progress) > 0
    shown = capsys.readouterr()
    assert shown.out == ""
    for doing in ("batches", "drafts", "verifications"):
        assert f"tokendraw warms up: {doing}" in shown.err
    assert "11/11" in shown.err
