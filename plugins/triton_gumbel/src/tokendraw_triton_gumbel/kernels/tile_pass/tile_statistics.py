"""Launch 1, the one pass over the logits: for each tile of 1024 ids its maximum and the sum of exp(y) relative to it.

Reads every logit once. Writes 8 bytes a tile, 0.2 % of float32 logits, 0.4 % of half precision; for rows with filters
also the maxima of the tile's 16 granules, 1.6 % of the logits' bytes; for raw logprobs 4 bytes a tile more, for
filters from moments 4 to 20.

A warp reads one tile or several, so every reduction stays in registers and shuffles, without shared memory or
barriers: see :mod:`~tokendraw_triton_gumbel.kernels.shared.tile_layout`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.queue_layout import QUEUE_COUNTERS, ROUNDS
from tokendraw_triton_gumbel.kernels.shared.row_address import row_logits, row_of
from tokendraw_triton_gumbel.kernels.tile_pass.reduce_tiles import reduce_tiles


@triton.jit(do_not_specialize=["counts"])
def tile_statistics(
    logits,
    drafts,
    counts,
    temperature,
    raw_temperature,
    row_index,
    statistics,
    moments,
    ranked,
    queue,
    counters,
    config: tl.constexpr,
):
    """Each program reduces ``SPAN`` neighbouring tiles of one row. Grid (groups of tiles, rows / z, z).

    :param logits: :class:`~.argument_groups.Logits`; ``drafts`` :class:`~.argument_groups.DraftRows`, behind them.
    :param counts: :class:`~.argument_groups.Counts`.
    :param temperature: [slots] floating point, or None; ``row_index`` [rows] integer, or None.
    :param raw_temperature: [slots] floating point: the temperature of ``raw_sums``; None: 1.
    :param statistics: :class:`~.argument_groups.TileStatistics`, written.
    :param moments: :class:`~.argument_groups.MomentSums`, written.
    :param ranked: :class:`~.argument_groups.RankedTokens`.
    :param queue: :class:`~.argument_groups.WorkQueue`, set to 0 for the launches behind.
    :param counters: [rows] int32, set to 0, or None.
    :param config: :class:`~.configs.TileConfig`.
    """
    group = tl.program_id(0)
    index = tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)
    if queue.counters is not None:
        if group + index == 0:
            tl.store(queue.counters + tl.arange(0, QUEUE_COUNTERS), tl.zeros((QUEUE_COUNTERS,), tl.int32))
        if (group == 0) & (index < counts.rows):
            tl.store(queue.announced + index * ROUNDS + tl.arange(0, 8), 0, mask=tl.arange(0, 8) < ROUNDS)
    if counters is not None:
        if (group == 0) & (index < counts.rows):
            tl.store(counters + index, 0)
    row, target_row = row_of(index, drafts, counts)
    if (row >= 0) & (row < counts.rows):
        source = row_logits(row, logits, drafts, counts)
        reduce_tiles(
            source,
            temperature,
            raw_temperature,
            row_index,
            target_row,
            group,
            row,
            counts,
            statistics,
            moments,
            ranked,
            config,
        )
