"""The moments of rows, for filters, from the sums of each rank.

The sums of a rank are relative to its own largest value. Those of all ranks are moved to the largest of all, so that no
rank loses digits: means and squares by Chan, Golub and LeVeque (1983), weights by ``exp((m - max x) / T)``.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from tokendraw.filters import MomentSum, RowMoments, moments_of_sums
from tokendraw.plugin import Moment

_OF_DISTANCES: frozenset[Moment] = frozenset(("count", "mean", "std"))
_INF = float("inf")


def sum_groups(moments: Collection[Moment]) -> int:
    """Return which sums moments need: 1 those of distances, 2 those of weights, 3 both; 0 for none.

    Over the finite logits of a rank, with m the largest of them and ``w = exp((x - m) / T)``: their number, the mean of
    ``x - m`` and the squares of the distances from it, summed; the sums of w, of w log w and of w^2.
    """
    return int(not _OF_DISTANCES.isdisjoint(moments)) + 2 * int(not _OF_DISTANCES.issuperset(moments))


def row_sums(x: Tensor, x_max: Tensor, weight: Tensor, groups: int) -> Tensor:
    """Return the sums of some columns, [rows, 3] a group in the dtype of ``weight``.

    :param x: [rows, n] float32 without NaN; ``x_max`` [rows, 1] its maxima; ``weight`` [rows, n].
    """
    sums = []
    if groups & 1:
        is_finite = x > -_INF
        distance = torch.where(is_finite, x.to(weight.dtype) - x_max, 0.0)
        count = is_finite.sum(-1).to(weight.dtype)
        mean = distance.sum(-1) / count.clamp(min=1)
        squares = torch.where(is_finite, distance - mean.unsqueeze(-1), 0.0).square_().sum(-1)
        sums += [count, mean, squares]
    if groups & 2:
        sums += [weight.sum(-1), torch.xlogy(weight, weight).sum(-1), weight.square().sum(-1)]
    return torch.stack(sums, -1)


def moments_of_ranks(
    sums: Tensor, max_of: Tensor, inverse_temperature: Tensor, names: Collection[Moment]
) -> RowMoments:
    """Compute the named moments of each row, bit for bit the same on every rank, and round them to float32 once.

    :param sums: [R, B, 3] a group; ``max_of`` [R, B, 1] float32: the largest value of each rank.
    :param inverse_temperature: [B, 1] in the widest float.
    """
    groups, found, inverse = sum_groups(names), dict[MomentSum, Tensor](), inverse_temperature
    distance = (max_of.to(inverse.dtype) - max_of.amax(0)).nan_to_num(nan=0.0, neginf=-_INF)
    if groups & 1:
        counts, means, squares = (sums[..., i : i + 1] for i in range(3))
        count = found["count"] = counts.sum(0)
        means = torch.where(counts > 0, means + distance, 0.0)
        mean = found["mean"] = (counts * means).sum(0) / count.clamp(min=1)
        found["squares"] = (squares + counts * (means - mean).square()).sum(0)
    if groups & 2:
        masses, entropies, collisions = (sums[..., -3:][..., i : i + 1] for i in range(3))
        y = distance * inverse
        share = y.exp()
        found["mass"] = (share * masses).sum(0)
        found["entropy"] = torch.where(share > 0, share * (entropies + y * masses), 0.0).sum(0)
        found["collision"] = (share.square() * collisions).sum(0)
    return moments_of_sums(found, names, inverse)
