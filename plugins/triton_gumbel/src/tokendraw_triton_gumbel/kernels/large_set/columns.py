"""Reads the columns that a pass wrote: the weight, and the number of logits, of each tile from a pivot upwards.

Columns are numbered over all slots of the launch: ``slot * COLUMNS`` plus the index in the slot.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.row_state import COLUMNS


@triton.jit
def load_column(columns, column, tiles, TILES: tl.constexpr):
    """Return a column of a row, [TILES]; zeros if the column is -1."""
    tile = tl.arange(0, TILES)
    at = columns + (column // COLUMNS).to(tl.int64) * tiles * COLUMNS + tile * COLUMNS + column % COLUMNS
    return tl.load(at, mask=(tile < tiles) & (column >= 0), other=0.0)


@triton.jit
def column_sum(columns, column, offset, tiles, TILES: tl.constexpr):
    """Return the sum of column ``column + offset``; 0 if ``column`` is -1."""
    return tl.sum(load_column(columns, tl.where(column >= 0, column + offset, -1), tiles, TILES), 0)


@triton.jit
def _add_four(a0, a1, a2, a3, b0, b1, b2, b3):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def four_sums(columns, slot, offset, tiles, TILES: tl.constexpr):
    """Return the sums of four neighbouring columns of a slot, from ``offset`` on: one sum a pivot."""
    tile = tl.arange(0, TILES)
    at = columns + slot.to(tl.int64) * tiles * COLUMNS + tile * COLUMNS + offset
    inside = tile < tiles
    return tl.reduce(
        (
            tl.load(at, mask=inside, other=0.0),
            tl.load(at + 1, mask=inside, other=0.0),
            tl.load(at + 2, mask=inside, other=0.0),
            tl.load(at + 3, mask=inside, other=0.0),
        ),
        0,
        _add_four,
    )


@triton.jit
def free_slot(first, low_column, high_column):
    """Return a slot of a row that holds neither end of the bracket; the row's slots begin at ``first``."""
    low, high = low_column // COLUMNS - first, high_column // COLUMNS - first
    free = tl.where((low != 1) & (high != 1), 1, 2)
    free = tl.where((low != 0) & (high != 0), 0, free)
    return first + free
