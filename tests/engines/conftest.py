"""Engines for the adapters: a stand-in of vLLM as an installed distribution, and SGLang or a stand-in."""

import logging

import pytest

import vllm_stand_in
from tokendraw_vllm import _v1


@pytest.fixture
def install(dists, monkeypatch):
    """``install(version, modules)`` adds a stand-in of vLLM; without a call vLLM is missing."""
    for name in ("TOKENDRAW_VLLM", "TOKENDRAW_SAMPLER"):
        monkeypatch.delenv(name, raising=False)
    for limit in ("MIN_CPU_VOCABULARY", "MIN_REFERENCE_VOCABULARY"):
        monkeypatch.setattr(_v1, limit, 0)
    vllm_stand_in.forget()

    def add(version="0.33.0", modules=vllm_stand_in.MODULES):
        dists.add("vllm", version, modules=modules)

    yield add
    vllm_stand_in.forget()


@pytest.fixture
def vllm(install):
    """A stand-in of vLLM in a tested version."""
    install()


@pytest.fixture
def log_lines(caplog):
    """``log_lines()``: the lines of vLLM's log."""
    caplog.set_level(logging.INFO, "vllm.tokendraw")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


@pytest.fixture(scope="module")
def sglang():
    """SGLang's modules, with the adapter as the sampling backend."""
    from sglang_engine import sglang_at_hand

    with sglang_at_hand():
        yield
