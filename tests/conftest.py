"""What every test shares: the device it runs on, the sampler under test, a clean environment."""

import functools
import gc
import multiprocessing
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

import checkout
import tokendraw
from tokendraw.calls import warmup
from tokendraw.cli import terminal
from tokendraw_testing.kit import workers

settings.register_profile("suite", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test stale copies in place of this checkout."""
    if message := checkout.stale():
        raise pytest.UsageError(message)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark the later cases of ``fast_first`` tests as slow before anything is selected, and put slow tests first.

    Each process of pytest-xdist begins with its share of the slow tests, lest one be left alone with them.
    """
    seen: set[object] = set()
    for item in items:
        function = getattr(item, "function", item)
        if item.get_closest_marker("fast_first") and not item.get_closest_marker("gpu"):
            if function in seen:
                item.add_marker(pytest.mark.slow)
            seen.add(function)
    yield
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = [item for item in items if item.get_closest_marker("slow")]
    rest = [item for item in items if not item.get_closest_marker("slow")]
    items[:] = [
        item
        for i in range(processes)
        for tests in (slow, rest)
        for item in tests[len(tests) * i // processes : len(tests) * (i + 1) // processes]
    ]


def pytest_collection_finish() -> None:
    """Leave what torch and thousands of tests made out of all later searches for garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_settings_of_the_shell() -> Iterator[None]:
    """TOKENDRAW_* variables of the developer's shell decide nothing here."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("TOKENDRAW_")]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_lines_about_long_work() -> Iterator[None]:
    """On a busy machine short work is long, and commands would say on stderr how far it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(terminal, "SECONDS_PER_LINE", 600.0)
        yield


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU, and with ``-m gpu`` the CUDA device."""
    return torch.device(request.param)


@functools.cache
def _load(device: torch.device, logprobs_mode: Any, gumbel_dtype: Any) -> tokendraw.Sampler:
    need = tokendraw.Need(gumbel_dtype=gumbel_dtype)
    return tokendraw.load_sampler("native", device=device, logprobs_mode=logprobs_mode, need=need)


@pytest.fixture(scope="session")
def load_native(device: torch.device) -> Any:
    """``load_native(logprobs_mode="raw_logprobs", gumbel_dtype="fp32")``: the native sampler on ``device``."""

    def load(logprobs_mode: str = "raw_logprobs", gumbel_dtype: str = "fp32") -> tokendraw.Sampler:
        return _load(device, logprobs_mode, gumbel_dtype)

    return load


@pytest.fixture(scope="session")
def sampler(load_native: Any) -> tokendraw.Sampler:
    """The native sampler on ``device``, with raw log-probabilities."""
    return load_native()


@pytest.fixture
def dists(tmp_path, monkeypatch):
    """Fake distributions on sys.path, without the user's configuration file."""
    from fake_dists import fake_dists

    with fake_dists(tmp_path, monkeypatch) as dists:
        yield dists


@pytest.fixture
def quick_starts(monkeypatch):
    """The kit's processes are forks of one that has imported torch, with the environment of their first use."""
    if sys.platform == "linux":
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tokendraw_testing.kit.workers", "tokendraw_native.sampler"])
        monkeypatch.setattr(workers, "_SPAWNING", context)


@pytest.fixture
def warmup_on_a_cpu(monkeypatch):
    """A warmup draws on a CPU too, as it does where there is something to compile."""
    monkeypatch.setattr(warmup, "max_calls_in_flight", lambda device: 1)


@pytest.fixture
def kernels(monkeypatch, tmp_path):
    """Fake kernels of triton-gumbel by name, in place of the compiled kernels."""
    import triton_stand_ins

    return triton_stand_ins.use_stand_ins(monkeypatch, tmp_path)
