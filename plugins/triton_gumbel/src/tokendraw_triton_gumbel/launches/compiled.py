"""Kernels compiled once in a process for each kind of argument list, ahead of their launch.

Triton looks at the arguments of each launch to find out which kernel they need, which costs more than many a batch, and
threads that need the same kernel at once each compile it. Here a kernel is compiled from what stands for its arguments.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

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


def compiled(
    kernel: Any,
    arguments: Sequence[Argument],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Any:
    """Return the kernel for arguments like these, on the current device, loaded."""
    like = tuple(_like(a, param) for a, param in zip(arguments, kernel.params, strict=False))

    def make() -> Any:
        found = kernel.warmup(*like, grid=(1, 1, 1), **constants, **options)
        found[1, 1, 1]  # loads it, which is no more to be done twice than compiling
        return found

    return once((kernel, _device(), like, *constants.items(), *options.items()), make)


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
