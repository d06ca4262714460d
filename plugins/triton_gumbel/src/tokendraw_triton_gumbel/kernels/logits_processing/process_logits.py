"""Bitmasks, allowed ids, bad words, early stops, biases and penalties, in place, by programs without order.

A row has programs that take the ids that occur in its request, one that takes its lists and drafts, and some that take
tiles of ids where there are masks. Which are there, the host knows; a program without anything to do ends at once. Of
the logits nothing is read or written but what is edited. Masks are read once, from memory, and -inf is written where
they say so.

Each id has one owner, so the programs of a row need no order: every program that forbids an id writes -inf to it, and
the others leave it alone; otherwise the program of the bias list edits its ids, and the programs of the occurring ids
edit the rest. One word of ``counts`` tells the owner.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logits_processing.argument_groups import UNSPECIALIZED
from tokendraw_triton_gumbel.kernels.logits_processing.edited_row import (
    ALLOWED,
    BAD_WORDS,
    BIAS,
    BITMASK,
    DRY,
    MIN_TOKENS,
    PENALTIES,
    load_forced,
    load_row,
)
from tokendraw_triton_gumbel.kernels.logits_processing.forbidden_ids import forbid_listed, load_restricted
from tokendraw_triton_gumbel.kernels.logits_processing.id_edits import edit_biased, edit_drafted, edit_ids
from tokendraw_triton_gumbel.kernels.logits_processing.mask_tiles import forbid_others, forbid_unset


@triton.jit(**UNSPECIALIZED)
def process_logits(
    flags,
    division,
    rows,
    logits,
    occurrences,
    penalties,
    masks,
    history,
    drafts,
    bias,
    stops,
    words,
    dry,
    tables,
    config: tl.constexpr,
):
    """Each program applies a part of a row's edits. Grid (rows * parts), the parts of a row side by side.

    The arguments that most calls read come first, side by side.

    :param flags: bits of :mod:`.edited_row`: the kinds of edits in the call.
    :param division: :class:`~.argument_groups.Division`; this module defines all groups except the logits'.
    :param logits: :class:`~.shared.argument_groups.Logits`, edited in place; V is the vocabulary of the slots.
    :param config: :class:`~.shared.configs.ProcessConfig`.
    """
    programs = division.of_ids + division.of_lists + division.of_masks
    row = tl.program_id(0) // programs
    part = tl.program_id(0) % programs
    first_mask_part = division.of_ids + division.of_lists
    if part >= first_mask_part:
        tile = part - first_mask_part
        forced = load_forced(row, rows, flags, config)
        row_number = row.to(tl.int64)
        base = logits.base + row_number * logits.row_stride
        if forced >= 0:
            forbid_others(tile, division.of_masks, base, forced, logits.vocab_size, config)
        else:
            if flags & BITMASK != 0:
                bitmask_row = masks.bitmask + row_number * masks.bitmask_stride
                forbid_unset(tile, division.of_masks, base, bitmask_row, logits.vocab_size, config)
            if flags & ALLOWED != 0:
                edited_row = load_row(row, logits, rows, drafts, history, stops, flags, config)
                if load_restricted(edited_row, masks, flags):
                    allowed = masks.allowed + edited_row.slot * ((logits.vocab_size + 31) >> 5)
                    forbid_unset(tile, division.of_masks, base, allowed, logits.vocab_size, config)
    else:
        edited_row = load_row(row, logits, rows, drafts, history, stops, flags, config)
        if edited_row.has_request:
            if part < division.of_ids:
                edit_ids(
                    part,
                    edited_row,
                    occurrences,
                    penalties,
                    dry,
                    tables,
                    history,
                    drafts,
                    masks,
                    words,
                    division,
                    flags,
                    config,
                )
            elif config.HAS_LISTS:
                if (flags & (BAD_WORDS | MIN_TOKENS) != 0) & (edited_row.forced < 0):
                    forbid_listed(edited_row, history, drafts, stops, words, flags, config)
                if flags & BIAS != 0:
                    edit_biased(
                        edited_row,
                        occurrences,
                        penalties,
                        dry,
                        tables,
                        bias,
                        history,
                        drafts,
                        masks,
                        words,
                        flags,
                        config,
                    )
                if drafts.ids is not None:
                    if flags & (PENALTIES | DRY) != 0:
                        edit_drafted(
                            edited_row,
                            occurrences,
                            penalties,
                            dry,
                            tables,
                            history,
                            drafts,
                            masks,
                            words,
                            flags,
                            config,
                        )
