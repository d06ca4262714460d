"""The one search behind top-k and top-p: the value from which upwards a weight adds up to a target.

With weight 1 and target k that is the k-th largest value, with weight exp(y) and target p Z the edge of the nucleus.
A sort answers it, and on a GPU is the fastest that torch has. On a CPU the sort of a whole vocabulary is what
sampling spends its time on, so there the search goes by bins: the upper 16 bits of a float32 name one of 65,536 bins
that are ordered like their values, and a histogram of the weight says in which the target is reached. What is left is
the few members of that bin, or, if they are many, a second histogram by their lower 16 bits. Both ways are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw_native.rows import INF, kept
from tokendraw_native.scratch import Scratch

_BINS = 1 << 16
_SIGN = 1 << 15
_SORTED = 1 << 13
"""Up to this vocabulary size a sort costs less than the bins do, on a CPU too."""
_FEW = 1 / 16
"""Up to this share of all values, sorting the members of a bin costs less than a second histogram."""


def edge(x: Tensor, weight: Tensor, target: Tensor, scratch: Scratch) -> Tensor:
    """The largest value v such that the weight of ``x >= v`` is at least ``target``, or as near as it comes.

    :param x: [rows, V] float32, no NaN; a -0.0 in it may become 0.0.
    :param weight: [rows, V], non-negative, positive at the maximum.
    :param target: [rows, 1]; 0 or less finds the maximum.
    :returns: [rows, 1] float32, a value of the row.
    """
    if x.device.type == "cpu" and x.shape[-1] > _SORTED and len(x):
        return _edge_by_bins(x, weight, target, scratch)
    values, order = x.sort(-1, descending=True)
    return edge_of_sorted(values, weight.gather(-1, order), target)


def edge_of_sorted(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """:func:`edge` of rows [rows, n] that are in descending order."""
    place, _ = _reached(weight.cumsum(-1), target)
    return x.gather(-1, place)


def _reached(from_above: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The first place at which a running sum reaches the target, and the sum before that place."""
    tiny = torch.finfo(from_above.dtype).tiny
    reachable = target.to(from_above.dtype).minimum(from_above[:, -1:]).clamp_(min=tiny)
    place = torch.searchsorted(from_above, reachable).clamp_(max=from_above.shape[-1] - 1)
    before = from_above.gather(-1, (place - 1).clamp_(min=0))
    return place, torch.where(place > 0, before, 0.0)


def _edge_by_bins(x: Tensor, weight: Tensor, target: Tensor, scratch: Scratch) -> Tensor:
    x += 0.0  # makes -0.0, which has a bin of its own, a 0.0
    halves = x.view(torch.uint16)
    histogram = _histogram(halves[:, 1::2], weight, scratch)
    descending = torch.cat((histogram[:, :_SIGN].flip(-1), histogram[:, _SIGN:]), -1)
    place, above = _reached(descending.cumsum_(-1), target)
    upper = torch.where(place < _SIGN, _SIGN - 1 - place, place)

    negative = upper >= _SIGN
    next_up = torch.where(negative, upper - 1, upper + 1).masked_fill(
        upper == _SIGN, 0
    )  # above -0.0 comes 0.0
    inside = kept(x, _least(upper), scratch.like("kept", x))
    inside -= kept(x, _least(next_up), scratch.like("above", x))
    if inside.sum() <= _FEW * inside.numel():
        return _edge_of_few(x, weight, target - above, inside.nonzero())
    histogram = _histogram(halves[:, 0::2], inside * weight, scratch)
    descending = torch.where(negative, histogram, histogram.flip(-1))
    place, _ = _reached(descending.cumsum_(-1), target - above)
    return _float(upper, torch.where(negative, place, _BINS - 1 - place))


def _histogram(bins: Tensor, weight: Tensor, scratch: Scratch) -> Tensor:
    index = scratch.like("bins", bins, torch.int64).copy_(bins)
    histogram = scratch.lend("histogram", len(bins), _BINS, weight.dtype).zero_()
    return histogram.scatter_add_(-1, index, weight)


def _float(upper: Tensor, lower: Tensor) -> Tensor:
    """The float32 with these halves of its bits."""
    return ((upper << 16) | lower).to(torch.int32).view(torch.float32)


def _least(upper: Tensor) -> Tensor:
    """The least value of a bin; NaN above the bin of inf."""
    least = _float(upper, torch.where(upper >= _SIGN, 0xFFFF, 0))
    return torch.where(upper == 0xFF80, -INF, least)  # the other values of that bin are NaN


def _edge_of_few(x: Tensor, weight: Tensor, target: Tensor, places: Tensor) -> Tensor:
    """:func:`edge` among the values at ``places`` [n, 2], at least one a row."""
    counts = places[:, 0].bincount(minlength=len(x)).tolist()
    edges = []
    for row, part in enumerate(torch.split(places[:, 1], counts)):
        values, order = x[row, part].sort(descending=True)
        edges.append(edge_of_sorted(values[None], weight[row, part[order]][None], target[row, None]))
    return torch.cat(edges)
