"""The passes that ratios refer to: those that read every byte of a buffer once and write next to nothing, and copies.

A read looks at the logits as words of 32 bits, so that halves cost half of what float32 costs. Which reduction comes
closest to the speed of the memory depends on the shape: several are timed, and the fastest is the floor.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tokendraw import TokendrawError
from tokendraw_bench.timing.timer import Call, Failure, Timer, Timing

_PROGRAMS = ((1024, 4), (4096, 4), (8192, 8))
"""Words that a program reads, and its warps: for a single row, and for batches."""


def readers(device: torch.device) -> Mapping[str, Call]:
    """Return the passes that read a buffer, by their name in reports."""
    found = {"torch.sum": Call(draw=_sum), "torch.amax": Call(draw=_amax)}
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from tokendraw_bench.timing.read_kernel import read

        for words, warps in _PROGRAMS:
            found[f"Triton, {words} words a program"] = Call(draw=partial(_by_triton, read, words, warps))
    return found


def copies(source: Callable[[Any], Tensor], inputs: Any) -> Mapping[str, Call]:
    """Return the passes that copy a tensor of their inputs, by their name in reports.

    :param source: finds the tensor.
    :param inputs: one set of them; the others have the same form.
    """
    copy = torch.empty_like(source(inputs))
    return {"torch.Tensor.copy_": Call(draw=lambda inputs: copy.copy_(source(inputs)))}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The times of some calls, and of the fastest pass that ratios refer to.

    :ivar read: Time of the fastest pass that only reads the inputs.
    :ivar read_by: Name of that pass.
    :ivar calls: Time of each call by its name, or the reason why the call has none.
    """

    read: Timing
    read_by: str
    calls: dict[str, Timing | Failure]


def measure(
    calls: Mapping[str, Call],
    buffers: Sequence[Any],
    timer: Timer,
    *,
    passes: Mapping[str, Call] | None = None,
    subject: str = "the benchmark",
    floor: str = "read",
) -> Measured:
    """Time calls and reads of the same buffers, in turns.

    :param passes: what reads the buffers, or copies; None: :func:`readers` of their device.
    :param subject: what is timed, for the message of the error.
    :param floor: what the passes do, likewise.
    :raises TokendrawError: none of the passes works.
    """
    passes = readers(buffers[0].device) if passes is None else passes
    named = {f"{floor}: {name}": call for name, call in passes.items()}
    found = timer.time(named | dict(calls), buffers)
    reads = {name: found.pop(name) for name in named}
    timings = {name: entry for name, entry in reads.items() if isinstance(entry, Timing)}
    if not timings:
        reasons = "; ".join(
            f"{name.removeprefix(f'{floor}: ')}: {entry.reason}"
            for name, entry in reads.items()
            if isinstance(entry, Failure)
        )
        raise TokendrawError(
            f"{subject} needs a {floor} that ratios refer to, found none that works: {reasons}."
        )
    fastest = min(timings, key=lambda name: timings[name].us)
    return Measured(read=timings[fastest], read_by=fastest.removeprefix(f"{floor}: "), calls=found)


def words_of(logits: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """View the bytes of ``logits`` as one row of 32-bit words, without the last of an odd number of halves."""
    flat = logits.flatten()
    return flat[: flat.numel() - flat.numel() * flat.element_size() % 4 // 2].view(dtype)


def _sum(logits: Tensor) -> Tensor:
    return words_of(logits).sum()


def _amax(logits: Tensor) -> Tensor:
    return words_of(logits).amax()


def _by_triton(read: Callable[[Tensor, int, int], Tensor], words: int, warps: int, logits: Tensor) -> Tensor:
    return read(words_of(logits, torch.int32), words, warps)
