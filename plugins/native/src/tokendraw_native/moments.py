"""The moments of rows, from which filters compute their floors; see :mod:`tokendraw.filters`."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw.filters import RowMoments, combined_floor, required_moments
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
    found: dict[str, Tensor] = {}
    if {"count", "mean", "std"}.intersection(names):
        found |= _moments_of_logits(rows, inverse_temperature, buffers, has_std="std" in names)
    if {"log_mass", "entropy", "collision"}.intersection(names):
        mass = weight.sum(-1, keepdim=True)
        found["log_mass"] = mass.log()
        if "entropy" in names:  # weight * y, also where y is -inf
            terms = torch.xlogy(weight, weight, out=buffers.like("terms", rows.x, weight.dtype))
            found["entropy"] = found["log_mass"] - terms.sum(-1, keepdim=True) / mass
        if "collision" in names:
            found["collision"] = (torch.linalg.vector_norm(weight, dim=-1, keepdim=True) / mass).square()
    return RowMoments(**{name: found[name].squeeze(-1).to(torch.float32) for name in names})


def _moments_of_logits(
    rows: CleanedLogits, inverse_temperature: Tensor, buffers: Buffers, *, has_std: bool
) -> dict[str, Tensor]:
    """Compute count and mean, and the deviation if asked for: [rows, 1] each."""
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
    found = {"count": count, "mean": mean * inverse_temperature}
    if has_std:
        distance.sub_(mean)
        if is_masked is not None:
            distance.masked_fill_(is_masked, 0.0)
        norm = torch.linalg.vector_norm(distance, dim=-1, keepdim=True)
        found["std"] = norm / count.clamp(min=1).sqrt() * inverse_temperature
    return found
