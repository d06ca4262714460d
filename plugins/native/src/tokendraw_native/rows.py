"""What a row of logits is before any filter: cleaned values, their maximum, and weights relative to it.

Weights and their sums are float64 (float32 on devices that lack it): the order of a sum, which differs between
devices, batch sizes and thread counts, then moves a result far less than the noise of a draw can tell apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tokendraw_native.scratch import Scratch

INF = float("inf")


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of logits, cleaned."""

    x: Tensor
    """[rows, n] float32: NaN counts as -inf. It may be the caller's own, so it is only read."""
    top: Tensor
    """[rows, 1] float32: the largest value."""
    valid: Tensor
    """[rows, 1] bool: no NaN, and at least one value above -inf."""
    finite: bool
    """Every maximum is known to be finite, so no value is NaN or +inf and every row is valid."""
    descending: bool = False
    """The values of each row stand in descending order."""


def clean(logits: Tensor, *, finite: bool = False) -> Tensor:
    """The logits as float32 in which NaN is -inf: themselves where that is what they are, else a copy.

    :param finite: as in :class:`Rows`.
    """
    if finite:
        return logits.to(torch.float32)
    x = torch.empty(logits.shape, dtype=torch.float32, device=logits.device).copy_(logits)
    return x.nan_to_num_(nan=-INF, posinf=INF, neginf=-INF)


def load(logits: Tensor, scratch: Scratch) -> Rows:
    """Clean some rows [rows, V] of logits and find their maxima."""
    x = logits
    if x.dtype != torch.float32:
        x = scratch.like("logits", x, torch.float32).copy_(x)
    top = x.amax(-1, keepdim=True)  # NaN where the row has one
    if known_finite(top):
        return Rows(x, top, torch.ones_like(top, dtype=torch.bool), finite=True)
    valid = top > -INF
    x = torch.nan_to_num(x, nan=-INF, posinf=INF, neginf=-INF, out=scratch.like("logits", x, torch.float32))
    return Rows(x, x.amax(-1, keepdim=True), valid, finite=False)


def known_finite(top: Tensor) -> bool:
    """Whether maxima [rows, 1] are known to be finite: only a CPU can be asked without waiting."""
    return top.device.type == "cpu" and math.isfinite(top.sum())


def real_dtype(device: torch.device) -> torch.dtype:
    """The widest float of a device: float64 wherever there is one."""
    return torch.float32 if device.type == "mps" else torch.float64


def scaled(
    x: Tensor, top: Tensor, inverse_temperature: Tensor, out: Tensor | None = None, *, finite: bool = False
) -> Tensor:
    """``y = (x - max x) / T`` in the widest float, into ``out`` if given.

    Where the maximum is infinite, y is 0 at the maxima and -inf elsewhere: +inf tokens share the mass.

    :param finite: as in :class:`Rows`; False: unknown.
    """
    y = x.to(real_dtype(x.device)) if out is None else out.copy_(x)
    y.sub_(top).mul_(inverse_temperature)
    return y if finite or known_finite(top) else y.nan_to_num_(nan=0.0, neginf=-INF)


def kept(x: Tensor, floor: Tensor, scratch: Scratch) -> Tensor:
    """1 where ``x >= floor``, else 0, in the widest float. On CPUs a product of floats of one dtype is the fastest."""
    mask = torch.ge(x, floor, out=scratch.like("mask", x))
    return scratch.like("kept", x, real_dtype(x.device)).copy_(mask)
