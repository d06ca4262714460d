"""The grids of a call of one size, and where its scratch lies."""

from __future__ import annotations

from typing import NamedTuple

from tokendraw_triton_gumbel.host.scratch import Scratch
from tokendraw_triton_gumbel.host.tuning import Configuration
from tokendraw_triton_gumbel.host.variant import COUPLED, LOGITS, Rows, Size, Target, Variant
from tokendraw_triton_gumbel.kernels.shared.argument_groups import Counts
from tokendraw_triton_gumbel.kernels.shared.tile_layout import TILE_SIZE
from tokendraw_triton_gumbel.kernels.verify.check_probs import PROBS_AT_ONCE

Grid = tuple[int, int, int]
ACCEPTING_WARPS = 4
"""Warps a program of the launch over the requests of a verification."""
ACCEPTING_PROGRAMS = 4
"""Programs a multiprocessor, at most, of that launch."""
_MOST_ROWS_A_COLUMN = 32768
"""Grid y limit, rounded down to a power of two."""
_ROWS_A_STEP = 8
"""Scratch is laid out for a multiple of so many rows or requests, so that most new sizes find it laid out already."""


class Geometry(NamedTuple):
    """The geometry of a variant at one size."""

    size: Size
    numbers: Counts
    """Counts that kernels get."""
    counts: tuple[int, ...]
    """Counts that scratch is laid out for; see :mod:`.scratch`."""
    offsets: list[int]
    """Offsets of the pieces of scratch, and at the end its number of bytes."""
    tile_grid: Grid
    row_grid: Grid
    large_set_grid: Grid
    request_grid: Grid
    probs_grid: Grid


def span_of(how: Configuration, logits: Rows) -> int:
    """Tiles a program of the first pass."""
    return how.span if logits.dtype.itemsize == 4 else how.span_half


def grid_of_rows(rows: int) -> tuple[int, int]:
    """Divide rows among the last two dimensions of a grid: row ``y + z * grid y``, if there is one."""
    return min(rows, _MOST_ROWS_A_COLUMN), -(-rows // _MOST_ROWS_A_COLUMN)


def lay_out(variant: Variant, target: Target, scratch: Scratch, size: Size) -> Geometry:
    """Compute the grids of all launches, and lay out the scratch."""
    verify, tiles, (rows, requests, drafts, width) = (
        variant.verify,
        -(-variant.vocab_size // TILE_SIZE.value),
        size,
    )
    places = rows  # beside every request, room for as many drafts as it may have
    if verify is not None and verify.known == LOGITS:
        places = max(rows + drafts, rows + requests * width)
        rows += drafts
    most_programs = variant.how.large_set_programs * target.processors
    room = rounded(rows)
    counts = (1, room, rounded(requests), min(room * tiles, most_programs))
    parts = 1
    if verify is not None and verify.known != COUPLED:
        groups = -(-tiles // ACCEPTING_WARPS)
        parts = max(1, min(groups, -(-ACCEPTING_PROGRAMS * target.processors // requests)))
    tile_grid = (-(-tiles // span_of(variant.how, variant.logits)), *grid_of_rows(places))
    large_set_grid, request_grid = (min(rows * tiles, most_programs), 1, 1), (requests, parts, 1)
    probs_grid = (drafts, -(-variant.vocab_size // PROBS_AT_ONCE), 1)
    numbers = Counts(rows, size.rows, tiles, width, requests)
    grids = (tile_grid, (places, 1, 1), large_set_grid, request_grid, probs_grid)
    return Geometry(size, numbers, counts, scratch.offsets(counts), *grids)


def rounded(count: int) -> int:
    """Return the count that scratch is laid out for."""
    return -(-count // _ROWS_A_STEP) * _ROWS_A_STEP
