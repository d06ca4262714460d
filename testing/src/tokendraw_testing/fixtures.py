"""pytest fixtures for a plugin's own tests, for use with :class:`tokendraw_testing.SamplerConformance`.

Switch them on in a test module, or for a whole suite in its topmost ``conftest.py``::

    pytest_plugins = ["tokendraw_testing.fixtures"]

=======================  =============================================================================
:func:`no_sync`          a context in which torch raises where it would wait for the CUDA device
:func:`busy_device`      calls behind a sleeping CUDA device, and how long they took to return
:func:`poisoned_buffer`  logits in storage whose other elements are +inf and NaN, and have to stay so
:func:`fake_dist`        distributions that are installed for one test
=======================  =============================================================================
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch

from tokendraw_testing import fake_distributions
from tokendraw_testing.kit import device as _device
from tokendraw_testing.kit.trial import poisoned, written_guards

PoisonedBuffer: TypeAlias = Callable[..., torch.Tensor]
"""The type of the fixture :func:`poisoned_buffer`."""
FakeDist: TypeAlias = Callable[..., Path]
"""The type of the fixture :func:`fake_dist`."""


@pytest.fixture
def no_sync() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A context in which torch raises RuntimeError for each wait for the current CUDA device.

    Skips the test where there is none. Call the sampler once before, since a first call may compile and wait::

        def test_a_call_never_waits(sampler, logits, metadata, no_sync):
            sampler.sample(logits, metadata)
            with no_sync():
                sampler.sample(logits, metadata)

    It misses kernels that wait by themselves; :func:`busy_device` sees these.
    """
    _skip_without_cuda()
    return _device.sync_is_an_error


@pytest.fixture
def busy_device() -> Callable[[Callable[[], object]], tuple[float, bool]]:
    """Makes a call while the CUDA device sleeps for 0.2 s: (seconds until the return, whether the device still slept).

    Skips the test where there is none. The call is made four times, the last time on the clock::

        def test_a_call_returns_at_once(sampler, logits, metadata, busy_device):
            seconds, slept = busy_device(lambda: sampler.sample(logits, metadata))
            assert slept
            assert seconds < 0.02
    """
    _skip_without_cuda()
    return _device.seconds_behind_a_busy_device


@pytest.fixture
def poisoned_buffer() -> Iterator[PoisonedBuffer]:
    """Logits in storage with +inf and NaN by turns in all other elements, as guards.

    A read behind a row shows in its token, its logprobs or its valid flag; a write there fails the test when it
    ends::

        def test_rows_of_a_wider_buffer(sampler, metadata, poisoned_buffer):
            logits = poisoned_buffer(rows=4, size=1000, stride=1024)
            logits.normal_()
            output = sampler.sample(logits, metadata)
            assert output.valid.all()
            assert (output.token_ids < 1000).all()

    It returns zeros [rows, size] to be filled: a view from element ``offset`` of the storage on, with ``stride``
    elements from one row to the next. A stride below the size is a ValueError: rows would be guards of others.
    """
    buffers: list[torch.Tensor] = []

    def allocate(
        rows: int,
        size: int,
        stride: int,
        offset: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> torch.Tensor:
        if stride < size:
            raise ValueError(
                f"'stride' needs to be at least the size, {size}, found {stride}. Pass a larger one."
            )
        buffers.append(poisoned(rows, size, stride, offset, dtype, device))
        return buffers[-1]

    yield allocate
    for logits in buffers:
        assert written_guards(logits) == [], (
            f"what lies around {logits.shape[0]} rows of {logits.shape[1]} logits needs to be left alone, "
            "found it written to at these (row, column)"
        )


@pytest.fixture
def fake_dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDist]:
    """Distributions installed for the time of one test.

    ::

        def test_a_rival_for_the_name_is_told_of(fake_dist):
            fake_dist("rival-tokendraw", plugins={"acme": "rival:plugin"}, modules={"rival": "plugin = None"})
            with pytest.raises(tokendraw.resolution.DuplicatePluginError):
                tokendraw.load_sampler("acme")
    """
    folders: list[Path] = []

    def install(name: str, version: str = "1.0", **files: Any) -> Path:
        folders.append(fake_distributions.fake_dist(tmp_path, name, version, **files))
        monkeypatch.syspath_prepend(folders[-1])
        return folders[-1]

    yield install
    below = tuple(f"{folder}{os.sep}" for folder in folders)
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(below):
            del sys.modules[name]


def _skip_without_cuda() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, torch finds none")
