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
    HAS_BIAS,
    IN_PROMPT,
    MIN_TOKENS,
    OUTPUT_SHIFT,
    PENALTIES,
    banned_ids,
    count_drafts,
    is_forbidden,
    load_draft_ids,
    load_logits,
    load_penalties,
    load_restricted,
    load_row,
    penalised,
    store_logits,
)


@triton.jit
def _edit_ids(
    part, row, occurrences, penalties, history, drafts, masks, words, division, flags, config: tl.constexpr
):
    """Apply the penalties to the ids that occur in a request, by turns with the programs beside this one.

    The first ids are on their way before it is known how many there are.
    """
    IDS: tl.constexpr = config.IDS
    start = part * IDS
    at = start + tl.arange(0, IDS)
    listed = occurrences.ids + row.slot * occurrences.room
    row_counts = occurrences.counts + row.slot * row.vocab_size
    ids = tl.load(listed + at, mask=at < occurrences.room, other=-1)
    number = tl.load(occurrences.num_ids + row.slot)
    own = load_penalties(row.slot, penalties, flags)
    is_restricted = load_restricted(row, masks, flags)
    repeats = (own.repetition != 1.0).to(tl.int32)
    number = tl.where((repeats > 0) | (own.frequency != 0.0) | (own.presence != 0.0), number, 0)
    is_more = True
    while is_more:  # the first turn asks for logits and counts before it is known whether there are any ids
        there = (at < number) & (ids >= 0) & (ids < row.vocab_size)
        counts = tl.load(row_counts + ids, mask=there, other=0)
        value = load_logits(row, ids, there)
        forbidden = is_forbidden(
            ids, there, counts, row, is_restricted, history, drafts, masks, words, flags, config
        )
        times = (counts >> OUTPUT_SHIFT) + count_drafts(ids, at, row, drafts)[0]
        there &= ((counts & HAS_BIAS) == 0) & (forbidden == 0) & (repeats + times > 0)
        store_logits(row, ids, penalised(value, counts, times, own), there)
        start += division.of_ids * IDS
        at = start + tl.arange(0, IDS)
        ids = tl.load(listed + at, mask=at < number, other=-1)
        is_more = start < number


@triton.jit
def _edit_biased(
    row, occurrences, penalties, bias, history, drafts, masks, words, flags, config: tl.constexpr
):
    """Apply bias and penalties to the ids that have a bias."""
    own = load_penalties(row.slot, penalties, flags)
    is_restricted = load_restricted(row, masks, flags)
    number = tl.load(bias.count + row.slot)
    place = row.slot * bias.room
    for start in range(0, number, config.IDS):
        at = start + tl.arange(0, config.IDS)
        ids = tl.load(bias.ids + place + at, mask=at < number, other=-1)
        added = tl.load(bias.added + place + at, mask=at < number, other=0.0)
        there = (ids >= 0) & (ids < row.vocab_size)
        counts = tl.load(occurrences.counts + row.slot * row.vocab_size + ids, mask=there, other=0)
        value = load_logits(row, ids, there)
        forbidden = is_forbidden(
            ids, there, counts, row, is_restricted, history, drafts, masks, words, flags, config
        )
        times = (counts >> OUTPUT_SHIFT) + count_drafts(ids, at, row, drafts)[0]
        store_logits(row, ids, penalised(value + added, counts, times, own), there & (forbidden == 0))


@triton.jit
def _edit_drafted(row, occurrences, penalties, history, drafts, masks, words, flags, config: tl.constexpr):
    """Apply the penalties to the drafts before a row that occur nowhere else and have no bias, each once."""
    own = load_penalties(row.slot, penalties, flags)
    is_restricted = load_restricted(row, masks, flags)
    for start in range(0, row.step, config.IDS):
        at = start + tl.arange(0, config.IDS)
        is_one = (at < row.step) & (row.draft + at < drafts.count)
        ids = load_draft_ids(row, drafts, at, is_one)
        there = ids >= 0
        counts = tl.load(occurrences.counts + row.slot * row.vocab_size + ids, mask=there, other=0)
        value = load_logits(row, ids, there)
        forbidden = is_forbidden(
            ids, there, counts, row, is_restricted, history, drafts, masks, words, flags, config
        )
        times, before = count_drafts(ids, at, row, drafts)
        there &= (before == 0) & ((counts & (HAS_BIAS | IN_PROMPT)) == 0) & ((counts >> OUTPUT_SHIFT) == 0)
        store_logits(row, ids, penalised(value, counts, times, own), there & (forbidden == 0))


@triton.jit
def _forbid_listed(row, history, drafts, stops, words, flags, config: tl.constexpr):
    """Write -inf to the last ids of bad words that would be completed, and to stop ids that come too early."""
    if row.is_early:
        number = tl.load(stops.count + row.slot)
        for start in range(0, number, config.IDS):
            at = start + tl.arange(0, config.IDS)
            ids = tl.load(stops.ids + row.slot * stops.room + at, mask=at < number, other=-1)
            tl.store(row.base + ids, -float("inf"), mask=(ids >= 0) & (ids < row.vocab_size))
    if flags & BAD_WORDS != 0:
        for first in range(0, tl.load(words.count + row.slot), config.IDS):
            ids, is_banned = banned_ids(first, row, history, drafts, words, config.IDS)
            there = is_banned & (ids >= 0) & (ids < row.vocab_size)
            tl.store(row.base + ids, -float("inf"), mask=there)


@triton.jit
def _forbid_ids(base, words, size, all_of_them, TILE: tl.constexpr, VECTOR: tl.constexpr):
    """Write -inf to the forbidden ids of a tile, one by one.

    :param size: ids in the tile.
    :param all_of_them: whether also to those of vectors that are forbidden as a whole.

    A lane has the same bit of every word, and all its addresses differ by constants: a few instructions for 32 ids.
    """
    at = tl.arange(0, TILE)
    bit = 1 << (at & 31)
    vector = ((1 << VECTOR) - 1) << (at & (32 - VECTOR))
    bits = tl.load(words + (at >> 5), mask=at < size, other=-1)
    there = ((bits & bit) == 0) & (((bits & vector) != 0) | all_of_them)
    tl.store(base + at, -float("inf"), mask=there)


@triton.jit
def _forbid_unset(part, parts, base, words, vocab_size, config: tl.constexpr):
    """Write -inf to the ids whose bit is not set and nothing to the others: tiles by turns with other programs.

    A vector of 16 bytes that is forbidden as a whole is one store. Memory writes whole sectors, so the others are
    fetched into the cache before single ids are written there; what they hold is not written back, since another
    program may be editing it. The words of the next tile are on their way while one is written.
    """
    TILE: tl.constexpr = config.TILE
    VECTOR: tl.constexpr = 128 // base.dtype.element_ty.primitive_bitwidth
    ONES: tl.constexpr = (1 << VECTOR) - 1
    is_aligned = (base.to(tl.int64) & 15) == 0
    vectors = tl.arange(0, TILE // VECTOR)
    place = vectors * VECTOR >> 5
    shift = vectors * VECTOR & 31
    elements = vectors[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    full = vocab_size // TILE
    step: tl.constexpr = TILE // 32
    bits = tl.load(words + part * step + place, mask=part < full, other=-1)
    for tile in range(part, full, parts):
        later = tile + parts
        next_bits = tl.load(words + later * step + place, mask=later < full, other=-1)
        start = base + tile * TILE
        allowed = (bits >> shift) & ONES
        is_whole = (allowed == 0) & is_aligned
        whole = tl.broadcast_to(is_whole[:, None], [TILE // VECTOR, VECTOR])
        tl.store(tl.multiple_of(start + elements, (16, 16)), -float("inf"), mask=whole)
        is_mixed = ((allowed != ONES) & (is_whole == 0)).to(tl.int32)
        if config.IS_NVIDIA:
            _fetch(start + vectors * VECTOR, is_mixed)
        if tl.max(is_mixed, 0) > 0:
            _forbid_ids(start, words + tile * step, TILE, is_aligned == 0, TILE, VECTOR)
        bits = next_bits
    if part == full % parts:
        _forbid_ids(base + full * TILE, words + full * step, vocab_size - full * TILE, True, TILE, VECTOR)


@triton.jit
def _fetch(addresses, wanted):
    """Have the sectors at some addresses brought into the L2, without waiting for them."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
        "=r,l,r",
        [addresses, wanted],
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
    config: tl.constexpr,
):
    """One program does a part of what is done to a row. Grid (rows * parts), the parts of a row side by side.

    What most calls read stands in front, side by side.

    :param flags: bits of :mod:`.row_edits`: what rows may ask for.
    :param division: :class:`~.argument_groups.Division`; all others but the logits are of that module, too.
    :param logits: :class:`~.shared.argument_groups.Logits`, to be edited; V is that of the slots.
    :param config: :class:`~.shared.configs.ProcessConfig`.
    """
    programs = division.of_ids + division.of_lists + division.of_masks
    row = tl.program_id(0) // programs
    part = tl.program_id(0) % programs
    others = division.of_ids + division.of_lists
    if part >= others:
        tile = part - others
        if flags & BITMASK != 0:
            number = row.to(tl.int64)
            given = masks.bitmask + number * masks.bitmask_stride
            base = logits.base + number * logits.row_stride
            _forbid_unset(tile, division.of_masks, base, given, logits.vocab_size, config)
        if flags & ALLOWED != 0:
            own = load_row(row, logits, rows, drafts, history, stops, flags, config)
            if load_restricted(own, masks, flags):
                allowed = masks.allowed + own.slot * ((logits.vocab_size + 31) >> 5)
                _forbid_unset(tile, division.of_masks, own.base, allowed, logits.vocab_size, config)
    else:
        own = load_row(row, logits, rows, drafts, history, stops, flags, config)
        if own.has_request:
            if part < division.of_ids:
                _edit_ids(
                    part, own, occurrences, penalties, history, drafts, masks, words, division, flags, config
                )
            elif config.LISTED:
                if flags & (BAD_WORDS | MIN_TOKENS) != 0:
                    _forbid_listed(own, history, drafts, stops, words, flags, config)
                if flags & BIAS != 0:
                    _edit_biased(
                        own, occurrences, penalties, bias, history, drafts, masks, words, flags, config
                    )
                if drafts.ids is not None:
                    if flags & PENALTIES != 0:
                        _edit_drafted(
                            own, occurrences, penalties, history, drafts, masks, words, flags, config
                        )
