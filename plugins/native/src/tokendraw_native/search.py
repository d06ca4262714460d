"""The one search behind top-k and top-p: the value from which upwards a weight adds up to a target.

With weight 1 and target k that is the k-th largest value, with weight exp(y) and target p Z the edge of the nucleus.
It is exact for all float32 values and needs no sort: the upper 16 bits of a float32 name one of 65,536 bins that are
ordered like their values, and so do the lower 16 bits within a bin. Two histograms of the weight find the value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw_native.rows import INF, kept

_BINS = 1 << 16
_SIGN = 1 << 15
_FEW = 1 / 16
"""Share of a chunk up to which, on a CPU, sorting the members of the last bin beats a second histogram."""


def edge(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """The largest value v such that the weight of ``x >= v`` is at least ``target``, or as near as it comes.

    :param x: [rows, V] float32, no NaN.
    :param weight: [rows, V], non-negative, positive at the maximum.
    :param target: [rows, 1]; 0 or less finds the maximum.
    :returns: [rows, 1] float32, a value of the row.
    """
    x = x + 0.0  # makes -0.0, which has a bin of its own, a 0.0
    halves = x.view(torch.uint16)
    upper, above = _bin(halves[:, 1::2], weight, target, None)
    negative = upper >= _SIGN
    next_up = torch.where(negative, upper - 1, upper + 1).masked_fill(
        upper == _SIGN, 0
    )  # above -0.0 comes 0.0
    inside = kept(x, _least(upper)).sub_(kept(x, _least(next_up)))
    if x.device.type == "cpu" and 0 < inside.sum() <= _FEW * inside.numel():
        return _edge_of_few(x, weight, target - above, inside.nonzero())
    lower, _ = _bin(halves[:, 0::2], weight * inside, target - above, negative)
    return _float(upper, lower)


def _bin(half: Tensor, weight: Tensor, target: Tensor, negative: Tensor | None) -> tuple[Tensor, Tensor]:
    """The bin in which the weight from above reaches the target, and the weight above that bin.

    :param half: [rows, V] uint16, the bins.
    :param negative: [rows, 1] bool, whether values fall as ``half`` rises; None: by its own sign bit.
    """
    histogram = weight.new_zeros(half.shape[0], _BINS).scatter_add_(-1, half.to(torch.int64), weight)
    if negative is None:
        descending = torch.cat((histogram[:, :_SIGN].flip(-1), histogram[:, _SIGN:]), -1)
    else:
        descending = torch.where(negative, histogram, histogram.flip(-1))
    from_above = descending.cumsum_(-1)
    reachable = target.to(weight.dtype).minimum(from_above[:, -1:]).clamp_(min=torch.finfo(weight.dtype).tiny)
    place = torch.searchsorted(from_above, reachable).clamp_(max=_BINS - 1)
    above = torch.where(place > 0, from_above.gather(-1, (place - 1).clamp_(min=0)), 0.0)
    if negative is None:
        return torch.where(place < _SIGN, _SIGN - 1 - place, place), above
    return torch.where(negative, place, _BINS - 1 - place), above


def _float(upper: Tensor, lower: Tensor) -> Tensor:
    """The float32 with these halves of its bits."""
    return ((upper << 16) | lower).to(torch.int32).view(torch.float32)


def _least(upper: Tensor) -> Tensor:
    """The least value of a bin; NaN above the bin of inf."""
    least = _float(upper, torch.where(upper >= _SIGN, 0xFFFF, 0))
    return torch.where(upper == 0xFF80, -INF, least)  # the other values of that bin are NaN


def _edge_of_few(x: Tensor, weight: Tensor, target: Tensor, places: Tensor) -> Tensor:
    """:func:`edge` among the values at ``places`` [n, 2]. Its shapes depend on the data: for CPUs only."""
    edges = []
    counts = places[:, 0].bincount(minlength=x.shape[0]).tolist()
    for row, part in enumerate(torch.split(places[:, 1], counts)):
        values, order = x[row, part].sort(descending=True)
        from_above = weight[row, part[order]].cumsum(-1)
        place = torch.searchsorted(
            from_above, target[row].to(weight.dtype).clamp(min=torch.finfo(weight.dtype).tiny)
        )
        edges.append(values[place.clamp_(max=len(part) - 1)])
    return torch.stack(edges)
