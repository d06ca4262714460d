"""The moments of rows, from which filters compute their floors; see :mod:`tokendraw.filters`."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from tokendraw.filters import (
    MomentSum,
    RowMoments,
    combined_floor,
    moments_of_sums,
    required_moments,
    required_sums,
)
from tokendraw.plugin import Moment
from tokendraw.row_parameters import RowParameters, widest_float
from tokendraw_native.buffers import Buffers
from tokendraw_native.rows import INF, CleanedLogits


def floors(rows: CleanedLogits, weight: Tensor, params: RowParameters, buffers: Buffers) -> Tensor:
    """Return the floor in y of each row's filters, [rows, 1] float32; -inf keeps every token.

    :param rows: all V logits of each row.
    :param weight: [rows, V], ``exp(y)`` of each logit.
    """
    assert params.filters is not None
    names = params.filter_names
    moments = row_moments(rows, weight, params.inverse_temperature, required_moments(names), buffers)
    return combined_floor(names, params.filters, moments).unsqueeze(-1)


def row_moments(
    rows: CleanedLogits,
    weight: Tensor,
    inverse_temperature: Tensor,
    names: tuple[Moment, ...],
    buffers: Buffers,
) -> RowMoments:
    """Compute the named moments of each row in the widest float, and round them to float32 once.

    Mean and deviation are those of ``x - max x``, times 1 / T: y itself may overflow. In rows with +inf they are NaN.
    """
    sums = moment_sums(rows, weight, required_sums(names), buffers)
    return moments_of_sums(sums, names, inverse_temperature)


def moment_sums(
    rows: CleanedLogits, weight: Tensor, names: Collection[MomentSum], buffers: Buffers
) -> dict[MomentSum, Tensor]:
    """Compute the sums behind moments: [rows, 1] each, in the widest float.

    :param weight: [rows, n], ``exp(y)`` of each logit.
    """
    sums: dict[MomentSum, Tensor] = {}
    if "count" in names:
        sums |= _spread(rows, buffers, has_squares="squares" in names)
    if "mass" in names:
        sums["mass"] = weight.sum(-1, keepdim=True)
    if "entropy" in names:  # weight * y, also where y is -inf
        terms = torch.xlogy(weight, weight, out=buffers.like("terms", rows.x, weight.dtype))
        sums["entropy"] = terms.sum(-1, keepdim=True)
    if "collision" in names:
        sums["collision"] = torch.linalg.vector_norm(weight, dim=-1, keepdim=True).square()
    return sums


def _spread(rows: CleanedLogits, buffers: Buffers, *, has_squares: bool) -> dict[MomentSum, Tensor]:
    """Compute the number of finite logits, the mean of their distances from the largest, and any squares around it."""
    distance = buffers.like("terms", rows.x, widest_float(rows.x.device)).copy_(rows.x).sub_(rows.max)
    masked = rows.x == -INF
    # Only a CPU is looked at without waiting.
    is_masked = None if rows.x.device.type == "cpu" and not masked.any() else masked
    if is_masked is not None:
        distance.masked_fill_(is_masked, 0.0)
    size = rows.x.shape[-1]
    count = torch.full_like(rows.max, size, dtype=distance.dtype)
    if is_masked is not None:
        count -= is_masked.sum(-1, keepdim=True)
    mean = distance.sum(-1, keepdim=True) / count.clamp(min=1)
    sums: dict[MomentSum, Tensor] = {"count": count, "mean": mean}
    if has_squares:
        distance.sub_(mean)
        if is_masked is not None:
            distance.masked_fill_(is_masked, 0.0)
        sums["squares"] = torch.linalg.vector_norm(distance, dim=-1, keepdim=True).square()
    return sums
