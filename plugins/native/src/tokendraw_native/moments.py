"""The moments of rows, from which filters compute their floors; see :mod:`tokendraw.filters`."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw.filters import RowMoments, combined_floor, required_moments
from tokendraw.plugin import Moment
from tokendraw.row_parameters import RowParameters, widest_float
from tokendraw_native.rows import CleanedLogits, scale


def floors(rows: CleanedLogits, weight: Tensor, params: RowParameters) -> Tensor:
    """Return the floor in y of each row's filters, [rows, 1] float32; -inf keeps every token.

    :param rows: all V logits of each row.
    :param weight: [rows, V], ``exp(y)`` of each logit.
    """
    assert params.filters is not None
    names = params.filter_names
    moments = row_moments(rows, weight, params.inverse_temperature, required_moments(names))
    return combined_floor(names, params.filters, moments).unsqueeze(-1)


def row_moments(
    rows: CleanedLogits, weight: Tensor, inverse_temperature: Tensor, names: tuple[Moment, ...]
) -> RowMoments:
    """Compute the named moments of each row in the widest float, and round them to float32 once.

    Mean and deviation are those of ``x - max x``, times 1 / T: y itself may overflow.
    """
    found: dict[str, Tensor] = {}
    if {"count", "mean", "std"}.intersection(names):
        is_finite = rows.x.isfinite()
        count = is_finite.sum(-1, keepdim=True)
        divisor = count.clamp(min=1)
        distance = (rows.x.to(widest_float(rows.x.device)) - rows.max).where(is_finite, 0.0)
        mean = distance.sum(-1, keepdim=True) / divisor
        found |= {"count": count, "mean": mean * inverse_temperature}
        if "std" in names:
            variance = (distance - mean).square_().where(is_finite, 0.0).sum(-1, keepdim=True) / divisor
            found["std"] = variance.sqrt() * inverse_temperature
    if {"log_mass", "entropy", "collision"}.intersection(names):
        mass = weight.sum(-1, keepdim=True)
        found["log_mass"] = mass.log()
        if "entropy" in names:
            y = scale(rows.x, rows.max, inverse_temperature, finite=rows.finite)
            found["entropy"] = (
                found["log_mass"] - (weight * y).where(weight > 0, 0.0).sum(-1, keepdim=True) / mass
            )
        if "collision" in names:
            found["collision"] = weight.square().sum(-1, keepdim=True) / mass.square()
    return RowMoments(**{name: found[name].squeeze(-1).to(torch.float32) for name in names})
