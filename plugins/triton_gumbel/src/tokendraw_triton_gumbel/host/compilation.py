"""Kernels compiled once in a process for each kind of argument list, ahead of their launch.

Triton looks at the arguments of each launch to find out which kernel they need, which costs more than many a batch, and
threads that need the same kernel at once each compile it. Here a kernel is compiled from what stands for its arguments,
and several are compiled side by side; of several processes, one compiles.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tokendraw_triton_gumbel.host.compile_lock import first_of_processes

_COMPILERS = 8 if sys.hexversion >= 0x030C0000 else 1
"""Upper limit of kernels compiled at once. Threads that parse source at once make Python 3.11 raise now and then."""
_compiler_slots = threading.BoundedSemaphore(_COMPILERS)
_compiled: dict[Hashable, Any] = {}
_locks: dict[Hashable, threading.Lock] = {}


@dataclass(frozen=True, slots=True)
class Pointer:
    """Stands for a tensor where a kernel is compiled."""

    dtype: torch.dtype
    aligned: bool = True
    """Whether its address is known to be a multiple of 16. Says nothing where elements are read one by one."""

    def data_ptr(self) -> int:
        """Return something of that alignment."""
        return 0 if self.aligned else 1


Argument = Pointer | int | None | tuple[Any, ...]
"""Stand-in for an argument of a kernel; for a group, a NamedTuple of stand-ins."""


def number_like(value: int) -> int:
    """Return what stands for all numbers >= 0 for which a kernel is the same one.

    None of them is 1, a constant to Triton.
    """
    return (1 << 32 if value >> 31 else 0) + (16 if value % 16 == 0 else 3)


def is_interpreted() -> bool:
    """Return whether Triton interprets its kernels, on tensors, and compiles nothing."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def once(key: Hashable, make: Callable[[], Any]) -> Any:
    """Return what was made for ``key``, or make it: other threads that need the same wait for it, and only they.

    Where that raises, nothing is kept, and the next one tries again.
    """
    found = _compiled.get(key)
    if found is None:
        with _locks.setdefault(key, threading.Lock()):
            found = _compiled.get(key)
            if found is None:
                found = _compiled[key] = make()
    return found


class Wanted(NamedTuple):
    """A kernel for arguments that these stand for."""

    kernel: Any
    arguments: Sequence[Argument]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]

    @property
    def like(self) -> tuple[Argument, ...]:
        """Return the same for all arguments for which the kernel is the same one."""
        return tuple(_like(a, param) for a, param in zip(self.arguments, self.kernel.params, strict=False))

    @property
    def key(self) -> Hashable:
        """Return what tells it from all others, on the current device."""
        return (self.kernel, _device(), self.like, *self.constants.items(), *self.options.items())

    @property
    def described(self) -> str:
        """Return what tells it from others in other processes, on devices of the same kind."""
        kind = None if _device() is None else torch.cuda.get_device_capability()
        return repr((self.kernel.__name__, kind, self.like, dict(self.constants), dict(self.options)))


def compiled(wanted: Wanted) -> Any:
    """Return the kernel, on the current device, loaded."""

    def make() -> Any:
        with _compiler_slots, first_of_processes(wanted.described):
            found = wanted.kernel.warmup(*wanted.like, grid=(1, 1, 1), **wanted.constants, **wanted.options)
        found[1, 1, 1]  # loads it, which is no more to be done twice than compiling
        return found

    return once(wanted.key, make)


def compile_all(wanted: Sequence[Wanted]) -> None:
    """Compile kernels side by side, in threads: the compiler releases Python's lock most of the time.

    The last kernel of a call takes longest to compile, so it begins first.

    :raises Exception: what a compilation raises; the others are finished nevertheless.
    """
    missing = {each.key: each for each in wanted if each.key not in _compiled}
    if min(len(missing), _COMPILERS) < 2:
        return
    device = _device()
    begin = None if device is None else functools.partial(torch.cuda.set_device, device)
    with ThreadPoolExecutor(len(missing), initializer=begin) as pool:
        for done in [pool.submit(compiled, each) for each in reversed(missing.values())]:
            done.result()


def _device() -> int | None:
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]


def _like(argument: Argument, param: Any) -> Argument:
    """Return the same for all arguments for which a kernel is the same one.

    Triton looks at each field of a group by itself, whatever the parameter says. Here it says it for all fields.
    """
    if isinstance(argument, tuple):
        group: Any = type(argument)  # a NamedTuple, whose fields Triton knows by name
        like: tuple[Any, ...] = group(*[_like(each, param) for each in argument])
        return like
    if isinstance(argument, int):
        return 3 if param.do_not_specialize and not argument >> 31 else number_like(argument)
    if argument is not None and param.do_not_specialize_on_alignment:
        return Pointer(argument.dtype, aligned=False)
    return argument
