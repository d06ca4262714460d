"""The sums of a row from those of its tiles, relative to the largest logit of the row. Writes nothing."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E
from tokendraw_triton_gumbel.kernels.tile_pass.tile_sums import LARGE_UNIT, SMALL_UNIT

_LARGEST_EXPONENT = tl.constexpr(3e38)


@triton.jit
def spread_of_tiles(sums, place, inside, distance):
    """Return (the number n of finite logits; the mean of their distances from the largest; the squares around it).

    All are float64 scalars.

    :param sums: :class:`~..shared.argument_groups.MomentSums`, read at ``place`` [TILES] where ``inside``.
    :param distance: [TILES] float64: how far the maximum of each tile lies from the row's, 0 for a tile without one.
    """
    count = tl.load(sums.counts + place, mask=inside, other=0.0).to(tl.float64)
    number = tl.sum(count, 0)
    total = tl.load(sums.distances + place, mask=inside, other=0.0).to(tl.float64)
    square = tl.load(sums.squares + place, mask=inside, other=0.0).to(tl.float64)
    is_small, is_large = square < 0, total > 0
    total = tl.where(is_small, total / SMALL_UNIT, tl.where(is_large, total / -LARGE_UNIT, total))
    square = tl.where(is_large, square / (LARGE_UNIT * LARGE_UNIT), square)
    square = tl.where(is_small, square / (-SMALL_UNIT * SMALL_UNIT), square)
    own_mean = total / tl.maximum(count, 1.0)
    mean = tl.sum(total + count * distance, 0) / tl.maximum(number, 1.0)
    deviation = distance + own_mean - mean
    # Squares around the tile's own mean, and those of this mean around the row's.
    squares = tl.maximum(square - total * own_mean, 0.0) + count * (deviation * deviation)
    return number, mean, tl.sum(squares, 0)


@triton.jit
def weights_of_tiles(signed_sums, sums, place, inside, is_finite, distance, inverse):
    """Return the sums over a row of w, ``w log2 w`` and ``w^2``, w relative to the largest logit: float32 scalars.

    The second and third are those of the first where no moment needs them.

    :param signed_sums: [TILES] float32, of :class:`~..shared.argument_groups.TileStatistics`.
    :param is_finite: [TILES]: tiles with a logit above -inf.
    :param inverse: ``1 / T`` in float64.
    """
    exponent = tl.maximum((distance * inverse * LOG2_E).to(tl.float32), -_LARGEST_EXPONENT)
    factor = tl.where(is_finite, tl.exp2(exponent), 0.0)
    weight = factor * tl.abs(signed_sums)
    mass = tl.sum(weight, 0)
    entropy = mass
    if sums.entropies is not None:
        entropies = tl.load(sums.entropies + place, mask=inside, other=0.0)
        entropy = tl.sum(factor * entropies + weight * exponent, 0)
    collision = mass
    if sums.collisions is not None:
        collisions = tl.load(sums.collisions + place, mask=inside, other=0.0)
        collision = tl.sum(factor * factor * collisions, 0)
    return mass, entropy, collision
