"""A lock for each kernel across processes: the first process compiles, then all read Triton's cache.

All processes of a user share Triton's cache, but each looks into it before it compiles: without a lock, eight processes
of an engine that start together compile everything eight times.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout
from triton import knobs

MAX_WAIT_SECONDS = 120.0
"""Time after which a process compiles, too, whatever the first one does."""
_POLL_SECONDS = 0.01
"""Time between two looks at the lock: a kernel that is in the cache is loaded in little more."""


@contextlib.contextmanager
def hold_lock(kernel_name: str) -> Iterator[None]:
    """Wait while another process compiles the kernel; hold the lock inside the context if none does.

    Processes that waited go on side by side. Where nothing can be locked, none waits.

    :param kernel_name: the same text in all processes that would compile the same kernel.
    """
    folder = _folder()
    lock = FileLock(folder / f"{hashlib.sha256(kernel_name.encode()).hexdigest()[:32]}.lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        with contextlib.suppress(OSError):  # of which Timeout is one
            lock.acquire(timeout=MAX_WAIT_SECONDS, poll_interval=_POLL_SECONDS)
            lock.release()
    except (OSError, NotImplementedError):  # a folder that cannot be written, or a file system without locks
        pass
    try:
        yield
    finally:
        if lock.is_locked:
            lock.release()


def _folder() -> Path:
    return Path(knobs.cache.dir) / "tokendraw"
