"""Compiles kernels ahead of their first launch, one process at a time for each kernel."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock, Timeout
from triton import knobs

# A lock for each kernel across processes: the first process compiles, then all read Triton's cache.
#
# All processes of a user share Triton's cache, but each looks into it before it compiles: without a lock, eight
# processes of an engine that start together compile everything eight times.

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


# Compiles a kernel once a process for each kind of argument list, ahead of the launch.
#
# Triton inspects the arguments of each launch to find the kernel for them, which takes longer than many a batch, and
# threads that need the same kernel at once each compile it. Here a kernel is compiled from placeholders of its
# arguments, several kernels side by side; of several processes, one compiles.

_MAX_COMPILERS = 8 if sys.hexversion >= 0x030C0000 else 1
"""Upper limit of kernels compiled at once. Threads that parse source at once make Python 3.11 raise now and then."""
_compiler_slots = threading.BoundedSemaphore(_MAX_COMPILERS)
_kernels: dict[Hashable, Any] = {}
_locks: dict[Hashable, threading.Lock] = {}


@dataclass(frozen=True, slots=True)
class Pointer:
    """Placeholder for a tensor among the arguments of a compilation."""

    dtype: torch.dtype
    aligned: bool = True
    """Whether its address is known to be a multiple of 16. Says nothing where elements are read one by one."""

    def data_ptr(self) -> int:
        """Return an address with the alignment of the tensor."""
        return 0 if self.aligned else 1


def any_pointer(dtype: torch.dtype | None) -> Pointer | None:
    """Return the placeholder for a tensor at any address, or for None."""
    return None if dtype is None else Pointer(dtype, aligned=False)


Argument = Pointer | int | None | tuple[Any, ...]
"""Placeholder for an argument of a kernel; for a group, a NamedTuple of placeholders."""
FLOAT32, INT32, INT64, BOOL = (
    Pointer(dtype, aligned=False) for dtype in (torch.float32, torch.int32, torch.int64, torch.bool)
)
"""Placeholders for tensors at any address."""
ANY_INT = 3
"""Placeholder for any number of 31 bits."""
ANY_STRIDE = (1 << 32) + 3
"""Placeholder for any row stride: 64 bits, a multiple of nothing."""


def is_interpreted() -> bool:
    """Return whether Triton interprets kernels, on tensors, and compiles nothing."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def make_once(key: Hashable, make: Callable[[], Any]) -> Any:
    """Return the value made for ``key``, or make it while threads with the same key wait.

    Where ``make`` raises, nothing is cached, and the next thread tries again.
    """
    value = _kernels.get(key)
    if value is None:
        with _locks.setdefault(key, threading.Lock()):
            value = _kernels.get(key)
            if value is None:
                value = _kernels[key] = make()
    return value


class KernelSpec(NamedTuple):
    """A kernel with placeholders of arguments, constants and compiler options."""

    kernel: Any
    arguments: Sequence[Argument]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]

    @property
    def specialization(self) -> tuple[Argument, ...]:
        """Return the placeholders shared by all arguments of the same kernel."""
        return tuple(
            _specialized(a, param) for a, param in zip(self.arguments, self.kernel.params, strict=False)
        )

    @property
    def cache_key(self) -> Hashable:
        """Return the key of the kernel in this process, on the current device."""
        return (self.kernel, _device(), self.specialization, *self.constants.items(), *self.options.items())

    @property
    def lock_name(self) -> str:
        """Return a name of the kernel, equal in all processes on devices of the same kind."""
        kind = None if _device() is None else torch.cuda.get_device_capability()
        return repr(
            (self.kernel.__name__, kind, self.specialization, dict(self.constants), dict(self.options))
        )


def compile_kernel(spec: KernelSpec) -> Any:
    """Return the compiled kernel, loaded on the current device."""

    def make() -> Any:
        with _compiler_slots, hold_lock(spec.lock_name):
            kernel = spec.kernel.warmup(
                *spec.specialization, grid=(1, 1, 1), **spec.constants, **spec.options
            )
        kernel[1, 1, 1]  # loads it, which two threads must not do at once either
        return kernel

    return make_once(spec.cache_key, make)


def compile_all(specs: Sequence[KernelSpec]) -> None:
    """Compile kernels side by side, in threads: the compiler releases Python's lock most of the time.

    The last kernel of a call takes longest to compile, so it begins first.

    :raises Exception: what a compilation raises; the others are finished nevertheless.
    """
    missing = {spec.cache_key: spec for spec in specs if spec.cache_key not in _kernels}
    if min(len(missing), _MAX_COMPILERS) < 2:
        return
    device = _device()
    set_device = None if device is None else functools.partial(torch.cuda.set_device, device)
    with ThreadPoolExecutor(len(missing), initializer=set_device) as pool:
        for compilation in [pool.submit(compile_kernel, spec) for spec in reversed(missing.values())]:
            compilation.result()


def _device() -> int | None:
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]


def _specialized(argument: Argument, param: Any) -> Argument:
    """Return the placeholder shared by all arguments of the same kernel.

    Triton specialises each field of a group by itself, whatever the parameter says. Here it says it for all fields.
    """
    if isinstance(argument, tuple):
        group: Any = type(argument)  # a NamedTuple, whose fields Triton knows by name
        fields: tuple[Any, ...] = group(*[_specialized(field, param) for field in argument])
        return fields
    if isinstance(argument, int):
        # Neither placeholder is 1, which is a constant to Triton.
        divisible = argument % 16 == 0 and not (param.do_not_specialize and not argument >> 31)
        return (1 << 32 if argument >> 31 else 0) + (16 if divisible else ANY_INT)
    if argument is not None and param.do_not_specialize_on_alignment:
        return Pointer(argument.dtype, aligned=False)
    return argument
