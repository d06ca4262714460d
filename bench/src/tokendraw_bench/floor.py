"""Passes that ratios divide by: reads of every byte of a buffer, which write next to nothing, and copies.

A read takes the logits as words of 32 bits, so that halves cost half of float32. The reduction closest to the speed of
the memory depends on the shape: several are timed, and the fastest is the floor.

Beside them the bytes of the tensors of a call: their peak, and those alive after the call.
"""

# mypy: allow-untyped-calls
# torch's dispatch modes have no types.

from __future__ import annotations

import importlib.util
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from tokendraw import TokendrawError
from tokendraw_bench.timing import Failure, TimedCall, Timer, Timing

_READ_PROGRAMS = ((1024, 4), (4096, 4), (8192, 8))
"""Words a program, and warps: for a single row, and for batches."""


def readers(device: torch.device) -> Mapping[str, TimedCall]:
    """Return the reading passes by their name in reports."""
    passes = {
        "torch.sum": TimedCall(draw=lambda logits: words_of(logits).sum()),
        "torch.amax": TimedCall(draw=lambda logits: words_of(logits).amax()),
    }
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from tokendraw_bench.kernels import read

        def by_triton(words: int, warps: int, logits: Tensor) -> Tensor:
            return read(words_of(logits, torch.int32), words, warps)

        for words, warps in _READ_PROGRAMS:
            passes[f"Triton, {words} words a program"] = TimedCall(draw=partial(by_triton, words, warps))
    return passes


def copies(source: Callable[[Any], Tensor], inputs: Any) -> Mapping[str, TimedCall]:
    """Return the copying passes by their name in reports.

    :param source: finds the tensor among the inputs.
    :param inputs: a set of inputs; all sets have the same form.
    """
    copy = torch.empty_like(source(inputs))
    return {"torch.Tensor.copy_": TimedCall(draw=lambda inputs: copy.copy_(source(inputs)))}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Times of calls, and of the fastest pass.

    :ivar read: Time of the fastest pass over the inputs.
    :ivar read_by: Name of the fastest pass.
    :ivar calls: Time of each call by its name, or the reason why the call has none.
    """

    read: Timing
    read_by: str
    calls: dict[str, Timing | Failure]


def measure(
    calls: Mapping[str, TimedCall],
    buffers: Sequence[Any],
    timer: Timer,
    *,
    passes: Mapping[str, TimedCall] | None = None,
    subject: str = "the benchmark",
    floor: str = "read",
) -> Measured:
    """Time calls and reads of the same buffers, in turns.

    :param passes: reads or copies of the buffers; None: :func:`readers` of their device.
    :param subject: name of the cell, for the message of the error.
    :param floor: ``read`` or ``copy``, likewise.
    :raises TokendrawError: none of the passes works.
    """
    passes = readers(buffers[0].device) if passes is None else passes
    named = {f"{floor}: {name}": call for name, call in passes.items()}
    times = timer.time(named | dict(calls), buffers)
    reads = {name: times.pop(f"{floor}: {name}") for name in passes}
    timings = {name: entry for name, entry in reads.items() if isinstance(entry, Timing)}
    if not timings:
        reasons = "; ".join(
            f"{name}: {entry.reason}" for name, entry in reads.items() if isinstance(entry, Failure)
        )
        raise TokendrawError(
            f"{subject} needs a {floor} that ratios refer to, found none that works: {reasons}."
        )
    fastest = min(timings, key=lambda name: timings[name].us)
    return Measured(read=timings[fastest], read_by=fastest, calls=times)


def words_of(logits: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """View the bytes of ``logits`` as a row of 32-bit words, without the last of an odd number of halves.

    Padding between rows is a part of the view.
    """
    length = 1 + sum((size - 1) * stride for size, stride in zip(logits.shape, logits.stride(), strict=True))
    flat = logits.as_strided((length,), (1,))
    return flat[: flat.numel() - flat.numel() * flat.element_size() % 4 // 2].view(dtype)


def extra_memory(draw: Callable[[Any], object], inputs: Any, device: torch.device) -> int:
    """Measure the peak of a call in bytes, less its inputs and result.

    On CUDA the bytes are those of torch's allocator, which knows the temporaries inside of an operation too; on a CPU
    those of the tensors that operations return.
    """
    with torch.no_grad():
        if device.type != "cuda":
            live = _LiveTensors()
            with live:
                result = draw(inputs)
                extra = live.peak - live.alive
                del result
            return extra
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        result = draw(inputs)
        extra = int(torch.cuda.max_memory_allocated(device)) - int(torch.cuda.memory_allocated(device))
        del result
        return extra


class _LiveTensors(TorchDispatchMode):
    """Adds up the live storages of the tensors that operations return."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._live: Counter[int] = Counter()
        """Bytes of each storage, by its address."""
        self._views: Counter[int] = Counter()
        """Number of tensors that refer to it."""

    @property
    def alive(self) -> int:
        """Return the bytes of the live storages."""
        return self._live.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = {_address(t) for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor) and tensor.numel():
                self._refer(tensor, is_new=_address(tensor) not in arguments)
        return result

    def _refer(self, tensor: Tensor, *, is_new: bool) -> None:
        address = _address(tensor)
        if not is_new and address not in self._live:
            return  # a view of what was there before
        self._live[address] = tensor.untyped_storage().nbytes()
        self._views[address] += 1
        self.peak = max(self.peak, self._live.total())
        weakref.finalize(tensor, self._forget, address)

    def _forget(self, address: int) -> None:
        self._views[address] -= 1
        if not self._views[address]:
            del self._live[address], self._views[address]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
