"""The grids and the scratch layout of a call of a given size."""

from __future__ import annotations

from typing import NamedTuple

from tokendraw_triton_gumbel.host.scratch import Scratch
from tokendraw_triton_gumbel.host.variant import COUPLED, CallSize, Target, Variant
from tokendraw_triton_gumbel.kernels.shared.argument_groups import Counts
from tokendraw_triton_gumbel.kernels.shared.tile_layout import TILE_SIZE
from tokendraw_triton_gumbel.kernels.verify.check_probs import PROBS_AT_ONCE

Grid = tuple[int, int, int]
ACCEPT_WARPS = 4
"""Warps a program of the launch over the requests of a verification."""
ACCEPT_PROGRAMS = 4
"""Upper limit of programs a multiprocessor of the launch over the requests of a verification."""
_MAX_GRID_Y = 32768
"""Grid y limit, rounded down to a power of two."""
_ROW_STEP = 8
"""Scratch is laid out for a multiple of so many rows or requests, so that most new sizes find it laid out already."""


class Geometry(NamedTuple):
    """The grids and the scratch layout of a variant at a size."""

    size: CallSize
    counts: Counts
    """Counts that kernels get."""
    scratch_counts: tuple[int, ...]
    """Counts that scratch is laid out for; see :mod:`.scratch`."""
    scratch_offsets: list[int]
    """Offsets of the buffers of scratch, and at the end its number of bytes."""
    tile_grid: Grid
    row_grid: Grid
    large_set_grid: Grid
    request_grid: Grid
    block_grid: Grid
    probs_grid: Grid


def tiles_of(vocab_size: int) -> int:
    """Return the number of tiles of a row."""
    tile_size: int = TILE_SIZE.value
    return -(-vocab_size // tile_size)


def power_of_two(count: int, at_least: int = 0) -> int:
    """Return the least power of two from a count and a power of two upwards; 0 for none."""
    return max(at_least, 1 << (count - 1).bit_length() if count else 0)


def row_grid(rows: int) -> tuple[int, int]:
    """Divide rows among the last two dimensions of a grid: row ``y + z * grid y``, if in range."""
    return min(rows, _MAX_GRID_Y), -(-rows // _MAX_GRID_Y)


def rounded_rows(rows: int) -> int:
    """Return the rounded number of rows or requests in the scratch layout."""
    return -(-rows // _ROW_STEP) * _ROW_STEP


def geometry_of(variant: Variant, target: Target, scratch: Scratch, size: CallSize) -> Geometry:
    """Compute the grids of all launches, and lay out the scratch."""
    verify, tiles = variant.verify, tiles_of(variant.vocab_size)
    rows, requests, draft_rows, max_drafts = size
    grid_rows = rows
    if variant.draws_drafts:
        # A place for each draft that a request may have.
        grid_rows = max(rows + draft_rows, rows + requests * max_drafts)
        rows += draft_rows
    configuration = variant.configuration
    max_programs = configuration.large_set_programs * target.processors
    scratch_rows = rounded_rows(rows)
    scratch_counts = (1, scratch_rows, rounded_rows(requests), min(scratch_rows * tiles, max_programs))
    request_parts = block_parts = 1
    if verify is not None and verify.draft_kind != COUPLED:
        tile_groups = -(-tiles // ACCEPT_WARPS)
        places = requests * max_drafts if verify.is_block else requests
        parts = max(1, min(tile_groups, -(-ACCEPT_PROGRAMS * target.processors // places)))
        request_parts, block_parts = (1, parts) if verify.is_block else (parts, 1)
    span = configuration.span(variant.logits.dtype.itemsize)
    return Geometry(
        size,
        Counts(rows, size.rows, tiles, max_drafts, requests),
        scratch_counts,
        scratch.offsets(scratch_counts),
        tile_grid=(-(-tiles // span), *row_grid(grid_rows)),
        row_grid=(grid_rows, 1, 1),
        large_set_grid=(min(rows * tiles, max_programs), 1, 1),
        request_grid=(requests, request_parts, 1),
        block_grid=(requests, max_drafts, block_parts),
        probs_grid=(draft_rows, -(-variant.vocab_size // PROBS_AT_ONCE), 1),
    )
