"""Launch E: bitmasks, allowed ids, bad words, early stops, biases and penalties, in place, by programs without order.

A row has programs that take the ids that occur in its request, one that takes its lists and drafts, and some that take
tiles of ids where there are masks. Which are there, the host knows; a program without anything to do ends at once. Of
the logits nothing is read or written but what is edited: see :mod:`.row_edits`. Masks are read once, from memory, and
-inf is written where they say so.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logits_processing.row_edits import (
    ALLOWED,
    BAD_WORDS,
    BIAS,
    BITMASK,
    DRY,
    HAS_BIAS,
    IN_PROMPT,
    MIN_TOKENS,
    OUTPUT_SHIFT,
    PENALTIES,
    apply_penalties,
    banned_ids,
    count_drafts,
    count_ids,
    dry_costs,
    is_forbidden,
    load_draft_ids,
    load_forced,
    load_logits,
    load_multiplier,
    load_penalties,
    load_restricted,
    load_row,
    store_logits,
)


@triton.jit
def _edit_ids(
    part,
    row,
    occurrences,
    penalties,
    dry,
    repetitions,
    history,
    drafts,
    masks,
    words,
    division,
    flags,
    config: tl.constexpr,
):
    """Apply the penalties to the ids in a request's prompt and output, in turns with the other programs of the row.

    Loads the first ids before their number is known.
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
    is_more = True
    while is_more:  # the first turn loads logits and counts before the number of ids is known
        mask = (index < count) & (ids >= 0) & (ids < row.vocab_size)
        counts = tl.load(row_counts + ids, mask=mask, other=0)
        value = load_logits(row, ids, mask)
        forbidden = is_forbidden(
            ids, mask, counts, row, is_restricted, history, drafts, masks, words, flags, config
        )
        times, occurs = count_ids(ids, index, counts, row, row_penalties, history, drafts, flags, config)
        mask &= ((counts & HAS_BIAS) == 0) & (forbidden == 0) & (repeats + times > 0)
        value = apply_penalties(value, times, occurs, row_penalties)
        if config.HAS_LISTS:
            if multiplier != 0.0:
                value -= dry_costs(ids, row, multiplier, dry, repetitions)
        store_logits(row, ids, value, mask)
        start += division.of_ids * IDS
        index = start + tl.arange(0, IDS)
        ids = tl.load(id_list + index, mask=index < count, other=-1)
        is_more = start < count


@triton.jit
def _edit_biased(
    row,
    occurrences,
    penalties,
    dry,
    repetitions,
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
        times, occurs = count_ids(ids, index, counts, row, row_penalties, history, drafts, flags, config)
        value = apply_penalties(value + added, times, occurs, row_penalties)
        if multiplier != 0.0:
            value -= dry_costs(ids, row, multiplier, dry, repetitions)
        store_logits(row, ids, value, mask & (forbidden == 0))


@triton.jit
def _edit_drafted(
    row,
    occurrences,
    penalties,
    dry,
    repetitions,
    history,
    drafts,
    masks,
    words,
    flags,
    config: tl.constexpr,
):
    """Apply penalties and DRY once to each draft before a row that is neither in the request nor in its bias list."""
    row_penalties = load_penalties(row.slot, penalties, flags)
    multiplier = load_multiplier(row, dry, flags, config)
    is_restricted = load_restricted(row, masks, flags)
    for start in range(0, row.step, config.IDS):
        index = start + tl.arange(0, config.IDS)
        is_draft = (index < row.step) & (row.draft + index < drafts.count)
        ids = load_draft_ids(row, drafts, index, is_draft)
        mask = ids >= 0
        counts = tl.load(occurrences.counts + row.slot * row.vocab_size + ids, mask=mask, other=0)
        value = load_logits(row, ids, mask)
        forbidden = is_forbidden(
            ids, mask, counts, row, is_restricted, history, drafts, masks, words, flags, config
        )
        times, occurs = count_ids(ids, index, counts, row, row_penalties, history, drafts, flags, config)
        drafts_before = count_drafts(ids, index, row, drafts)[1]
        mask &= (
            (drafts_before == 0) & ((counts & (HAS_BIAS | IN_PROMPT)) == 0) & ((counts >> OUTPUT_SHIFT) == 0)
        )
        value = apply_penalties(value, times, occurs, row_penalties)
        if multiplier != 0.0:
            value -= dry_costs(ids, row, multiplier, dry, repetitions)
        store_logits(row, ids, value, mask & (forbidden == 0))


@triton.jit
def _forbid_listed(row, history, drafts, stops, words, flags, config: tl.constexpr):
    """Write -inf to the last ids of bad words that a token would complete, and to stop ids before ``min_tokens``."""
    if row.is_early:
        count = tl.load(stops.count + row.slot)
        for start in range(0, count, config.IDS):
            index = start + tl.arange(0, config.IDS)
            ids = tl.load(stops.ids + row.slot * stops.room + index, mask=index < count, other=-1)
            tl.store(row.base + ids, -float("inf"), mask=(ids >= 0) & (ids < row.vocab_size))
    if flags & BAD_WORDS != 0:
        for first in range(0, tl.load(words.count + row.slot), config.IDS):
            ids, is_banned = banned_ids(first, row, history, drafts, words, config.IDS)
            mask = is_banned & (ids >= 0) & (ids < row.vocab_size)
            tl.store(row.base + ids, -float("inf"), mask=mask)


@triton.jit
def _forbid_ids(base, words, size, all_of_them, TILE: tl.constexpr, VECTOR: tl.constexpr):
    """Write -inf to single forbidden ids of a tile.

    :param size: ids in the tile.
    :param all_of_them: whether to write also the ids of entirely forbidden vectors.

    A lane has the same bit of every word, and all its addresses differ by constants: a few instructions for 32 ids.
    """
    index = tl.arange(0, TILE)
    bit = 1 << (index & 31)
    vector = ((1 << VECTOR) - 1) << (index & (32 - VECTOR))
    bits = tl.load(words + (index >> 5), mask=index < size, other=-1)
    mask = ((bits & bit) == 0) & (((bits & vector) != 0) | all_of_them)
    tl.store(base + index, -float("inf"), mask=mask)


@triton.jit
def _forbid_unset(part, parts, base, words, vocab_size, config: tl.constexpr):
    """Write -inf to every id whose mask bit is 0 and nothing to the others: tiles in turns with the other programs.

    An entirely forbidden vector of 16 bytes is one store. Memory writes full sectors, so the sectors of other vectors
    are prefetched into the cache before single ids are written; their logits are not written back, since another
    program may be editing them. The words of the next tile are loaded while one tile is written.
    """
    TILE: tl.constexpr = config.TILE
    VECTOR: tl.constexpr = 128 // base.dtype.element_ty.primitive_bitwidth
    ONES: tl.constexpr = (1 << VECTOR) - 1
    is_aligned = (base.to(tl.int64) & 15) == 0
    vectors = tl.arange(0, TILE // VECTOR)
    offset = vectors * VECTOR >> 5
    shift = vectors * VECTOR & 31
    elements = vectors[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    full = vocab_size // TILE
    step: tl.constexpr = TILE // 32
    bits = tl.load(words + part * step + offset, mask=part < full, other=-1)
    for tile in range(part, full, parts):
        later = tile + parts
        next_bits = tl.load(words + later * step + offset, mask=later < full, other=-1)
        start = base + tile * TILE
        allowed = (bits >> shift) & ONES
        is_whole = (allowed == 0) & is_aligned
        whole_vectors = tl.broadcast_to(is_whole[:, None], [TILE // VECTOR, VECTOR])
        tl.store(tl.multiple_of(start + elements, (16, 16)), -float("inf"), mask=whole_vectors)
        is_mixed = ((allowed != ONES) & (is_whole == 0)).to(tl.int32)
        if config.IS_NVIDIA:
            _fetch(start + vectors * VECTOR, is_mixed)
        if tl.max(is_mixed, 0) > 0:
            _forbid_ids(start, words + tile * step, TILE, is_aligned == 0, TILE, VECTOR)
        bits = next_bits
    if part == full % parts:
        _forbid_ids(base + full * TILE, words + full * step, vocab_size - full * TILE, True, TILE, VECTOR)


@triton.jit
def _forbid_others(part, parts, base, forced, vocab_size, config: tl.constexpr):
    """Write -inf to every id but one: tiles in turns with the other programs."""
    for start in range(part * config.TILE, vocab_size, parts * config.TILE):
        index = start + tl.arange(0, config.TILE)
        tl.store(base + index, -float("inf"), mask=(index < vocab_size) & (index != forced))


@triton.jit
def _fetch(addresses, mask):
    """Have the sectors at some addresses brought into the L2, without waiting for them."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
        "=r,l,r",
        [addresses, mask],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit(
    do_not_specialize=[
        "flags",
        "division",
        "rows",
        "logits",
        "occurrences",
        "masks",
        "history",
        "drafts",
        "bias",
        "stops",
        "words",
        "dry",
        "repetitions",
    ],
    do_not_specialize_on_alignment=[  # ids stand anywhere, and rows begin anywhere
        "rows",
        "logits",
        "occurrences",
        "penalties",
        "masks",
        "history",
        "drafts",
        "bias",
        "stops",
        "words",
        "dry",
        "repetitions",
    ],
)
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
    repetitions,
    config: tl.constexpr,
):
    """Each program applies a part of a row's edits. Grid (rows * parts), the parts of a row side by side.

    The arguments that most calls read come first, side by side.

    :param flags: bits of :mod:`.row_edits`: the kinds of edits in the call.
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
            _forbid_others(tile, division.of_masks, base, forced, logits.vocab_size, config)
        else:
            if flags & BITMASK != 0:
                bitmask_row = masks.bitmask + row_number * masks.bitmask_stride
                _forbid_unset(tile, division.of_masks, base, bitmask_row, logits.vocab_size, config)
            if flags & ALLOWED != 0:
                edited_row = load_row(row, logits, rows, drafts, history, stops, flags, config)
                if load_restricted(edited_row, masks, flags):
                    allowed = masks.allowed + edited_row.slot * ((logits.vocab_size + 31) >> 5)
                    _forbid_unset(tile, division.of_masks, base, allowed, logits.vocab_size, config)
    else:
        edited_row = load_row(row, logits, rows, drafts, history, stops, flags, config)
        if edited_row.has_request:
            if part < division.of_ids:
                _edit_ids(
                    part,
                    edited_row,
                    occurrences,
                    penalties,
                    dry,
                    repetitions,
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
                    _forbid_listed(edited_row, history, drafts, stops, words, flags, config)
                if flags & BIAS != 0:
                    _edit_biased(
                        edited_row,
                        occurrences,
                        penalties,
                        dry,
                        repetitions,
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
                        _edit_drafted(
                            edited_row,
                            occurrences,
                            penalties,
                            dry,
                            repetitions,
                            history,
                            drafts,
                            masks,
                            words,
                            flags,
                            config,
                        )
