"""Launch E: bitmasks, allowed ids, bad words, early stops, biases and penalties, in place, by programs without order.

A row has programs that take the ids that occur in its request, one that takes its lists and drafts, and one for each
tile of ids where there are masks. Which are there, the host knows; a program without anything to do ends at once. Of
the logits nothing is read or written but what is edited: see :mod:`.row_edits`. Masks are read once, and -inf is
written where they say so.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logits_processing.row_edits import (
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
    listed = occurrences.ids + row.slot * history.max_tokens
    row_counts = occurrences.counts + row.slot * row.vocab_size
    ids = tl.load(listed + at, mask=at < history.max_tokens, other=-1)
    number = tl.load(occurrences.num_ids + row.slot)
    own = load_penalties(row.slot, penalties, flags)
    is_restricted = load_restricted(row, masks, flags)
    repeats = (own.repetition != 1.0).to(tl.int32)
    number = tl.where((repeats > 0) | (own.frequency != 0.0) | (own.presence != 0.0), number, 0)
    while start < number:
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
        ids = tl.load(drafts.ids + row.draft + at, mask=is_one, other=-1).to(tl.int32)
        there = (ids >= 0) & (ids < row.vocab_size)
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
def _forbid_unset(part, parts, base, words, vocab_size, TILE: tl.constexpr):
    """Write -inf to the ids whose bit is not set and nothing to the others: tiles by turns with other programs.

    A lane has the same bit of every word, and all its addresses differ by constants: a few instructions for 32 ids. The
    words of the next tile are on their way while -inf is written to one.
    """
    at = tl.arange(0, TILE)
    bit = 1 << (at & 31)
    full = vocab_size // TILE
    step: tl.constexpr = TILE // 32
    bits = tl.load(words + part * step + (at >> 5), mask=part < full, other=-1)
    for tile in range(part, full, parts):
        later = tile + parts
        next_bits = tl.load(words + later * step + (at >> 5), mask=later < full, other=-1)
        tl.store(base + tile * TILE + at, -float("inf"), mask=(bits & bit) == 0)
        bits = next_bits
    if part == full % parts:
        there = full * TILE + at < vocab_size
        bits = tl.load(words + full * step + (at >> 5), mask=there, other=-1)
        tl.store(base + full * TILE + at, -float("inf"), mask=there & ((bits & bit) == 0))


@triton.jit(
    do_not_specialize=[
        "rows",
        "drafts",
        "logits",
        "history",
        "bias",
        "masks",
        "stops",
        "words",
        "division",
        "flags",
    ],
    do_not_specialize_on_alignment=[  # ids stand anywhere, and neighbours of a tile are written one by one
        "logits",
        "rows",
        "drafts",
        "history",
        "occurrences",
        "penalties",
        "bias",
        "masks",
        "stops",
        "words",
    ],
)
def process_logits(
    logits,
    rows,
    drafts,
    history,
    occurrences,
    penalties,
    bias,
    masks,
    stops,
    words,
    division,
    flags,
    config: tl.constexpr,
):
    """One program does a part of what is done to a row. Grid (rows, parts).

    :param logits: :class:`~.shared.argument_groups.Logits`, to be edited; V is that of the slots.
    :param rows: :class:`~.argument_groups.SlotRows`; the next eight are of that module, too.
    :param division: :class:`~.argument_groups.Division`.
    :param flags: bits of :mod:`.row_edits`: what rows may ask for.
    :param config: :class:`~.shared.configs.ProcessConfig`.
    """
    part = tl.program_id(1)
    row = tl.program_id(0)
    others = division.of_ids + division.of_lists
    if part >= others:
        if flags & BITMASK != 0:
            number = row.to(tl.int64)
            given = masks.bitmask + number * masks.bitmask_stride
            base = logits.base + number * logits.row_stride
            _forbid_unset(
                part - others, tl.num_programs(1) - others, base, given, logits.vocab_size, config.TILE
            )
    own = load_row(row, logits, rows, drafts, history, stops, flags, config)
    if part >= others:
        if load_restricted(own, masks, flags):
            allowed = masks.allowed + own.slot * ((logits.vocab_size + 31) >> 5)
            _forbid_unset(
                part - others, tl.num_programs(1) - others, own.base, allowed, logits.vocab_size, config.TILE
            )
    elif own.has_request:
        if part < division.of_ids:
            _edit_ids(
                part, own, occurrences, penalties, history, drafts, masks, words, division, flags, config
            )
        else:
            if flags & (BAD_WORDS | MIN_TOKENS) != 0:
                _forbid_listed(own, history, drafts, stops, words, flags, config)
            if flags & BIAS != 0:
                _edit_biased(own, occurrences, penalties, bias, history, drafts, masks, words, flags, config)
            if drafts.ids is not None:
                if flags & PENALTIES != 0:
                    _edit_drafted(own, occurrences, penalties, history, drafts, masks, words, flags, config)
