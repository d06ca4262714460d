"""Restores torch's global state, property of the host, after a plugin's code has run.

The state is torch's default device (of this thread), its default dtype and the random state of the CPU. Torch is never
imported for it. The default dtype belongs to the process: beside a thread that loads plugins the host may set the dtype
of a model's weights, so the default dtype is restored in the main thread alone.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

from tokendraw.backends.resolution.admission import author_of
from tokendraw.errors.formatting import all_of

_log = logging.getLogger("tokendraw")

# One plugin at a time: two threads would take each other's disturbance for the host's own state.
_lock = threading.RLock()

_UNLIKELY_SEED = 2**32  # torch seeds itself with 64 random bits; below this lie the seeds that people write


@contextlib.contextmanager
def preserved_at_import(module: str, plugin: str) -> Iterator[None]:
    """Guard the first import of a plugin's module: a later import runs none of its code.

    A thread of the host that draws from torch's CPU generator during a first import may see its draws repeated.
    """
    with contextlib.nullcontext() if module in sys.modules else _lock:
        if module in sys.modules:  # by now, where another thread was here first
            yield
            return
        torch, is_absent = _torch(), "torch" not in sys.modules
        dtype, device = (torch.get_default_dtype(), _default_device(torch)) if torch else (None, None)
        random_state = torch.default_generator.get_state() if torch else None
        try:
            yield
        finally:
            changed: list[str] = []
            if is_absent:
                changed = _reset(_torch())
            elif torch is not None:
                changed = _restore(torch, device, dtype)
                if not torch.equal(torch.default_generator.get_state(), random_state):
                    torch.default_generator.set_state(random_state)
                    changed.append("CPU random state")
            _warn(plugin, changed, "imported")


@contextlib.contextmanager
def preserved_while_building(plugin: str) -> Iterator[None]:
    """Guard building and proving, except for random states, on a single thread at a time. Torch is loaded by then."""
    with _lock:
        torch = sys.modules["torch"]
        dtype, device = torch.get_default_dtype(), _default_device(torch)
        try:
            yield
        finally:
            _warn(plugin, _restore(torch, device, dtype), "built")


def _torch() -> Any:
    """Return torch if loaded; None for a stand-in, and while another thread is still loading torch."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "default_generator") else None


def _default_device(torch: Any) -> Any:
    """Return the default device set by ``torch.set_default_device`` in this thread, or None.

    ``torch.get_default_device`` would initialise CUDA to find the index of a plain ``cuda``, and raise where
    there is none.
    """
    context = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    return None if context is None else context.device


def _restore(torch: Any, device: Any, dtype: Any) -> list[str]:
    """Restore the default device, and in the main thread the default dtype; name the changed defaults."""
    changed = []
    if _default_device(torch) != device:
        torch.set_default_device(device)
        changed.append("default device")
    is_main_thread = threading.current_thread() is threading.main_thread()
    if is_main_thread and torch.get_default_dtype() != dtype:
        torch.set_default_dtype(dtype)
        changed.append("default dtype")
    return changed


def _reset(torch: Any) -> list[str]:
    """Reset a torch loaded meanwhile to the state after its own import, with an unpredictable seed."""
    if torch is None:
        return []
    is_suspect = torch.default_generator.initial_seed() < _UNLIKELY_SEED
    torch.default_generator.seed()
    return [*_restore(torch, None, torch.float32), *(["CPU random state"] if is_suspect else [])]


def _warn(plugin: str, changed: list[str], when: str) -> None:
    if changed:
        text = "%r changed torch's %s when it was %s, which tokendraw has put back. Report it to %s."
        _log.warning(text, plugin, all_of(changed), when, author_of(plugin))
