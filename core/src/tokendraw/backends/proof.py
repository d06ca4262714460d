"""Builds and proves backends: a backend is accepted only after a call with a known outcome.

A kernel that does not compile, or a wrong driver, shows here as a reason, and not as a crash at the first request.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pluggy
import torch

from tokendraw.backends.description import HostCapabilities, HostNeed, Operation
from tokendraw.backends.discovery import guard
from tokendraw.errors import PluginError

_lock = threading.RLock()  # two proofs at once would put back each other's random state


def build(
    operation: Operation,
    hooks: pluggy.HookRelay,
    capabilities: HostCapabilities,
    device: torch.device,
    need: HostNeed,
) -> Any:
    """Build a plugin's backend of an operation for one device, and prove it."""
    package = package_of(hooks)
    with _lock, random_state_kept(device):
        backend = guard.guarded(
            "tokendraw_build",
            lambda: hooks.tokendraw_build(operation=operation.name, device=device, need=need),
            package,
        )
        for method in operation.methods:
            if not callable(getattr(backend, method, None)):
                raise PluginError(
                    f"tokendraw_build needs to return an object with a method {method}, "
                    f"found {type(backend).__name__}"
                )
        guard.guarded(operation.proof, lambda: operation.prove(backend, capabilities, device, need), package)
    return backend


def package_of(hooks: pluggy.HookRelay) -> str:
    return guard.package_of(hooks.tokendraw_build.get_hookimpls()[-1].plugin)


def random_state_kept(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Put torch's random state back: ``torch.manual_seed`` means the same with and without a proof draw."""
    if device.type in ("cuda", "xpu"):
        return torch.random.fork_rng(devices=[device.index or 0], device_type=device.type)
    return torch.random.fork_rng(devices=[], device_type="cpu")
