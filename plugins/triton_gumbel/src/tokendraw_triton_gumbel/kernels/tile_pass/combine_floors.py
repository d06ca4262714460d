"""The highest floor of each row: raises the floors of a batch to those of one filter. One launch a filter.

Reads and writes 4 bytes a row and tensor.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

ROWS_PER_PROGRAM = tl.constexpr(256)


class FilterFloors(NamedTuple):
    """What a filter returned, and what the requests asked for."""

    floors: Any
    """[rows] float32, in units of y."""
    requested: Any
    """[rows] float32, ``stride`` elements from row to row: the filter's value in each row."""
    stride: Any
    off_bits: Any
    """The bits of the float32 value that switches the filter off; NaN does, too."""
    is_first: Any
    """1 for the first filter of a batch, else 0."""


@triton.jit(
    do_not_specialize=["of_filter", "rows"],
    do_not_specialize_on_alignment=["of_filter", "floors"],
)
def combine_floors(of_filter, floors, rows):
    """Raise floors; NaN counts as -inf, and above 0 as 0. Grid (rows / 256).

    :param of_filter: :class:`FilterFloors`.
    :param floors: [rows] float32, read and written; of the first filter written alone.
    """
    row = tl.program_id(0) * ROWS_PER_PROGRAM + tl.arange(0, ROWS_PER_PROGRAM)
    inside = row < rows
    floor = tl.load(of_filter.floors + row, mask=inside, other=0.0)
    value = tl.load(of_filter.requested + row.to(tl.int64) * of_filter.stride, mask=inside, other=0.0)
    off = tl.full((1,), of_filter.off_bits, tl.int32).to(tl.float32, bitcast=True)
    counts = (floor == floor) & (value == value) & (value != off)
    floor = tl.where(counts, tl.minimum(floor, 0.0), float("-inf"))
    earlier = tl.load(floors + row, mask=inside & (of_filter.is_first == 0), other=float("-inf"))
    tl.store(floors + row, tl.maximum(floor, earlier), mask=inside)
