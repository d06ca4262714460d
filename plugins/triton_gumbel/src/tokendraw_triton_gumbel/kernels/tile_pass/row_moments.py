"""The moments of rows from the sums of their tiles, for filters that compute floors from moments.

Reads 8 to 28 bytes a tile, and writes 4 bytes a row for each moment. One program a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.row_address import row_of
from tokendraw_triton_gumbel.kernels.shared.row_params import TEMPERED
from tokendraw_triton_gumbel.kernels.shared.temperature import mode_temperature
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E
from tokendraw_triton_gumbel.kernels.tile_pass.tile_sums import LARGE_UNIT, SMALL_UNIT

_LN_2 = tl.constexpr(0.6931471805599453)
_LARGEST_EXPONENT = tl.constexpr(3e38)


@triton.jit(do_not_specialize=["counts"])
def row_moments(drafts, counts, temperature, row_index, statistics, sums, out, TILES: tl.constexpr):
    """Each program computes the moments of a row. Grid (rows).

    In rows with +inf, or with nothing above -inf, the results are unspecified.

    :param drafts: :class:`~..shared.argument_groups.DraftRows`; ``counts`` :class:`~..shared.argument_groups.Counts`.
    :param temperature: [slots] floating point, or None; ``row_index`` [rows] integer, or None.
    :param statistics: :class:`~..shared.argument_groups.TileStatistics`, as the pass over the logits left them.
    :param sums: :class:`~..shared.argument_groups.MomentSums`, likewise.
    :param out: :class:`~..shared.argument_groups.MomentResults`.
    """
    row, target_row = row_of(tl.program_id(0), drafts, counts)
    if drafts.cu_num_logits is not None:
        if row < 0:
            return
    slot = target_row
    if row_index is not None:
        slot = tl.load(row_index + target_row)
    _, inverse, _ = mode_temperature(temperature, slot, TEMPERED)
    tile = tl.arange(0, TILES)
    inside = tile < counts.tiles
    place = row.to(tl.int64) * counts.tiles + tile
    maximum = tl.load(statistics.maxima + place, mask=inside, other=float("-inf"))
    max_logit = tl.max(maximum, 0)
    is_finite = maximum > float("-inf")
    distance = tl.where(is_finite, maximum.to(tl.float64) - max_logit.to(tl.float64), 0.0)
    if sums.counts is not None:
        count, mean, squares = _spread(sums, place, inside, distance)
        number = tl.maximum(count, 1.0)
        if out.number is not None:
            tl.store(out.number + row, number.to(tl.float32))
        if out.mean is not None:
            tl.store(out.mean + row, (mean * inverse).to(tl.float32))
        if out.std is not None:
            tl.store(out.std + row, (tl.sqrt(squares / number) * inverse).to(tl.float32))
    if out.log_mass is not None or sums.entropies is not None or sums.collisions is not None:
        signed_sums = tl.load(statistics.sums + place, mask=inside, other=0.0)
        mass, entropy, collision = _weights(signed_sums, sums, place, inside, is_finite, distance, inverse)
        if out.log_mass is not None:
            tl.store(out.log_mass + row, tl.log(mass))
        if sums.entropies is not None:
            tl.store(out.entropy + row, tl.maximum(tl.log(mass) - _LN_2 * (entropy / mass), 0.0))
        if sums.collisions is not None:
            tl.store(out.collision + row, collision / (mass * mass))
    if out.target_rows is not None:
        tl.store(out.target_rows + row, target_row.to(tl.int64))


@triton.jit
def _spread(sums, place, inside, distance):
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
def _weights(signed_sums, sums, place, inside, is_finite, distance, inverse):
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
