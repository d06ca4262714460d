"""Launch 1 over a rank's columns: for each tile, or part of one, its maximum and the sum of exp(y) relative to it.

Reads every logit once, and writes like :mod:`~tokendraw_triton_gumbel.kernels.tile_pass.tile_statistics`. Tiles are
those of the full vocabulary, so a rank may hold a part of the first and of the last.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.argument_groups import RankedTokens
from tokendraw_triton_gumbel.kernels.shared.row_values import RowAddress
from tokendraw_triton_gumbel.kernels.tile_pass.reduce_tiles import reduce_tiles

_BINS = tl.constexpr(256)


@triton.jit(do_not_specialize=["counts"])
def shard_statistics(logits, lead, counts, slots, statistics, moments, masses, config: tl.constexpr):
    """Each program reduces ``SPAN`` neighbouring tiles of one row. Grid (groups of tiles, rows / z, z).

    :param logits: :class:`~..shared.argument_groups.Logits`, whose ``vocab_size`` counts the columns with ``lead``.
    :param lead: of :class:`.argument_groups.Shard`. By itself, since it says how tiles are aligned.
    :param counts: :class:`~..shared.argument_groups.Counts`.
    :param slots: :class:`.argument_groups.SlotTemperatures`.
    :param statistics: :class:`~..shared.argument_groups.TileStatistics`, written.
    :param moments: :class:`~..shared.argument_groups.MomentSums`, written.
    :param masses: [rows, 256] int64, set to 0 for the launches behind; or None.
    :param config: :class:`~..shared.configs.TileConfig`.
    """
    group = tl.program_id(0)
    row = tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)
    if row < counts.rows:
        if masses is not None:
            if group == 0:
                bins = tl.arange(0, _BINS)
                tl.store(masses + row.to(tl.int64) * _BINS + bins, tl.zeros((_BINS,), tl.int64))
        source = RowAddress(logits.base + row.to(tl.int64) * logits.row_stride - lead, logits.vocab_size)
        reduce_tiles(
            source,
            lead,
            slots.temperature,
            None,
            slots.row_index,
            row,
            group,
            row,
            counts,
            statistics,
            moments,
            RankedTokens(None, None),
            config,
        )
