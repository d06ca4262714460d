"""Processes that need the same kernel at once, as those of an engine do: one compiles it, the others find what it made.

Triton's cache is shared by all processes of a user, but each looks into it before it compiles. So eight that start
together would compile everything eight times.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout
from triton import knobs

LONGEST_WAIT = 120.0
"""Seconds after which a process compiles, too, whatever the first one does."""
_PAUSE = 0.01
"""Seconds between two looks at the lock: where the kernel is in the cache, the first one is done in little more."""


@contextlib.contextmanager
def first_of_processes(what: str) -> Iterator[None]:
    """Wait while another process compiles the same; hold a lock on it inside the context if none does.

    Those that waited go on side by side. Where nothing can be locked, nobody waits.

    :param what: the same text in all processes that would compile the same.
    """
    folder = _folder()
    lock = FileLock(folder / f"{hashlib.sha256(what.encode()).hexdigest()[:32]}.lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        with contextlib.suppress(OSError):  # of which Timeout is one
            lock.acquire(timeout=LONGEST_WAIT, poll_interval=_PAUSE)
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
