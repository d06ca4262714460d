"""The weight that a threshold leaves to each tile of a rank's columns.

Reads 4 bytes a tile, and the logits of those whose maximum reaches the threshold. Writes 4 bytes a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.row_address import is_inside
from tokendraw_triton_gumbel.kernels.shared.row_values import Row
from tokendraw_triton_gumbel.kernels.shared.temperature import inverse_temperature
from tokendraw_triton_gumbel.kernels.shared.tile_layout import TILE_SIZE
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, share_of

TILES_AT_ONCE = 8
"""Tiles that a program weighs, one after the other."""
_SPAN = tl.constexpr(TILES_AT_ONCE)


@triton.jit(do_not_specialize=["shard", "rows"])
def weigh_kept(logits, lead, shard, rows, slots, statistics, bounds):
    """One program weighs some tiles of one row. Grid (groups of tiles, rows / z, z).

    :param logits: :class:`~..shared.argument_groups.Logits`, whose ``vocab_size`` counts the columns with the lead.
    :param lead: of :class:`.argument_groups.Shard`. By itself, since it says how tiles are aligned.
    :param shard: :class:`.argument_groups.Shard`; ``slots`` :class:`.argument_groups.SlotTemperatures`.
    :param statistics: :class:`~..shared.argument_groups.TileStatistics` of the columns.
    :param bounds: :class:`.argument_groups.RowBounds`, of which ``kept`` is written, relative to the tile's maximum.
    """
    number = tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)
    if number < rows:
        row = number.to(tl.int64)
        slot = row
        if slots.row_index is not None:
            slot = tl.load(slots.row_index + row).to(tl.int64)
        inverse, _ = inverse_temperature(slots.temperature, slot)
        floor = tl.load(bounds.thresholds + row)
        source = Row(logits.base + row * logits.row_stride - lead, logits.vocab_size)
        start = tl.program_id(0) * _SPAN
        tile = start
        while tile < tl.minimum(start + _SPAN, shard.tiles):
            place = row * shard.tiles + tile
            top = tl.load(statistics.maxima + place)
            kept = tl.full((), 0.0, tl.float32)
            if floor == float("-inf"):
                kept = tl.abs(tl.load(statistics.sums + place))
            elif top >= floor:
                kept = _weigh_tile(source, lead, tile, top, floor, inverse * LOG2_E)
            tl.store(bounds.kept + place, kept)
            tile += 1


@triton.jit
def _weigh_tile(source, lead, tile, top, floor, scale):
    """Return what the logits from ``floor`` upwards weigh relative to ``top``; of +inf, how many there are."""
    column = tile * TILE_SIZE + tl.arange(0, TILE_SIZE)
    inside = is_inside(column, source, lead)
    x = tl.load(source.base + column, mask=inside, other=float("-inf")).to(tl.float32)
    x = tl.where((x == x) & (x >= floor), x, float("-inf"))
    return tl.sum(share_of(x, top, scale), 0)
