"""What a row of logits is before any filter: cleaned values, their maximum, and weights relative to it.

Weights and their sums are float64 (float32 on devices that lack it): the order of a sum, which differs between
devices, batch sizes and thread counts, then moves a result far less than the noise of a draw can tell apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokendraw_native.scratch import Scratch

INF = float("inf")


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of logits, cleaned."""

    x: Tensor
    """[rows, n] float32: NaN counts as -inf."""
    top: Tensor
    """[rows, 1] float32: the largest value."""
    valid: Tensor
    """[rows, 1] bool: no NaN, and at least one value above -inf."""


def clean(logits: Tensor, out: Tensor | None = None) -> Tensor:
    """A float32 copy of logits in which NaN is -inf, in ``out`` if given."""
    if out is None:
        out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    return out.copy_(logits).nan_to_num_(nan=-INF, posinf=INF, neginf=-INF)


def load(logits: Tensor, scratch: Scratch) -> Rows:
    """Clean some rows [rows, V] of logits and find their maxima."""
    has_nan = logits.amax(-1, keepdim=True).isnan()  # amax propagates NaN
    x = clean(logits, scratch.like("logits", logits, torch.float32))
    top = x.amax(-1, keepdim=True)
    return Rows(x, top, ~has_nan & (top > -INF))


def real_dtype(device: torch.device) -> torch.dtype:
    """The widest float of a device: float64 wherever there is one."""
    return torch.float32 if device.type == "mps" else torch.float64


def scaled(x: Tensor, top: Tensor, temperature: Tensor, out: Tensor | None = None) -> Tensor:
    """``y = (x - max x) / T`` in the widest float, into ``out`` if given.

    Where the maximum is infinite, y is 0 at the maxima and -inf elsewhere: +inf tokens share the mass.
    """
    real = real_dtype(x.device)
    y = x.to(real) if out is None else out.copy_(x)
    return y.sub_(top.to(real)).div_(temperature).nan_to_num_(nan=0.0, neginf=-INF)


def kept(x: Tensor, floor: Tensor, out: Tensor) -> Tensor:
    """1 where ``x >= floor``, else 0. A float, since on CPUs products of floats are far faster than of bools."""
    return torch.ge(x, floor, out=out)
