"""Kernels, each compiled once in a process for what it is given, and launched without asking Triton again.

Triton finds out at each launch what its arguments ask for, which costs more than many a batch, and threads that need the
same kernel at once each compile it. So a kernel is compiled ahead of its launch, from what stands for its arguments, and
then given addresses. Scratch of a call is one allocation.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

_ALIGNED = 256
_MOST_PLACES = 256
"""Of a layout that are remembered."""

_compiled: dict[Hashable, Any] = {}
_locks: dict[Hashable, threading.Lock] = {}
_launches: dict[Hashable, Launch] = {}


@dataclass(frozen=True, slots=True)
class Pointer:
    """Stands for a tensor where a kernel is compiled."""

    dtype: torch.dtype
    aligned: bool = True
    """Whether its address is known to be a multiple of 16. Says nothing where elements are read one by one."""

    def data_ptr(self) -> int:
        """Something of that alignment."""
        return 0 if self.aligned else 1


class Rows(NamedTuple):
    """What a kernel that reads rows of a caller's tensor is compiled for."""

    dtype: torch.dtype
    aligned: bool
    """Whether every row begins at a multiple of 16 bytes: the address of the first says nothing by itself."""
    even: bool
    """Whether the row stride is a multiple of 16."""
    far: bool
    """Whether it takes more than 31 bits."""

    @classmethod
    def of(cls, tensor: Tensor) -> Rows:
        """Of a tensor [rows, columns]."""
        stride = tensor.stride(0)
        even = stride % 16 == 0
        return cls(tensor.dtype, even and tensor.data_ptr() % 16 == 0, even, stride >> 31 > 0)

    @property
    def pointer(self) -> Pointer:
        """What stands for them."""
        return Pointer(self.dtype, self.aligned)

    @property
    def stride(self) -> int:
        """A stride like theirs."""
        return (1 << 32 if self.far else 0) + (16 if self.even else 3)


def number_like(value: int) -> int:
    """What stands for all numbers >= 0 for which a kernel is the same one: none of them is 1, a constant to Triton."""
    return (1 << 32 if value >> 31 else 0) + (16 if value % 16 == 0 else 3)


def is_interpreted() -> bool:
    """Whether Triton interprets its kernels, on tensors, and compiles nothing."""
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
    arguments: Sequence[Pointer | int | None],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Any:
    """The kernel for arguments like these, on the current device, loaded."""
    like = tuple(_like(a, param) for a, param in zip(arguments, kernel.params, strict=False))

    def make() -> Any:
        found = kernel.warmup(*like, grid=(1, 1, 1), **constants, **options)
        found[1, 1, 1]  # loads it, which is no more to be done twice than compiling
        return found

    return once((kernel, _device(), like, *constants.items(), *options.items()), make)


def _device() -> int | None:
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]


def _like(argument: Pointer | int | None, param: Any) -> Pointer | int | None:
    """The same for all arguments for which a kernel is the same one."""
    if isinstance(argument, int):
        return 3 if param.do_not_specialize and not argument >> 31 else number_like(argument)
    if argument is not None and param.do_not_specialize_on_alignment:
        return Pointer(argument.dtype, aligned=False)
    return argument


class Layout:
    """Pieces of scratch that grow with some counts: of rows, of requests, or whatever the user of it counts."""

    def __init__(self) -> None:
        self.pointers: list[Pointer] = []
        """What stands for each piece."""
        self.of: list[int] = []
        """The count that each grows with."""
        self._bytes: list[int] = []
        """For every one of that."""
        self._places: dict[tuple[int, ...], list[int]] = {}

    def reserve(self, dtype: torch.dtype, each: int, of: int) -> int:
        """Ask for ``each`` elements for every one of the count number ``of``; the answer is the number of the piece."""
        self.pointers.append(Pointer(dtype))
        self.of.append(of)
        self._bytes.append(each * dtype.itemsize)
        return len(self.pointers) - 1

    def places(self, counts: tuple[int, ...]) -> list[int]:
        """Where in an allocation each piece begins, for these counts, and in the end how many bytes it takes."""
        found = self._places.get(counts)
        if found is None:
            each = zip(self._bytes, self.of, strict=True)
            sizes = [-(-nbytes * counts[of] // _ALIGNED) * _ALIGNED for nbytes, of in each]
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            found = self._places[counts] = list(accumulate(sizes, initial=0))
        return found

    def tensor(self, piece: int, memory: Tensor, offset: int, count: int) -> Tensor:
        """The piece that lies at ``offset`` in ``memory`` [bytes] uint8, [elements], of the first ``count``."""
        return memory[offset : offset + self._bytes[piece] * count].view(self.pointers[piece].dtype)


@dataclass(kw_only=True)
class Launch:
    """One kernel, and what all its launches have in common."""

    kernel: Any
    constants: Mapping[str, Any]
    options: Mapping[str, Any]
    _compiled: Any = field(default=None, init=False)
    _last: tuple[Any, ...] = field(default=(), init=False)

    def compile(self, arguments: Sequence[Pointer | int | None]) -> None:
        """Compile it for arguments like these, unless that was done."""
        like = [number_like(a) if isinstance(a, int) else a for a in arguments]
        self._last = tuple(self.constants.values())
        self._compiled = compiled(self.kernel, like, self.constants, self.options)

    def __call__(self, grid: tuple[int, int, int], arguments: Sequence[Any]) -> None:
        """Launch it on addresses, numbers and None; in the interpreter, on tensors, numbers and None."""
        if self._compiled is not None:
            self._compiled[grid](*arguments, *self._last)
        else:
            self.kernel[grid](*arguments, **self.constants, **self.options)


def launch(kernel: Any, grid: tuple[int, int, int], *arguments: Any, **named: Any) -> None:
    """Launch a kernel as ``kernel[grid](*arguments, **named)`` does, which is compiled but once.

    :param arguments: tensors, numbers and None.
    :param named: constants in the order of the kernel's parameters, then options.
    """
    if is_interpreted():
        kernel[grid](*arguments, **named)
        return
    given: list[Any] = []
    kinds: list[Any] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            address = argument.data_ptr()
            in_step = argument.dim() < 2 or argument.stride(0) % 16 == 0  # else the first row's says nothing
            given.append(address)
            kinds.append((argument.dtype, in_step and address % 16 == 0))
        else:
            given.append(argument)
            kinds.append(None if argument is None else number_like(argument))
    key = (kernel, _device(), *kinds, *named.items())
    launches = _launches.get(key)
    if launches is None:
        constants = {name: value for name, value in named.items() if name in kernel.arg_names}
        options = {name: value for name, value in named.items() if name not in constants}
        launches = Launch(kernel=kernel, constants=constants, options=options)
        launches.compile([Pointer(*kind) if isinstance(kind, tuple) else kind for kind in kinds])
        _launches[key] = launches
    launches(grid, given)
