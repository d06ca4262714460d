"""Appends the tokens of a step to the histories of requests, and counts their ids.

Lengths and counts are raised by atomics, which return what was there: an id that comes twice in a step is new once, and
rows that name the same slot share its history.
Reads each token once, and of its request some numbers; writes the token, its count and, where it is new, its id.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logits_processing.edited_row import IN_PROMPT, OUTPUT_SHIFT

_MAX_TOKEN = tl.constexpr(2**31 - 1)
_ONE_OUTPUT = tl.constexpr(1 << OUTPUT_SHIFT.value)


@triton.jit(
    do_not_specialize=["rows", "tokens", "slots"],
    do_not_specialize_on_alignment=["rows", "tokens", "slots"],  # scalar reads and writes
)
def append_tokens(rows, tokens, slots):
    """Each program appends the tokens of a row, in order. Grid (rows).

    Left out are negative tokens, tokens that are no int32, tokens beyond the limit of the slot, and rows whose slot is
    out of range. A token from V on takes its place in the history and is counted by no id.

    :param rows: :class:`~.argument_groups.SlotRows`; this module defines all groups.
    :param tokens: :class:`~.argument_groups.StepTokens`.
    :param slots: :class:`~.argument_groups.GrowingHistory`.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(rows.row_index + row).to(tl.int64)
    if (slot >= 0) & (slot < rows.num_slots):
        limit = tl.load(slots.limit + slot)
        for step in range(tokens.width):
            token = tl.load(tokens.ids + row * tokens.width + step)
            if (token >= 0) & (token <= _MAX_TOKEN):
                place = tl.atomic_add(slots.num_tokens + slot, 1, sem="relaxed")
                if place < limit:
                    tl.store(slots.history + slot * slots.max_tokens + place, token.to(tl.int32))
                    if token < slots.vocab_size:
                        count_of_id = slots.counts + slot * slots.vocab_size + token
                        count = tl.atomic_add(count_of_id, _ONE_OUTPUT, sem="relaxed")
                        if ((count & IN_PROMPT) == 0) & ((count >> OUTPUT_SHIFT) == 0):
                            index = tl.atomic_add(slots.num_distinct + slot, 1, sem="relaxed")
                            tl.store(slots.distinct + slot * slots.max_tokens + index, token.to(tl.int32))
                else:
                    tl.atomic_add(slots.num_tokens + slot, -1, sem="relaxed")
