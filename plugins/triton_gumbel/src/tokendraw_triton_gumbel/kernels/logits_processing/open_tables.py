"""Empties the tables of the rows with a window of penalties or DRY, and finds what DRY compares with.

Several programs a row, in turns; the first one reads the end of the history some times. Writes each entry of a table.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logits_processing.argument_groups import UNSPECIALIZED
from tokendraw_triton_gumbel.kernels.logits_processing.edited_row import DRY, LAST_N, load_row
from tokendraw_triton_gumbel.kernels.logits_processing.repetitions import (
    OVERLAPS,
    find_overlaps,
    longest_match,
)

ENTRIES = tl.constexpr(1024)
"""Entries that are emptied at once."""


@triton.jit(**UNSPECIALIZED)
def open_tables(
    flags, parts, rows, logits, history, drafts, stops, penalties, dry, tables, ends, config: tl.constexpr
):
    """Each program empties a part of a row's table. Grid (rows * parts), the parts of a row side by side.

    :param flags: bits of :mod:`.edited_row`: the kinds of edits in the call.
    :param logits: :class:`~.shared.argument_groups.Logits`, which are not read.
    :param tables: :class:`~.argument_groups.IdTables`; this module defines all groups except the logits'.
    :param config: :class:`~.shared.configs.ProcessConfig`.
    """
    row_number = tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    row = load_row(row_number, logits, rows, drafts, history, stops, flags, config)
    num_tokens = row.num_tokens + row.step
    has_window = row.has_request & ((flags & LAST_N) != 0)
    has_dry = row.has_request & ((flags & DRY) != 0)
    window = tl.load(penalties.last_n + row.slot, mask=has_window, other=0)
    multiplier = tl.load(dry.multiplier + row.slot, mask=has_dry, other=0.0)
    searched = tl.load(dry.last_n + row.slot, mask=has_dry, other=0)
    searched = tl.minimum(tl.where(multiplier != 0.0, searched, 0), num_tokens)
    size = tl.minimum(tl.maximum(window, searched), num_tokens)
    size = tl.minimum(2 * size, row.vocab_size)
    offset = row.row * tables.room
    for start in range(part * ENTRIES, size, parts * ENTRIES):
        index = start + tl.arange(0, ENTRIES)
        tl.store(tables.keys + offset + index, tl.zeros_like(index).to(tl.int64), mask=index < size)
        if flags & LAST_N != 0:
            tl.store(tables.counts + offset + index, tl.zeros_like(index), mask=index < size)
    if part == 0:
        tl.store(tables.sizes + row.row, size)
        if searched > 0:
            longest = longest_match(searched, row, history, drafts, dry)
            overlaps = find_overlaps(longest, searched, row, history, drafts)
            tl.store(ends.lengths + row.row, longest)
            tl.store(ends.overlaps + row.row * OVERLAPS + tl.arange(0, OVERLAPS), overlaps)
