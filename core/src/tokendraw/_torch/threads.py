"""Sets for a while, and for the calling thread alone, the number of threads of torch's operations.

On a busy machine an operation that is shared out waits until another core has its turn, some milliseconds, which is
more than all of a small batch takes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch


def one_thread() -> contextlib.AbstractContextManager[None]:
    """Keep torch's operations on the calling thread; other threads keep their number of threads."""
    return num_threads(1)


@contextlib.contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Let torch's operations take ``count`` threads where the calling thread makes them, and nowhere else."""
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
