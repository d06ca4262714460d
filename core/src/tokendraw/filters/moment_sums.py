"""The sums behind the moments of rows, and the moments from them, for samplers that compute them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from tokendraw.backends.description.capabilities import Moment
from tokendraw.filters.base import RowMoments

MomentSum: TypeAlias = Literal["count", "mean", "squares", "mass", "entropy", "collision"]
"""A sum over the finite logits of some columns, with m the largest of these and ``w = exp((x - m) / T)``:

* count: their number;
* mean: of ``x - m``;
* squares: of the distances from that mean, summed;
* mass: of w;
* entropy: of ``w log w``;
* collision: of ``w^2``.
"""
_MOMENTS_OF_SUMS: dict[MomentSum, set[Moment]] = {
    "count": {"count", "mean", "std"},
    "mean": {"mean", "std"},
    "squares": {"std"},
    "mass": {"log_mass", "entropy", "collision"},
    "entropy": {"entropy"},
    "collision": {"collision"},
}
"""The moments that need each sum."""


def required_sums(moments: Collection[Moment]) -> tuple[MomentSum, ...]:
    """Return the sums that moments need, always in the same order."""
    return tuple(name for name, readers in _MOMENTS_OF_SUMS.items() if readers & set(moments))


def moments_of_sums(
    sums: Mapping[MomentSum, Tensor], moments: Collection[Moment], inverse_temperature: Tensor
) -> RowMoments:
    """Compute the named moments of rows, and round them to float32 once.

    :param sums: those of :func:`required_sums`, [rows, 1] each, over all columns.
    :param inverse_temperature: [rows, 1] in the widest float.
    """
    found: dict[Moment, Tensor] = {}
    if "count" in sums:
        count = found["count"] = sums["count"]
        if "mean" in sums:
            found["mean"] = sums["mean"] * inverse_temperature
        if "squares" in sums:
            found["std"] = (sums["squares"] / count.clamp(min=1)).sqrt() * inverse_temperature
    if "mass" in sums:
        mass = sums["mass"]
        found["log_mass"] = mass.log()
        if "entropy" in sums:
            found["entropy"] = found["log_mass"] - sums["entropy"] / mass
        if "collision" in sums:
            found["collision"] = sums["collision"] / mass.square()
    return RowMoments(**{name: found[name].squeeze(-1).to(torch.float32) for name in moments})
