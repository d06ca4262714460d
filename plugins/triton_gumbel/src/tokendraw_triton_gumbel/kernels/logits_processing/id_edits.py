"""Edits of the ids that occur in a request, of its bias list, and of the drafts before a row.

Reads of each id one word of counts, one of each mask and the logit, which it writes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logits_processing.edited_row import (
    HAS_BIAS,
    IN_PROMPT,
    OUTPUT_SHIFT,
)
from tokendraw_triton_gumbel.kernels.logits_processing.forbidden_ids import is_forbidden, load_restricted
from tokendraw_triton_gumbel.kernels.logits_processing.id_table import find_entries, listed_ids, load_table
from tokendraw_triton_gumbel.kernels.logits_processing.penalties import (
    apply_penalties,
    count_ids,
    load_penalties,
    walks_table,
)
from tokendraw_triton_gumbel.kernels.logits_processing.repetition_costs import dry_costs, load_multiplier
from tokendraw_triton_gumbel.kernels.logits_processing.row_logits import load_logits, store_logits
from tokendraw_triton_gumbel.kernels.logits_processing.row_tokens import count_drafts, load_draft_ids


@triton.jit
def edit_ids(
    part,
    row,
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
    config: tl.constexpr,
):
    """Apply penalties and DRY to the ids of a row, in turns with its other programs.

    These are the ids in prompt and output of the request, the first of which are loaded before their number is known;
    or those in the table of the row, where no other id is edited.
    """
    IDS: tl.constexpr = config.IDS
    start = part * IDS
    index = start + tl.arange(0, IDS)
    id_list = occurrences.ids + row.slot * occurrences.room
    row_counts = occurrences.counts + row.slot * row.vocab_size
    ids = tl.load(id_list + index, mask=index < occurrences.room, other=-1)
    count = tl.load(occurrences.num_ids + row.slot)
    row_penalties = load_penalties(row.slot, penalties, flags)
    is_restricted = load_restricted(row, masks, flags)
    multiplier = load_multiplier(row, dry, flags, config)
    repeats = ((row_penalties.repetition != 1.0) | (multiplier != 0.0)).to(tl.int32)
    count = tl.where(
        (repeats > 0) | (row_penalties.frequency != 0.0) | (row_penalties.presence != 0.0), count, 0
    )
    table = load_table(row, tables, flags)
    num_listed = count  # nothing is read behind the list, which may be shorter than the table
    if config.HAS_LISTS:
        is_walked = walks_table(row_penalties, flags)
        if is_walked:
            num_listed = count * 0
            count = table.size
            ids = listed_ids(table, index)
    is_more = True
    while is_more:  # the first turn loads logits and counts before the number of ids is known
        mask = (index < count) & (ids >= 0) & (ids < row.vocab_size)
        counts = tl.load(row_counts + ids, mask=mask, other=0)
        value = load_logits(row, ids, mask)
        forbidden = is_forbidden(
            ids, mask, counts, row, is_restricted, history, drafts, masks, words, flags, config
        )
        times, occurs = count_ids(ids, index, counts, row, row_penalties, table, drafts, flags, config)
        mask &= ((counts & HAS_BIAS) == 0) & (forbidden == 0) & (repeats + times > 0)
        value = apply_penalties(value, times, occurs, row_penalties)
        if config.HAS_LISTS:
            if multiplier != 0.0:
                entry = index
                if is_walked == 0:
                    entry = find_entries(ids, mask, table)
                value -= dry_costs(entry, mask, row, multiplier, dry, table)
        store_logits(row, ids, value, mask)
        start += division.of_ids * IDS
        index = start + tl.arange(0, IDS)
        ids = tl.load(id_list + index, mask=index < num_listed, other=-1)
        if config.HAS_LISTS:
            if is_walked:
                ids = listed_ids(table, index)
        is_more = start < count


@triton.jit
def edit_biased(
    row,
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
    config: tl.constexpr,
):
    """Apply bias, penalties and DRY to the ids of a request's bias list."""
    row_penalties = load_penalties(row.slot, penalties, flags)
    multiplier = load_multiplier(row, dry, flags, config)
    table = load_table(row, tables, flags)
    is_restricted = load_restricted(row, masks, flags)
    count = tl.load(bias.count + row.slot)
    offset = row.slot * bias.room
    for start in range(0, count, config.IDS):
        index = start + tl.arange(0, config.IDS)
        ids = tl.load(bias.ids + offset + index, mask=index < count, other=-1)
        added = tl.load(bias.added + offset + index, mask=index < count, other=0.0)
        mask = (ids >= 0) & (ids < row.vocab_size)
        counts = tl.load(occurrences.counts + row.slot * row.vocab_size + ids, mask=mask, other=0)
        value = load_logits(row, ids, mask)
        forbidden = is_forbidden(
            ids, mask, counts, row, is_restricted, history, drafts, masks, words, flags, config
        )
        entry = find_entries(ids, mask, table)
        times, occurs = count_ids(ids, entry, counts, row, row_penalties, table, drafts, flags, config)
        value = apply_penalties(value + added, times, occurs, row_penalties)
        if multiplier != 0.0:
            value -= dry_costs(entry, mask, row, multiplier, dry, table)
        store_logits(row, ids, value, mask & (forbidden == 0))


@triton.jit
def edit_drafted(
    row,
    occurrences,
    penalties,
    dry,
    tables,
    history,
    drafts,
    masks,
    words,
    flags,
    config: tl.constexpr,
):
    """Apply penalties and DRY once to each draft before a row that is neither in the request nor in its bias list.

    Drafts of a row whose table is walked stand there.
    """
    row_penalties = load_penalties(row.slot, penalties, flags)
    multiplier = load_multiplier(row, dry, flags, config)
    table = load_table(row, tables, flags)
    is_restricted = load_restricted(row, masks, flags)
    num_drafts = tl.where(walks_table(row_penalties, flags), 0, row.step)
    for start in range(0, num_drafts, config.IDS):
        index = start + tl.arange(0, config.IDS)
        is_draft = (index < row.step) & (row.draft + index < drafts.count)
        ids = load_draft_ids(row, drafts, index, is_draft)
        mask = ids >= 0
        counts = tl.load(occurrences.counts + row.slot * row.vocab_size + ids, mask=mask, other=0)
        value = load_logits(row, ids, mask)
        forbidden = is_forbidden(
            ids, mask, counts, row, is_restricted, history, drafts, masks, words, flags, config
        )
        entry = find_entries(ids, mask, table)
        times, occurs = count_ids(ids, entry, counts, row, row_penalties, table, drafts, flags, config)
        drafts_before = count_drafts(ids, index, row, drafts)
        mask &= (
            (drafts_before == 0) & ((counts & (HAS_BIAS | IN_PROMPT)) == 0) & ((counts >> OUTPUT_SHIFT) == 0)
        )
        value = apply_penalties(value, times, occurs, row_penalties)
        if multiplier != 0.0:
            value -= dry_costs(entry, mask, row, multiplier, dry, table)
        store_logits(row, ids, value, mask & (forbidden == 0))
