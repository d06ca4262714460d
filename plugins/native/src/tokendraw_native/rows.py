"""What a row of logits is before any filter: cleaned values, their maximum, and weights relative to it.

Weights and their sums are float64 (float32 on devices that lack it): the order of a sum, which differs between
devices, batch sizes and thread counts, then moves a result far less than the noise of a draw can tell apart.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from tokendraw_native.scratch import Scratch

INF = float("inf")


class PerRow:
    """A frozen dataclass whose tensors have one entry a row."""

    __slots__ = ()

    def chunk(self, rows: slice | Tensor) -> Self:
        """The same of some rows: of a stretch of them, or of those whose numbers ``rows`` [n] holds."""
        record: Any = self
        tensors = {f.name: v for f in fields(record) if isinstance(v := getattr(self, f.name), Tensor)}
        return replace(record, **{name: tensor[rows] for name, tensor in tensors.items()})  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of logits, cleaned."""

    x: Tensor
    """[rows, n] float32: NaN counts as -inf."""
    top: Tensor
    """[rows, 1] float32: the largest value."""
    valid: Tensor
    """[rows, 1] bool: no NaN, and at least one value above -inf."""


def clean(logits: Tensor) -> Tensor:
    """A float32 copy of logits in which NaN is -inf."""
    x = torch.empty(logits.shape, dtype=torch.float32, device=logits.device).copy_(logits)
    return x.nan_to_num_(nan=-INF, posinf=INF, neginf=-INF)


def load(logits: Tensor, scratch: Scratch) -> Rows:
    """Clean some rows [rows, V] of logits and find their maxima."""
    x = scratch.like("logits", logits, torch.float32).copy_(logits)
    top = x.amax(-1, keepdim=True)  # NaN where the row has one
    has_nan = top.isnan()
    if not certain(~has_nan):
        top = x.nan_to_num_(nan=-INF, posinf=INF, neginf=-INF).amax(-1, keepdim=True)
    return Rows(x, top, ~has_nan & (top > -INF))


def certain(condition: Tensor) -> bool:
    """Whether a condition [rows, 1] is known to hold everywhere: only a CPU can be asked without waiting."""
    return condition.device.type == "cpu" and bool(condition.all())


def real_dtype(device: torch.device) -> torch.dtype:
    """The widest float of a device: float64 wherever there is one."""
    return torch.float32 if device.type == "mps" else torch.float64


def scaled(x: Tensor, top: Tensor, inverse_temperature: Tensor, out: Tensor | None = None) -> Tensor:
    """``y = (x - max x) / T`` in the widest float, into ``out`` if given.

    Where the maximum is infinite, y is 0 at the maxima and -inf elsewhere: +inf tokens share the mass.
    """
    real = real_dtype(x.device)
    y = x.to(real) if out is None else out.copy_(x)
    y.sub_(top.to(real)).mul_(inverse_temperature)
    return y if certain(top.isfinite()) else y.nan_to_num_(nan=0.0, neginf=-INF)


def kept(x: Tensor, floor: Tensor, scratch: Scratch) -> Tensor:
    """1 where ``x >= floor``, else 0, in the widest float. On CPUs a product of floats of one dtype is the fastest."""
    mask = torch.ge(x, floor, out=scratch.like("mask", x))
    return scratch.like("kept", x, real_dtype(x.device)).copy_(mask)
