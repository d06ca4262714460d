"""Counts the tokens in the window of penalties, by their entries in the tables of rows.

Several programs a row, in turns and without order. Reads each token of the window once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logits_processing.argument_groups import UNSPECIALIZED
from tokendraw_triton_gumbel.kernels.logits_processing.edited_row import (
    IN_PROMPT,
    LAST_N,
    OUTPUT_SHIFT,
    load_row,
)
from tokendraw_triton_gumbel.kernels.logits_processing.id_table import find_entries, load_table
from tokendraw_triton_gumbel.kernels.logits_processing.row_tokens import token_before

_ONE_OUTPUT = tl.constexpr(1 << OUTPUT_SHIFT.value)


@triton.jit(**UNSPECIALIZED)
def count_window(parts, rows, logits, history, drafts, stops, penalties, tables, config: tl.constexpr):
    """Each program counts some tokens of a row. Grid (rows * parts), the parts of a row side by side.

    The arguments are those of :func:`~.open_tables.open_tables`.
    """
    TOKENS: tl.constexpr = config.TOKENS
    row_number = tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    row = load_row(row_number, logits, rows, drafts, history, stops, LAST_N, config)
    table = load_table(row, tables, LAST_N)
    window = tl.load(penalties.last_n + row.slot, mask=row.has_request, other=0)
    window = tl.minimum(window, row.num_tokens + row.step)
    for start in range(part * TOKENS, window, parts * TOKENS):
        back = start + tl.arange(0, TOKENS)
        ids = token_before(back, window, row, history, drafts)
        entry = find_entries(ids, ids >= 0, table)
        is_output = back < row.num_output
        tl.atomic_add(table.counts + entry, _ONE_OUTPUT, mask=(entry >= 0) & is_output, sem="relaxed")
        tl.atomic_or(table.counts + entry, IN_PROMPT, mask=(entry >= 0) & (is_output == 0), sem="relaxed")
