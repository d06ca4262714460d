"""Times of one sampler with the bench's own timer: CUDA graphs over buffers in rotation, out of a cold cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from setting import Setting
from torch import Tensor

from tokendraw.bench import Call, Cell, Failure, Timing, make_logits, readers, timer_for

_READ = "read by "


def timed(
    setting: Setting, repeats: int, calls: Mapping[str, Call], buffers: list[Tensor]
) -> tuple[Timing, dict[str, Timing | Failure]]:
    """The fastest read of the buffers, and the time of every call on them, taken in turns.

    :raises RuntimeError: nothing reads them.
    """
    named = {_READ + name: call for name, call in readers(setting.device).items()}
    found = timer_for(setting.device, repeats).time({**named, **calls}, buffers)
    reads = [timing for name in named if isinstance(timing := found[name], Timing)]
    if not reads:
        raise RuntimeError("the logits need a pass that reads them, found none that works")
    return min(reads, key=lambda timing: timing.us), {name: found[name] for name in calls}


def buffers_of(
    setting: Setting,
    repeats: int,
    cell: Cell,
    make: Callable[[int, int, torch.Generator], Tensor] | None = None,
) -> list[Tensor]:
    """Buffers of a cell: of the family that the bench knows it by, or of rows that ``make`` makes."""
    dtype = getattr(torch, cell.dtype)
    count = timer_for(setting.device, repeats).buffers(cell.batch * cell.vocab_size * dtype.itemsize)
    if make is None:
        return make_logits(cell, setting.device, count)
    generator = torch.Generator(setting.device).manual_seed(1)
    return [make(cell.batch, cell.vocab_size, generator).to(dtype) for _ in range(count)]
