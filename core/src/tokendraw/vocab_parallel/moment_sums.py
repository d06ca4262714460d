"""The sums behind the moments of rows: those of some columns, of several parts of the columns, and the moments.

Sums of a part are relative to its own largest value. Where parts are combined they are moved to the largest of all, so
that no part loses digits: means and squares by Chan, Golub and LeVeque (1983), weights by ``exp((m - max x) / T)``.
"""

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
_INF = float("inf")


def required_sums(moments: Collection[Moment]) -> tuple[MomentSum, ...]:
    """Return the sums that moments need, always in the same order."""
    return tuple(name for name, readers in _MOMENTS_OF_SUMS.items() if readers & set(moments))


def combined_sums(
    sums: Mapping[MomentSum, Tensor], max_of: Tensor, top: Tensor, inverse_temperature: Tensor
) -> dict[MomentSum, Tensor]:
    """Combine the sums of P parts of each row, in the order of the parts: [rows, 1] each.

    :param sums: [P, rows, 1] each, in the widest float.
    :param max_of: [P, rows, 1] float32: the largest value of each part, -inf without one.
    :param top: [rows, 1] float32: the largest of these.
    :param inverse_temperature: [rows, 1] in the widest float.
    """
    combined: dict[MomentSum, Tensor] = {}
    distance = (max_of.to(inverse_temperature.dtype) - top).nan_to_num(nan=0.0, neginf=-_INF)
    if "count" in sums:
        count = sums["count"]
        combined["count"] = count.sum(0)
        if "mean" in sums:
            own_mean = torch.where(count > 0, sums["mean"] + distance, 0.0)
            mean = combined["mean"] = (count * own_mean).sum(0) / combined["count"].clamp(min=1)
            if "squares" in sums:
                combined["squares"] = (sums["squares"] + count * (own_mean - mean).square()).sum(0)
    if "mass" in sums:
        y = distance * inverse_temperature
        share = y.exp()
        combined["mass"] = (share * sums["mass"]).sum(0)
        if "entropy" in sums:
            terms = share * (sums["entropy"] + y * sums["mass"])
            combined["entropy"] = torch.where(share > 0, terms, 0.0).sum(0)
        if "collision" in sums:
            combined["collision"] = (share.square() * sums["collision"]).sum(0)
    return combined


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
