"""The pass over columns that begin anywhere in a vocabulary: for other distributions, see :mod:`..columns`."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.argument_groups import RankedTokens
from tokendraw_triton_gumbel.kernels.shared.row_values import RowAddress
from tokendraw_triton_gumbel.kernels.tile_pass.reduce_tiles import reduce_tiles


@triton.jit(do_not_specialize=["counts"])
def column_statistics(
    logits, lead, counts, temperature, row_index, statistics, moments, config: tl.constexpr
):
    """Each program reduces ``SPAN`` neighbouring tiles of one row. Grid (groups of tiles, rows / z, z).

    The tiles are those of the whole vocabulary, so that the first and the last may hold other columns too.

    :param logits: :class:`~..shared.argument_groups.Logits`, whose ``vocab_size`` counts the columns with ``lead``.
    :param lead: number of ids of the first tile before the first column. The alignment of tiles follows from it.
    """
    group = tl.program_id(0)
    row = tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)
    if row < counts.rows:
        source = RowAddress(logits.base + row.to(tl.int64) * logits.row_stride - lead, logits.vocab_size)
        reduce_tiles(
            source,
            lead,
            temperature,
            None,
            row_index,
            row,
            group,
            row,
            counts,
            statistics,
            moments,
            RankedTokens(None, None),
            config,
        )
