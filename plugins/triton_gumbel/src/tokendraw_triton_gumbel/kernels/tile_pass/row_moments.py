"""The moments of rows from the sums of their tiles, for filters that compute floors from moments.

Reads 8 to 28 bytes a tile, and writes 4 bytes a row for each moment. One program a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.row_address import row_of
from tokendraw_triton_gumbel.kernels.shared.row_params import TEMPERED
from tokendraw_triton_gumbel.kernels.shared.temperature import mode_temperature
from tokendraw_triton_gumbel.kernels.tile_pass.moments_of_tiles import spread_of_tiles, weights_of_tiles

_LN_2 = tl.constexpr(0.6931471805599453)


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
        count, mean, squares = spread_of_tiles(sums, place, inside, distance)
        number = tl.maximum(count, 1.0)
        if out.number is not None:
            tl.store(out.number + row, number.to(tl.float32))
        if out.mean is not None:
            tl.store(out.mean + row, (mean * inverse).to(tl.float32))
        if out.std is not None:
            tl.store(out.std + row, (tl.sqrt(squares / number) * inverse).to(tl.float32))
    if out.log_mass is not None or sums.entropies is not None or sums.collisions is not None:
        signed_sums = tl.load(statistics.sums + place, mask=inside, other=0.0)
        mass, entropy, collision = weights_of_tiles(
            signed_sums, sums, place, inside, is_finite, distance, inverse
        )
        if out.log_mass is not None:
            tl.store(out.log_mass + row, tl.log(mass))
        if sums.entropies is not None:
            tl.store(out.entropy + row, tl.maximum(tl.log(mass) - _LN_2 * (entropy / mass), 0.0))
        if sums.collisions is not None:
            tl.store(out.collision + row, collision / (mass * mass))
    if out.target_rows is not None:
        tl.store(out.target_rows + row, target_row.to(tl.int64))
