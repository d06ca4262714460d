"""The launches that edit logits in place, and that append the tokens of a step to the histories of requests.

``process_logits``: bitmasks, allowed ids, bad words, early stops, biases and penalties, by programs without order. A
row has three kinds of programs, and the host knows which of them a call needs; one without anything to do ends at
once:

* those that take the ids which occur in its request, 64 at a time: one word of counts and one logit each;
* one that takes its lists: stop ids, bad words, biases, and the drafts before a row of a verification;
* those that take tiles of 1,024 ids of its masks. 16 bytes of logits that are forbidden as a whole are one store, if
  the row is aligned. Masks are read once; they write -inf to what is left out and touch nothing else.

Why no order is needed: each id has one owner, or several that write the same. What is forbidden gets -inf, from
whatever forbids it, and all others leave it alone; else an id with a bias is edited by the program of the lists; else
one that occurs by the programs of those. The flags in ``counts`` and one bit of each mask say which it is. So a mask
may not be applied by reading, choosing and writing whole vectors: that would write back logits that another program
edits, which a test on a GPU sees at once. Nor would it be faster. Memory is written by sectors of 32 bytes, and a
sector of which a part is written has to be read; on NVIDIA the sectors are asked for by a prefetch into the L2, for
which nobody waits, before single ids are written there. Without it masks by coins took 59 us in place of 45, and with
reading, choosing and writing vectors 46.

The bits are native's: each step is rounded to float32, the kernel is compiled with ``enable_fp_fusion=False`` and
divides by ``div_rn``. What requests ask for are bits of one argument, and nothing about tables, strides or alignment
is known when it is compiled. There are two kernels for each dtype of the logits and of ``row_index``: a short one for
penalties and masks, and one for whatever requests may ask for, which there is for each dtype of drafts, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl

from tokendraw.plugin import EditFacts, RequestTables
from tokendraw_triton_gumbel.compilation import ANY_INT, ANY_STRIDE, BOOL, FLOAT32, INT32, INT64, Pointer
from tokendraw_triton_gumbel.kernels.rows import Logits
from tokendraw_triton_gumbel.launch import Launch, group
from tokendraw_triton_gumbel.plan import Grid

_GROUPS = ["rows", "logits", "slots", "bitmask", "drafts"]
UNSPECIALIZED: Final = {
    "do_not_specialize": ["flags", "division", *_GROUPS],
    "do_not_specialize_on_alignment": _GROUPS,
}
"""Options of ``triton.jit``: one kernel serves each value of an argument, and ids and rows at each address."""


class SlotRows(NamedTuple):
    """The slots of the rows of logits, or of the requests of a verification."""

    row_index: Any
    """[rows or requests] integer. A row whose slot is none of the S has a bitmask at most."""
    num_slots: Any
    """S."""


class Slots(NamedTuple):
    """The tensors of S slots of M tokens, dense, named as in ``RequestTables``; V is the vocabulary."""

    history: Any
    """[S, M] int32: prompt, then output."""
    num_prompt: Any
    """[S] int32, like ``num_tokens``, which counts prompt and output."""
    num_tokens: Any
    distinct: Any
    """[S, M] int32: the ids in prompt and output, each once."""
    num_distinct: Any
    """[S] int32."""
    counts: Any
    """[S, V] int32: 16 times how often an id is in the output, and flags such as ``IN_PROMPT``."""
    repetition: Any
    """[S] float32, like the other two penalties."""
    frequency: Any
    presence: Any
    bias_ids: Any
    """[S, ``max_bias``] int32, each once, and their biases, float32; ``num_bias`` [S] int32."""
    bias: Any
    num_bias: Any
    allowed: Any
    """[S, ceil(V / 32)] int32: bit i % 32 of word i // 32 is set where id i is allowed."""
    is_restricted: Any
    """[S] bool: whether a request has a mask in ``allowed``."""
    stop_ids: Any
    """[S, ``max_stop``] int32: forbidden until the output has ``min_tokens`` [S] tokens; ``num_stop`` [S] int32."""
    num_stop: Any
    min_tokens: Any
    bad_words: Any
    """[S, ``max_words``, ``longest_word``] int32, each at the right end of its row: the last id is forbidden after all
    ids before it. Their lengths [S, ``max_words``] and number [S] int32."""
    bad_lens: Any
    num_bad: Any
    max_tokens: Any
    """M."""
    max_bias: Any
    max_stop: Any
    max_words: Any
    longest_word: Any


class StepDrafts(NamedTuple):
    """The drafts of a verification: each row counts the drafts before it as output. All fields None without drafts."""

    ids: Any = None
    """[``count``] integer, request after request; or [requests, ``width``]."""
    count: Any = None
    """Number of drafts, with padding."""
    width: Any = None
    """0 without padding."""
    cu_num_logits: Any = None
    """[requests + 1] integer: the first row of each request."""
    requests: Any = None


class Bitmask(NamedTuple):
    """Masks of the rows of a call, as ``allowed`` of the slots: [rows, ceil(V / 32)] int32, and the row stride.

    Read if the flags say BITMASK; else another tensor stands in.
    """

    words: Any
    row_stride: Any


class Division(NamedTuple):
    """Division of a row's work among its programs."""

    of_ids: Any
    """Number of programs for the occurring ids, in turns."""
    of_lists: Any
    """Number of programs for lists and drafts: 1 or 0."""
    of_masks: Any
    """Number of programs for tiles of the masks, in turns."""


class ProcessConfig(NamedTuple):
    """Constants of ``process_logits``."""

    IDS: int = 64
    """Ids edited at once, and bad words compared at once with the output."""
    WORDS: int = 8
    """Bad words whose last ids are compared at once with a block of ids."""
    TILE: int = 1024
    """Ids of a mask applied at once."""
    REQUESTS: int = 1024
    """Offsets of requests read at once, to find a row's request."""
    HAS_LISTS: bool = True
    """Whether the call may have more than masks and penalties: other edits, or drafts."""
    IS_NVIDIA: bool = False
    """Whether PTX may be used."""


class StepTokens(NamedTuple):
    """The tokens of a step."""

    ids: Any
    """[rows, ``width``] int64."""
    width: Any


class GrowingHistory(NamedTuple):
    """The tensors of slots that change with every token, as in :class:`Slots`."""

    history: Any
    num_tokens: Any
    limit: Any
    """[S] int32: the most tokens; 0 without a request."""
    distinct: Any
    num_distinct: Any
    counts: Any
    max_tokens: Any
    """M."""
    vocab_size: Any
    """V."""


# Loads the request of a row of logits, and the drafts before the row.

IN_PROMPT = tl.constexpr(1)
HAS_BIAS = tl.constexpr(2)
IS_STOP = tl.constexpr(4)
ENDS_BAD_WORD = tl.constexpr(8)
OUTPUT_SHIFT = tl.constexpr(4)
"""The flags of a count, and where the times begin that the id is in the output."""

PENALTIES = tl.constexpr(1)
BIAS = tl.constexpr(2)
ALLOWED = tl.constexpr(4)
BAD_WORDS = tl.constexpr(8)
MIN_TOKENS = tl.constexpr(16)
BITMASK = tl.constexpr(32)
"""Kinds of edits in a call."""


class EditedRow(NamedTuple):
    """A row of logits and its request."""

    base: Any
    """The first logit."""
    vocab_size: Any
    row: Any
    """int64, like ``slot``."""
    slot: Any
    step: Any
    """Number of drafts before the row: the first ones of its request."""
    draft: Any
    """Index of the request's first draft."""
    has_request: Any
    """Whether the row has a request. If not, ``slot`` is 0 and its parameters are not used."""
    num_tokens: Any
    """Tokens in prompt and output, without drafts."""
    num_output: Any
    """Tokens in the output, with drafts."""
    is_early: Any
    """Whether stop ids are held back."""


@triton.jit
def _request_of(row, drafts, AT_ONCE: tl.constexpr):
    """Return (request of a row of a verification, number of drafts before the row, index of the request's first draft).

    The request equals the number of requests if the row belongs to none.
    """
    ends_before = tl.zeros([AT_ONCE], tl.int32)
    for start in range(0, drafts.requests, AT_ONCE):
        index = start + tl.arange(0, AT_ONCE)
        end = tl.load(drafts.cu_num_logits + 1 + index, mask=index < drafts.requests, other=row + 1)
        ends_before += (end <= row).to(tl.int32)
    request = tl.sum(ends_before, 0)
    first_row = tl.load(drafts.cu_num_logits + request).to(tl.int32)
    return request, row - first_row, tl.where(drafts.width > 0, request * drafts.width, first_row - request)


@triton.jit
def load_row(row, logits, rows, drafts, slots, flags, config: tl.constexpr):
    """Return the :class:`EditedRow` of a row."""
    entry = row
    step = row * 0
    draft = row * 0
    has_request = row >= 0
    if drafts.ids is not None:
        entry, step, draft = _request_of(row, drafts, config.REQUESTS)
        has_request = entry < drafts.requests
    slot = tl.load(rows.row_index + entry, mask=has_request, other=-1).to(tl.int64)
    has_request &= (slot >= 0) & (slot < rows.num_slots)
    slot = tl.where(has_request, slot, 0)
    # A branch waits for its number, so only numbers for the call's edits are loaded.
    has_length = (flags & (BAD_WORDS | MIN_TOKENS)) != 0
    num_prompt = tl.load(slots.num_prompt + slot, mask=has_length, other=0)
    num_tokens = tl.load(slots.num_tokens + slot, mask=has_length, other=0)
    min_tokens = tl.load(slots.min_tokens + slot, mask=(flags & MIN_TOKENS) != 0, other=0)
    num_output = num_tokens - num_prompt + step
    row = row.to(tl.int64)
    base = logits.base + row * logits.row_stride
    is_early = num_output < min_tokens
    return EditedRow(
        base, logits.vocab_size, row, slot, step, draft, has_request, num_tokens, num_output, is_early
    )


@triton.jit
def load_draft_ids(row, drafts, number, mask):
    """Load drafts of a row's request by their numbers: -1 for placeholders, which may be any int64."""
    ids = tl.load(drafts.ids + row.draft + number, mask=mask, other=-1)
    return tl.where((ids >= 0) & (ids < row.vocab_size), ids, -1).to(tl.int32)


@triton.jit
def draft_id(row, drafts, number):
    """Return draft ``number`` of a row's request: -1 without such a draft."""
    mask = (number >= 0) & (number < row.step) & (row.draft + number < drafts.count)
    return load_draft_ids(row, drafts, number, mask)


@triton.jit
def count_drafts(ids, limit, row, drafts):
    """Return how often each id of a block [n] is among the first ``limit`` drafts before a row."""
    times = tl.zeros_like(ids)
    if drafts.ids is not None:
        for number in range(row.step):
            times += ((ids == draft_id(row, drafts, number)) & (number < limit)).to(tl.int32)
    return times


# Reads and writes single logits of a row as float32.


@triton.jit
def load_logits(row, ids, mask):
    """Load logits as float32: bfloat16 by its bits, since Triton's interpreter converts subnormal numbers wrongly."""
    if row.base.dtype.element_ty == tl.bfloat16:
        words = row.base.to(tl.pointer_type(tl.int16), bitcast=True)
        bits = tl.load(words + ids, mask=mask, other=0).to(tl.int32) << 16
        value = bits.to(tl.float32, bitcast=True)
    else:
        value = tl.load(row.base + ids, mask=mask, other=0).to(tl.float32)
    return value


@triton.jit
def store_logits(row, ids, value, mask):
    """Round float32 to the dtype of the logits, ties to even, and store it; NaN is not stored.

    bfloat16 is rounded by its bits: Triton's interpreter truncates.
    """
    mask &= value == value
    if row.base.dtype.element_ty == tl.bfloat16:
        bits = value.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        tl.store(row.base.to(tl.pointer_type(tl.int16), bitcast=True) + ids, bits.to(tl.int16), mask=mask)
    else:
        tl.store(row.base + ids, value.to(row.base.dtype.element_ty), mask=mask)


# Penalties of a row, and the ids that masks, stop ids or bad words forbid.


class RowPenalties(NamedTuple):
    """The penalties of a row, float32."""

    repetition: Any
    frequency: Any
    presence: Any


@triton.jit
def load_penalties(slot, slots, flags):
    """Return the :class:`RowPenalties` of a request."""
    is_any = (flags & PENALTIES) != 0
    return RowPenalties(
        tl.load(slots.repetition + slot, mask=is_any, other=1.0),
        tl.load(slots.frequency + slot, mask=is_any, other=0.0),
        tl.load(slots.presence + slot, mask=is_any, other=0.0),
    )


@triton.jit
def apply_penalties(value, times, occurs, penalties):
    """Return logits with their penalties, each step rounded to float32: it is compiled without fused products."""
    divided = tl.div_rn(value, tl.zeros_like(value) + penalties.repetition)
    repeated = tl.where(value > 0, divided, value * penalties.repetition)
    value = tl.where(occurs, repeated, value)
    frequent = value - penalties.frequency * times.to(tl.float32)
    return tl.where(times > 0, frequent - penalties.presence, value)


@triton.jit
def load_restricted(row, slots, flags):
    """Load whether the request of a row has an allow-list."""
    has_masks = row.has_request & ((flags & ALLOWED) != 0)
    return tl.load(slots.is_restricted + row.slot, mask=has_masks, other=0).to(tl.int32) != 0


@triton.jit
def _allowed_bits(ids, mask, row, slots, bitmask, is_restricted, flags):
    """Return words whose lowest bit says whether each id of a block is allowed."""
    offset = ids >> 5
    words = ((row.vocab_size + 31) >> 5).to(tl.int64)
    own_mask = bitmask.words + row.row * bitmask.row_stride + offset
    own_words = tl.load(own_mask, mask=mask & ((flags & BITMASK) != 0), other=-1)
    allowed_words = tl.load(slots.allowed + row.slot * words + offset, mask=mask & is_restricted, other=-1)
    return (own_words & allowed_words) >> (ids & 31)


@triton.jit
def banned_ids(first, row, slots, drafts, WORDS: tl.constexpr):
    """Return (the last ids of some bad words, whether the output ends with the preceding ids): [WORDS] each."""
    word = first + tl.arange(0, WORDS)
    mask = word < tl.load(slots.num_bad + row.slot)
    offset = row.slot * slots.max_words + word
    length = tl.load(slots.bad_lens + offset, mask=mask, other=0)
    end = slots.bad_words + (offset + 1) * slots.longest_word - 1
    is_banned = mask & (length > 0) & (length <= row.num_output + 1)
    history = slots.history + row.slot * slots.max_tokens
    for back in range(1, tl.max(length, 0)):
        place = row.num_tokens + row.step - back  # of the token ``back`` steps before the next one
        in_history = (place >= 0) & (place < row.num_tokens)
        token = tl.load(history + place, mask=in_history, other=-1)
        if drafts.ids is not None:
            token = tl.where(in_history, token, draft_id(row, drafts, place - row.num_tokens))
        expected = tl.load(end - back, mask=mask & (back < length), other=-1)
        is_banned &= (back >= length) | (expected == token)
    return tl.load(end, mask=mask, other=-1), is_banned


@triton.jit
def is_forbidden(ids, mask, counts, row, is_restricted, slots, bitmask, drafts, flags, config):
    """Return whether masks, stop ids or bad words forbid each id of a block [n]."""
    forbidden = tl.zeros_like(mask)
    if flags & (ALLOWED | BITMASK) != 0:
        forbidden = (_allowed_bits(ids, mask, row, slots, bitmask, is_restricted, flags) & 1) == 0
    if config.HAS_LISTS:
        forbidden |= ((counts & IS_STOP) != 0) & row.is_early
        if flags & BAD_WORDS != 0:
            if tl.max(counts & ENDS_BAD_WORD, 0) > 0:
                for first in range(0, tl.load(slots.num_bad + row.slot), config.WORDS):
                    last, is_banned = banned_ids(first, row, slots, drafts, config.WORDS)
                    meets = (ids[:, None] == last[None, :]) & is_banned[None, :]
                    forbidden |= tl.max(meets.to(tl.int32), 1) > 0
    return forbidden


@triton.jit
def forbid_listed(row, slots, drafts, flags, config: tl.constexpr):
    """Write -inf to the last ids of bad words that a token would complete, and to stop ids before ``min_tokens``."""
    if row.is_early:
        count = tl.load(slots.num_stop + row.slot)
        for start in range(0, count, config.IDS):
            index = start + tl.arange(0, config.IDS)
            ids = tl.load(slots.stop_ids + row.slot * slots.max_stop + index, mask=index < count, other=-1)
            tl.store(row.base + ids, -float("inf"), mask=(ids >= 0) & (ids < row.vocab_size))
    if flags & BAD_WORDS != 0:
        for first in range(0, tl.load(slots.num_bad + row.slot), config.IDS):
            ids, is_banned = banned_ids(first, row, slots, drafts, config.IDS)
            mask = is_banned & (ids >= 0) & (ids < row.vocab_size)
            tl.store(row.base + ids, -float("inf"), mask=mask)


# Edits of the ids that occur in a request, of its bias list, and of the drafts before a row.


@triton.jit
def edit_ids(part, row, slots, bitmask, drafts, division, flags, config: tl.constexpr):
    """Apply penalties to the ids in prompt and output of a row's request, in turns with its other programs."""
    IDS: tl.constexpr = config.IDS
    start = part * IDS
    index = start + tl.arange(0, IDS)
    id_list = slots.distinct + row.slot * slots.max_tokens
    row_counts = slots.counts + row.slot * row.vocab_size
    ids = tl.load(id_list + index, mask=index < slots.max_tokens, other=-1)
    count = tl.load(slots.num_distinct + row.slot)
    penalties = load_penalties(row.slot, slots, flags)
    is_restricted = load_restricted(row, slots, flags)
    repeats = (penalties.repetition != 1.0).to(tl.int32)
    count = tl.where((repeats > 0) | (penalties.frequency != 0.0) | (penalties.presence != 0.0), count, 0)
    is_more = True
    while is_more:  # the first turn loads logits and counts before the number of ids is known
        mask = (index < count) & (ids >= 0) & (ids < row.vocab_size)
        counts = tl.load(row_counts + ids, mask=mask, other=0)
        value = load_logits(row, ids, mask)
        forbidden = is_forbidden(ids, mask, counts, row, is_restricted, slots, bitmask, drafts, flags, config)
        times = (counts >> OUTPUT_SHIFT) + count_drafts(ids, row.step, row, drafts)
        occurs = (times > 0) | ((counts & IN_PROMPT) != 0)
        mask &= ((counts & HAS_BIAS) == 0) & (forbidden == 0) & (repeats + times > 0)
        store_logits(row, ids, apply_penalties(value, times, occurs, penalties), mask)
        start += division.of_ids * IDS
        index = start + tl.arange(0, IDS)
        ids = tl.load(id_list + index, mask=index < count, other=-1)
        is_more = start < count


@triton.jit
def edit_biased(row, slots, bitmask, drafts, flags, config: tl.constexpr):
    """Apply bias and penalties to the ids of a request's bias list."""
    penalties = load_penalties(row.slot, slots, flags)
    is_restricted = load_restricted(row, slots, flags)
    count = tl.load(slots.num_bias + row.slot)
    offset = row.slot * slots.max_bias
    for start in range(0, count, config.IDS):
        index = start + tl.arange(0, config.IDS)
        ids = tl.load(slots.bias_ids + offset + index, mask=index < count, other=-1)
        added = tl.load(slots.bias + offset + index, mask=index < count, other=0.0)
        mask = (ids >= 0) & (ids < row.vocab_size)
        counts = tl.load(slots.counts + row.slot * row.vocab_size + ids, mask=mask, other=0)
        value = load_logits(row, ids, mask)
        forbidden = is_forbidden(ids, mask, counts, row, is_restricted, slots, bitmask, drafts, flags, config)
        times = (counts >> OUTPUT_SHIFT) + count_drafts(ids, row.step, row, drafts)
        occurs = (times > 0) | ((counts & IN_PROMPT) != 0)
        value = apply_penalties(value + added, times, occurs, penalties)
        store_logits(row, ids, value, mask & (forbidden == 0))


@triton.jit
def edit_drafted(row, slots, bitmask, drafts, flags, config: tl.constexpr):
    """Apply penalties once to each draft before a row that is neither in the request nor in its bias list."""
    penalties = load_penalties(row.slot, slots, flags)
    is_restricted = load_restricted(row, slots, flags)
    for start in range(0, row.step, config.IDS):
        index = start + tl.arange(0, config.IDS)
        is_draft = (index < row.step) & (row.draft + index < drafts.count)
        ids = load_draft_ids(row, drafts, index, is_draft)
        mask = ids >= 0
        counts = tl.load(slots.counts + row.slot * row.vocab_size + ids, mask=mask, other=0)
        value = load_logits(row, ids, mask)
        forbidden = is_forbidden(ids, mask, counts, row, is_restricted, slots, bitmask, drafts, flags, config)
        times = (counts >> OUTPUT_SHIFT) + count_drafts(ids, row.step, row, drafts)
        occurs = (times > 0) | ((counts & IN_PROMPT) != 0)
        is_new = (count_drafts(ids, index, row, drafts) == 0) & ((counts >> OUTPUT_SHIFT) == 0)
        mask &= is_new & ((counts & (HAS_BIAS | IN_PROMPT)) == 0)
        store_logits(row, ids, apply_penalties(value, times, occurs, penalties), mask & (forbidden == 0))


# Writes -inf to the ids of a row that a mask leaves out, tile by tile.


@triton.jit
def _forbid_ids(base, words, size, all_of_them, TILE: tl.constexpr, VECTOR: tl.constexpr):
    """Write -inf to single forbidden ids of a tile.

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
def forbid_unset(part, parts, base, words, vocab_size, config: tl.constexpr):
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


@triton.jit(**UNSPECIALIZED)
def process_logits(flags, division, rows, logits, slots, bitmask, drafts, config: tl.constexpr):
    """Each program applies a part of a row's edits. Grid (rows * parts), the parts of a row side by side.

    :param flags: bits such as ``PENALTIES``: the kinds of edits in the call.
    :param logits: :class:`~.rows.Logits`, edited in place.
    """
    programs = division.of_ids + division.of_lists + division.of_masks
    row = tl.program_id(0) // programs
    part = tl.program_id(0) % programs
    first_mask_part = division.of_ids + division.of_lists
    if part >= first_mask_part:
        tile = part - first_mask_part
        row_number = row.to(tl.int64)
        base = logits.base + row_number * logits.row_stride
        if flags & BITMASK != 0:
            words = bitmask.words + row_number * bitmask.row_stride
            forbid_unset(tile, division.of_masks, base, words, logits.vocab_size, config)
        if flags & ALLOWED != 0:
            edited_row = load_row(row, logits, rows, drafts, slots, flags, config)
            if load_restricted(edited_row, slots, flags):
                words = slots.allowed + edited_row.slot * ((logits.vocab_size + 31) >> 5)
                forbid_unset(tile, division.of_masks, base, words, logits.vocab_size, config)
    else:
        edited_row = load_row(row, logits, rows, drafts, slots, flags, config)
        if edited_row.has_request:
            if part < division.of_ids:
                edit_ids(part, edited_row, slots, bitmask, drafts, division, flags, config)
            elif config.HAS_LISTS:
                if flags & (BAD_WORDS | MIN_TOKENS) != 0:
                    forbid_listed(edited_row, slots, drafts, flags, config)
                if flags & BIAS != 0:
                    edit_biased(edited_row, slots, bitmask, drafts, flags, config)
                if drafts.ids is not None:
                    if flags & PENALTIES != 0:
                        edit_drafted(edited_row, slots, bitmask, drafts, flags, config)


# Appends the tokens of a step to the histories of requests, and counts their ids.
#
# Lengths and counts are raised by atomics, which return what was there: an id that comes twice in a step is new once,
# and rows that name the same slot share its history. Reads each token once, and of its request some numbers; writes
# the token, its count and, where it is new, its id.

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


# The host side: flags and groups of arguments, variants, and the division of a row's work among programs.

CONFIG = ProcessConfig()
_FLAG_OF_FACT = {
    "any_penalty": PENALTIES.value,
    "any_bias": BIAS.value,
    "any_allowed": ALLOWED.value,
    "any_bad_words": BAD_WORDS.value,
    "any_min_tokens": MIN_TOKENS.value,
}
_LISTS: int = BIAS.value | BAD_WORDS.value | MIN_TOKENS.value
TABLES = tuple(field.name for field in fields(RequestTables))
"""The tensors of slots."""
_WARPS = 2
_PROGRAMS = 16
"""Upper limit of programs a multiprocessor that the ids which occur are divided among."""
_MASK_PROGRAMS = 64
"""Upper limit of programs a multiprocessor that masks are divided among."""


def edit_flags(facts: EditFacts, *, has_bitmask: bool) -> int:
    """Return the possible edits of a call as bits such as ``PENALTIES``."""
    flags: int = sum(flag for name, flag in _FLAG_OF_FACT.items() if getattr(facts, name))
    return flags | BITMASK.value if has_bitmask else flags


def slot_groups(arguments: Sequence[Any], tables: RequestTables) -> tuple[Slots, GrowingHistory]:
    named = dict(zip(TABLES, arguments, strict=True))
    max_tokens, words = tables.history.shape[1], tables.bad_words.shape
    widths = max_tokens, tables.bias_ids.shape[1], tables.stop_ids.shape[1], words[1], words[2]
    slots = [named[name] for name in Slots._fields[:-5]] + [*widths]
    growing = [named[name] for name in GrowingHistory._fields[:-2]] + [max_tokens, tables.counts.shape[1]]
    return group(Slots, slots), group(GrowingHistory, growing)


_REALS, _BOOLS = ("repetition", "frequency", "presence", "bias"), ("is_restricted",)
_SLOTS = Slots(
    *[FLOAT32 if name in _REALS else BOOL if name in _BOOLS else INT32 for name in Slots._fields[:-5]],
    *[ANY_INT] * 5,
)


class ProcessVariant(NamedTuple):
    """The dtypes in the compilation of ``process_logits``."""

    logits: torch.dtype
    row_index: torch.dtype
    drafts: tuple[torch.dtype, torch.dtype] | None = None
    """Dtypes of the ids of drafts and of the offsets of their requests, where there are any."""
    has_lists: bool = True
    """Whether there may be drafts, or edits from lists; if not, the kernel is a short one."""

    @classmethod
    def of(cls, logits: torch.dtype, row_index: torch.dtype, drafts: Any, flags: int) -> ProcessVariant:
        """Derive the variant of a call; ``drafts`` are None or their ids and offsets."""
        dtypes = None if drafts is None else (drafts[0].dtype, drafts[1].dtype)
        return cls(logits, row_index, dtypes, drafts is not None or flags & _LISTS != 0)

    def placeholders(self) -> tuple[Any, ...]:
        drafts = StepDrafts()
        if self.drafts is not None:
            ids, offsets = (Pointer(dtype, aligned=False) for dtype in self.drafts)
            drafts = StepDrafts(ids, ANY_INT, ANY_INT, offsets, ANY_INT)
        return (
            ANY_INT,
            Division(ANY_INT, ANY_INT, ANY_INT),
            SlotRows(Pointer(self.row_index, aligned=False), ANY_INT),
            Logits(Pointer(self.logits, aligned=False), ANY_STRIDE, ANY_INT),
            _SLOTS,
            Bitmask(INT32, ANY_STRIDE),
            drafts,
        )


class ProcessLaunches:
    """The launches over logits on a device."""

    def __init__(self, family: str, processors: int) -> None:
        """Set the limits of programs."""
        self._is_nvidia = family == "cuda"
        self._max_programs, self._max_mask_programs = _PROGRAMS * processors, _MASK_PROGRAMS * processors
        self._launches: dict[ProcessVariant, Launch] = {}
        self._append_launches: dict[torch.dtype, Launch] = {}

    def append(self, row_index: torch.dtype) -> Launch:
        """Return the launch that appends tokens, compiled for the current device and a dtype of ``row_index``."""
        launch = self._append_launches.get(row_index)
        if launch is None:
            rows = SlotRows(Pointer(row_index, aligned=False), ANY_INT)
            slots = group(GrowingHistory, [INT32] * 6 + [ANY_INT] * 2)
            placeholders = rows, StepTokens(INT64, ANY_INT), slots
            launch = Launch.compiled(append_tokens, {}, {"num_warps": 1}, placeholders)
            self._append_launches[row_index] = launch
        return launch

    def of(self, variant: ProcessVariant) -> Launch:
        """Return the launch of a variant, compiled for the current device; its tokens can then be appended too."""
        launch = self._launches.get(variant)
        if launch is None:
            self.append(variant.row_index)
            config = CONFIG._replace(HAS_LISTS=variant.has_lists, IS_NVIDIA=self._is_nvidia)
            options = {"num_warps": _WARPS, "enable_fp_fusion": False}
            launch = Launch.compiled(process_logits, {"config": config}, options, variant.placeholders())
            self._launches[variant] = launch
        return launch

    def divide(
        self, rows: int, vocab_size: int, max_tokens: int, flags: int, *, has_drafts: bool
    ) -> tuple[Grid, Division]:
        """Return the grid of a call, and the division of a row's work among programs."""
        id_programs = list_programs = mask_programs = 0
        if flags & PENALTIES.value:
            id_programs = max(1, min(-(-max_tokens // CONFIG.IDS), self._max_programs // rows))
            list_programs = int(has_drafts)
        if flags & _LISTS:
            list_programs = 1
        if flags & (ALLOWED.value | BITMASK.value):
            mask_programs = max(1, min(-(-vocab_size // CONFIG.TILE), self._max_mask_programs // rows))
        division = Division(id_programs, list_programs, mask_programs)
        return (rows * sum(division), 1, 1), division
