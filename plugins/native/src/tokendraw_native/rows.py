"""Rows of logits before any filter: cleaned values, their maximum, weights relative to the maximum, and noise.

Weights and their sums are float64 (float32 on devices that lack it). The order of a summation differs between devices,
batch sizes and thread counts; in float64 it changes a result by far less than what changes a token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tokendraw import SamplingMetadata, philox
from tokendraw.plugin import GumbelDtype
from tokendraw.row_parameters import PerRow, widest_float
from tokendraw_native.row_threads import Buffers

INF = float("inf")


@dataclass(frozen=True, slots=True)
class CleanedLogits:
    """Rows of logits, cleaned."""

    x: Tensor
    """[rows, n] float32: NaN counts as -inf. It may be the caller's tensor, so it is only read."""
    max: Tensor
    """[rows, 1] float32: the largest value."""
    valid: Tensor
    """[rows, 1] bool: no NaN, and at least one value above -inf."""
    finite: bool
    """Every maximum is known to be finite, so no value is NaN or +inf and every row is valid."""
    descending: bool = False
    """The values of each row stand in descending order."""


def clean(logits: Tensor, *, finite: bool = False) -> Tensor:
    """Return the logits as float32 with -inf for NaN: the same tensor if nothing has to change, else a copy.

    :param finite: as in :class:`CleanedLogits`.
    """
    if finite:
        return logits.to(torch.float32)
    x = torch.empty(logits.shape, dtype=torch.float32, device=logits.device).copy_(logits)
    return x.nan_to_num_(nan=-INF, posinf=INF, neginf=-INF)


def load(logits: Tensor, buffers: Buffers) -> CleanedLogits:
    """Clean rows [rows, V] of logits and find their maxima."""
    x = logits
    if x.dtype != torch.float32:
        x = buffers.like("logits", x, torch.float32).copy_(x)
    x_max = x.amax(-1, keepdim=True)  # NaN where the row has one
    if is_finite(x_max):
        return CleanedLogits(x, x_max, torch.ones_like(x_max, dtype=torch.bool), finite=True)
    valid = x_max > -INF
    x = torch.nan_to_num(x, nan=-INF, posinf=INF, neginf=-INF, out=buffers.like("logits", x, torch.float32))
    return CleanedLogits(x, x.amax(-1, keepdim=True), valid, finite=False)


def is_finite(x_max: Tensor) -> bool:
    """Return whether maxima [rows, 1] are known to be finite. Only on a CPU can they be read without waiting."""
    return x_max.device.type == "cpu" and math.isfinite(x_max.sum())


def scale(
    x: Tensor, x_max: Tensor, inverse_temperature: Tensor, out: Tensor | None = None, *, finite: bool = False
) -> Tensor:
    """Return ``y = (x - max x) / T`` in the widest float, in ``out`` if given.

    Where the maximum is infinite, y is 0 at the maxima and -inf elsewhere: +inf tokens share the mass.

    :param finite: as in :class:`CleanedLogits`; False: unknown.
    """
    y = x.to(widest_float(x.device)) if out is None else out.copy_(x)
    y.sub_(x_max).mul_(inverse_temperature)
    return y if finite or is_finite(x_max) else y.nan_to_num_(nan=0.0, neginf=-INF)


def keep_mask(x: Tensor, threshold: Tensor, buffers: Buffers) -> Tensor:
    """Return 1 where ``x >= threshold``, else 0, in the widest float: on CPUs the fastest mask to multiply with."""
    mask = torch.ge(x, threshold, out=buffers.like("mask", x))
    return buffers.like("kept", x, widest_float(x.device)).copy_(mask)


@dataclass(frozen=True, slots=True)
class Noise(PerRow):
    """Seed and position of each row, [rows, 1] int64: the arguments of its random numbers."""

    seed: Tensor
    position: Tensor

    @classmethod
    def of(cls, metadata: SamplingMetadata, rows: int, device: torch.device) -> Noise:
        """Read the seeds and positions of a batch; rows without a seed get a fresh seed."""
        seed, position = philox.seeds_and_positions(metadata, rows, device)
        return cls(seed.unsqueeze(-1), position.unsqueeze(-1))

    def gumbel(self, index: Tensor, stream: int | Tensor, dtype: GumbelDtype) -> Tensor:
        """Return Gumbel variates at ``index`` [n] or [rows, n]; ``stream`` is a number or [rows, 1]."""
        return philox.gumbel(self.seed, self.position, index, stream, dtype)

    def uniform(self, stream: int, dtype: GumbelDtype, index: Tensor | None = None) -> Tensor:
        """Return uniform variates in (0, 1), [rows, 1].

        :param index: [rows] int64; None: 0.
        """
        at = torch.zeros_like(self.position) if index is None else index.unsqueeze(-1)
        return philox.uniform(self.seed, self.position, at, stream, dtype)
