"""Weighs the kept logits of each tile of a rank's columns.

Reads 4 bytes a tile, and the logits of the tiles whose maximum reaches the threshold. Writes 4 bytes a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.row_address import is_inside
from tokendraw_triton_gumbel.kernels.shared.row_values import RowAddress
from tokendraw_triton_gumbel.kernels.shared.temperature import inverse_temperature
from tokendraw_triton_gumbel.kernels.shared.tile_layout import TILE_SIZE
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, share_of

TILES_AT_ONCE = 8
"""Tiles a program, one after the other."""
_SPAN = tl.constexpr(TILES_AT_ONCE)


@triton.jit(do_not_specialize=["shard", "rows"])
def weigh_kept(logits, lead, shard, rows, slots, statistics, bounds):
    """Each program weighs some tiles of one row. Grid (groups of tiles, rows / z, z).

    :param logits: :class:`~..shared.argument_groups.Logits`, whose ``vocab_size`` counts the columns with the lead.
    :param lead: of :class:`.argument_groups.Shard`. A separate argument, since the alignment of tiles depends on it.
    :param shard: :class:`.argument_groups.Shard`; ``slots`` :class:`.argument_groups.SlotTemperatures`.
    :param statistics: :class:`~..shared.argument_groups.TileStatistics` of the columns.
    :param bounds: :class:`.argument_groups.RowBounds`; writes ``kept_weight``, relative to the tile's maximum.
    """
    row_number = tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)
    if row_number < rows:
        row = row_number.to(tl.int64)
        slot = row
        if slots.row_index is not None:
            slot = tl.load(slots.row_index + row).to(tl.int64)
        inverse, _ = inverse_temperature(slots.temperature, slot)
        threshold = tl.load(bounds.threshold + row)
        source = RowAddress(logits.base + row * logits.row_stride - lead, logits.vocab_size)
        start = tl.program_id(0) * _SPAN
        tile = start
        while tile < tl.minimum(start + _SPAN, shard.tiles):
            offset = row * shard.tiles + tile
            max_logit = tl.load(statistics.maxima + offset)
            kept_weight = tl.full((), 0.0, tl.float32)
            if threshold == float("-inf"):
                kept_weight = tl.abs(tl.load(statistics.sums + offset))
            elif max_logit >= threshold:
                kept_weight = _weigh_tile(source, lead, tile, max_logit, threshold, inverse * LOG2_E)
            tl.store(bounds.kept_weight + offset, kept_weight)
            tile += 1


@triton.jit
def _weigh_tile(source, lead, tile, max_logit, threshold, scale):
    """Return the weight of a tile's logits from ``threshold`` upwards; if ``max_logit`` is +inf, their number."""
    column = tile * TILE_SIZE + tl.arange(0, TILE_SIZE)
    inside = is_inside(column, source, lead)
    x = tl.load(source.base + column, mask=inside, other=float("-inf")).to(tl.float32)
    x = tl.where((x == x) & (x >= threshold), x, float("-inf"))
    return tl.sum(share_of(x, max_logit, scale), 0)
