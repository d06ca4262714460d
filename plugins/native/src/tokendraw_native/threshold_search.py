"""The search behind top-k and top-p: the largest value such that the weights from there upwards add up to a target.

With weight 1 and target k that is the k-th largest value, with weight exp(y) and target p Z the smallest value of the
nucleus. On a GPU a sort is the fastest that torch has. On a CPU numpy sorts several rows in a fifth of the time that
torch takes, if value and id of each token are one integer. There the sort of a whole vocabulary would take most of the
time of a call, so there the search goes by bins: the upper 16 bits of the distance from the maximum, a float32 that is
not negative, are the number of one of 32,640 bins, which are ordered like the distances. A histogram of the weight says
in which bin the target is reached, and only the members of that bin are sorted. Both ways are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw.plugin import numpy_is_usable
from tokendraw.probabilities import first_reaching, threshold_of_sorted
from tokendraw_native.buffers import Buffers
from tokendraw_native.rows import INF, Rows

_BINS = 1 << 15
_SORTED = 1 << 13
"""Largest vocabulary that a sort handles faster than the bins do, on a CPU too."""
_WORTH_PACKING = 1 << 12
"""Values from which on that costs less than it saves."""
_BLOCK = 64
_MAX_SHARE = 1 / 16
"""Largest share of all values for which picking out the members of a bin costs less than sorting all values."""


def threshold_of(rows: Rows, weight: Tensor, target: Tensor, buffers: Buffers) -> Tensor:
    """Return the largest value v such that the weight of ``x >= v`` is at least ``target``, or as near as it comes.

    :param weight: [rows, V], non-negative, positive at the maximum.
    :param target: [rows, 1]; 0 or less finds the maximum.
    :returns: [rows, 1] float32, a value of the row.
    """
    if rows.x.device.type == "cpu" and rows.x.shape[-1] > _SORTED and len(rows.x):
        found = _by_bins(rows, weight, target, buffers)
        if found is not None:
            return found
    order = descending_order(rows.x)
    place = first_reaching(weight.gather(-1, order).cumsum(-1), target)
    return rows.x.gather(-1, order.gather(-1, place))


def descending_order(x: Tensor) -> Tensor:
    """Return the ids [rows, n] int64 of the values of each row, the largest first; equal ones in any order.

    :param x: [rows, n] float32 without NaN.
    """
    few = len(x) == 1 or x.numel() < _WORTH_PACKING
    if x.device.type != "cpu" or few or not numpy_is_usable():
        return x.argsort(-1, descending=True)
    bits = (x + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # as integers, in the order of the floats
    packed = torch.empty(*x.shape, 2, dtype=torch.int32, device=x.device)
    torch.bitwise_not(ascending, out=packed[..., 1])
    packed[..., 0] = torch.arange(x.shape[-1], dtype=torch.int32, device=x.device)
    found = packed.view(torch.int64).squeeze(-1)
    found.numpy().sort(-1)
    return found.bitwise_and_(0xFFFFFFFF)


def _by_bins(rows: Rows, weight: Tensor, target: Tensor, buffers: Buffers) -> Tensor | None:
    """Search by bins; None if the last bin holds too many values. Its shapes depend on the data: for CPUs only."""
    x = rows.x
    zero_up = rows.max + 0.0  # -0.0 less 0.0 would be a negative distance
    distance = torch.sub(zero_up, x, out=buffers.like("distance", x))
    if not rows.finite:
        distance.nan_to_num_(nan=0.0, posinf=INF)  # infinity minus itself
    bins = buffers.like("bins", x, torch.int64).copy_(distance.view(torch.uint16)[:, 1::2])
    histogram = buffers.take("histogram", len(x), _BINS, weight.dtype).zero_().scatter_add_(-1, bins, weight)
    from_above = histogram.cumsum_(-1)
    last = first_reaching(from_above, target)
    above = torch.where(last > 0, from_above.gather(-1, (last - 1).clamp_(min=0)), 0.0)

    inside = torch.ge(distance, _first_of(last), out=buffers.like("mask", x))
    inside -= torch.ge(distance, _first_of(last + 1), out=buffers.like("next", x))
    places = _nonzero_of_few(inside)
    return None if places is None else _among(places, x, weight, target - above)


def _nonzero_of_few(inside: Tensor) -> Tensor | None:
    """Return ``inside.nonzero()`` [n, 2] of a matrix of 0 and 1, skipping blocks of zeros; None if there are many."""
    rows, size = inside.shape
    whole = size // _BLOCK * _BLOCK
    blocks, rest = inside[:, :whole].view(rows, -1, _BLOCK), inside[:, whole:]
    counts = blocks.sum(-1)
    if counts.sum() + rest.sum() > _MAX_SHARE * inside.numel():
        return None
    row, block = counts.nonzero().unbind(-1)
    hit, column = blocks[row, block].nonzero().unbind(-1)
    places = torch.stack((row[hit], block[hit] * _BLOCK + column), -1)
    tail = rest.nonzero() + torch.tensor([0, whole])
    return torch.cat((places, tail))


def _first_of(bins: Tensor) -> Tensor:
    """Return the least distance in a bin; above the bin of infinity that is NaN, which nothing reaches."""
    return (bins << 16).to(torch.int32).view(torch.float32)


def _among(places: Tensor, x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Search among the values at ``places`` [n, 2], at least one a row."""
    row, column = places[places[:, 0].argsort(stable=True)].unbind(-1)
    counts = row.bincount(minlength=len(x))
    rank = torch.arange(len(places)) - (counts.cumsum(0) - counts)[row]  # of a place within its row
    values = x.new_full((len(x), int(counts.max())), -INF)
    values[row, rank] = x[row, column]
    masses = weight.new_zeros(values.shape)
    masses[row, rank] = weight[row, column]
    values, order = values.sort(-1, descending=True)
    return threshold_of_sorted(values, masses.gather(-1, order), target)
