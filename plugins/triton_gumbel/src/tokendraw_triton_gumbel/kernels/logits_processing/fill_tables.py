"""Inserts the ids in the window of penalties, and those that DRY makes dearer, into the tables of rows.

Several programs a row, in turns and without order. Reads each token of the window once, and each token of the history
that DRY searches about twice.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logits_processing.argument_groups import UNSPECIALIZED
from tokendraw_triton_gumbel.kernels.logits_processing.edited_row import DRY, LAST_N, load_row
from tokendraw_triton_gumbel.kernels.logits_processing.id_table import insert_keys, load_table, new_keys
from tokendraw_triton_gumbel.kernels.logits_processing.repetitions import insert_matches
from tokendraw_triton_gumbel.kernels.logits_processing.row_tokens import token_before


@triton.jit(**UNSPECIALIZED)
def fill_tables(
    flags, parts, rows, logits, history, drafts, stops, penalties, dry, tables, ends, config: tl.constexpr
):
    """Each program inserts some tokens of a row. Grid (rows * parts), the parts of a row side by side.

    The arguments are those of :func:`~.open_tables.open_tables`.
    """
    row_number = tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    row = load_row(row_number, logits, rows, drafts, history, stops, flags, config)
    table = load_table(row, tables, flags)
    if row.has_request & (table.size > 0):
        if flags & LAST_N != 0:
            TOKENS: tl.constexpr = config.TOKENS
            window = tl.minimum(tl.load(penalties.last_n + row.slot), row.num_tokens + row.step)
            for start in range(part * TOKENS, window, parts * TOKENS):
                back = start + tl.arange(0, TOKENS)
                ids = token_before(back, window, row, history, drafts)
                insert_keys(new_keys(ids, tl.zeros_like(ids) - 1), ids >= 0, table)
        if flags & DRY != 0:
            if tl.load(dry.multiplier + row.slot) != 0.0:
                insert_matches(part, parts, row, history, drafts, dry, ends, table, config)
