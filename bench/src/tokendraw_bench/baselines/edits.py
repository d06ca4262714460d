"""Edits of logits without a plugin: penalties from dense counts in torch, and passes that do less than any edit.

Memory is read and written by sectors of 32 bytes at least. So the ids of a request take a sector each, and a mask that
forbids every other id changes a part of every sector, which is read and written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from tokendraw import SamplerUnavailableError
from tokendraw_bench.operation import Prepare
from tokendraw_bench.timing.timer import TimedCall

_Pass = Callable[[Tensor], object]


def _dense_penalties(cell: Any, arguments: Any) -> Sequence[TimedCall]:
    """Apply penalties to all V ids of a row, by counts [B, V]."""
    if cell.edits != "penalties":
        raise SamplerUnavailableError(f"it does not serve {cell.edits}")
    slots, params = arguments.slots, arguments.params
    counts = slots.tables.counts[arguments.row_index]

    def draw(logits: Tensor) -> object:
        x, times = logits.float(), counts >> 4
        repeated = torch.where(x > 0, x / params.repetition_penalty, x * params.repetition_penalty)
        x = torch.where(counts > 0, repeated, x)
        return logits.copy_(x - params.frequency_penalty * times - params.presence_penalty * (times > 0))

    return (TimedCall(draw=draw),)


def _launch(arguments: Any) -> _Pass:
    from tokendraw_bench.baselines.edit_kernels import launch

    return lambda logits: launch(logits, arguments.ids)


def _scatter(arguments: Any) -> _Pass:
    from tokendraw_bench.baselines.edit_kernels import scatter

    return lambda logits: scatter(logits, arguments.row_index, arguments.ids)


def _gather(arguments: Any) -> _Pass:
    ids = arguments.ids.long()
    return lambda logits: logits.gather(1, ids)


_FLOORS: Mapping[str, Callable[[Any], _Pass]] = MappingProxyType(
    {
        "floor-launch": _launch,
        "floor-scatter": _scatter,
        "floor-gather": _gather,
        "floor-write": lambda arguments: lambda logits: logits.fill_(0.5),
        "floor-update": lambda arguments: lambda logits: logits.mul_(1),
    }
)


def _prepare(make: Callable[[Any], _Pass]) -> Prepare:
    return lambda cell, arguments: (TimedCall(draw=make(arguments)),)


def baselines() -> Mapping[str, Prepare]:
    """Return the baselines of ``process_logits`` by name."""
    return {"torch-dense": _dense_penalties, **{name: _prepare(make) for name, make in _FLOORS.items()}}
