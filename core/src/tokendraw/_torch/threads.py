"""Sets the number of threads of torch for the calling thread alone, and seeds the generators of forked processes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


def one_thread() -> contextlib.AbstractContextManager[None]:
    """Keep torch's operations on the calling thread; other threads keep their number of threads."""
    return num_threads(1)


@contextlib.contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Let torch's operations take ``count`` threads where the calling thread makes them, and nowhere else.

    On a busy machine a shared operation waits milliseconds for another core, longer than a small batch takes.
    """
    threads = torch.get_num_threads()
    if threads == count:
        yield
        return
    set_openmp, set_mkl = _setters()
    set_openmp(count)
    mkl = set_mkl(count)
    try:
        yield
    finally:
        set_openmp(threads)
        set_mkl(mkl)


@functools.cache
def _setters() -> tuple[Callable[[int], object], Callable[[int], int]]:
    """Find the setters of the number of threads of OpenMP and of MKL; the latter returns the previous number.

    ``torch.set_num_threads``, the substitute, also decides for threads that start while it holds, and for good. These
    functions of the library below torch are about the calling thread alone.
    """
    name = "libtorch_cpu.dylib" if sys.platform == "darwin" else "libtorch_cpu.so"
    try:
        library = ctypes.PyDLL(str(Path(torch.__file__).parent / "lib" / name))
        openmp = library.omp_set_num_threads
    except (OSError, AttributeError):
        return torch.set_num_threads, int
    try:
        return openmp, library.MKL_Set_Num_Threads_Local
    except AttributeError:  # a torch without MKL
        return openmp, int


# A fork copies the state of torch's CPU generator, so that unseeded rows of all children would draw alike. From the
# first sampler on, each child's generator gets a seed that is a function of the inherited seed and of the number of
# forks before, so that a program that begins with torch.manual_seed repeats itself as a whole. The parent's generator
# is left alone, and a child that seeds torch itself, as the workers of a DataLoader do, gets what it asked for.
#
# Where other threads ran beside the fork, the generator's lock may stay taken in the child: there the seed waits for
# the first draw, which needs the lock in any case, and is left out if the child has used the generator meanwhile.


@dataclass
class _Forks:
    number: int = 0
    """Number of forks, in this process and in those that it descends from."""
    state: Tensor | None = None
    """State of the generator at the last fork, if other threads ran beside it."""
    is_seed_due: bool = False
    """Whether the first draw of this child has to seed it."""


_forks = _Forks()


@functools.cache
def reseed_children() -> None:
    """Have the children of all later forks reseeded. Called once in a process; its children inherit that."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
        os.register_at_fork(before=_before, after_in_child=_after_in_child)


def reseed_if_due() -> None:
    """Seed the generator before the first draw of a child, if seeding at the fork had to wait."""
    if _forks.is_seed_due:
        _forks.is_seed_due = False
        assert _forks.state is not None
        if torch.equal(torch.default_generator.get_state(), _forks.state):
            _reseed()


def _before() -> None:
    _forks.number += 1
    _forks.state = None if threading.active_count() == 1 else torch.default_generator.get_state()


def _after_in_child() -> None:
    _forks.is_seed_due = _forks.state is not None
    if not _forks.is_seed_due:
        _reseed()


def _reseed() -> None:
    inherited = torch.default_generator.initial_seed()
    digest = hashlib.blake2b(f"{inherited} {_forks.number}".encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little")
    torch.default_generator.manual_seed(seed)
    if torch.backends.cuda.is_built() and not torch.cuda._is_in_bad_fork():  # type: ignore[no-untyped-call]
        # At the start of CUDA, in place of the seed that waits for it in the parent.
        torch.cuda.manual_seed_all(seed)
