"""The launches that edit logits, keep the tables of ids that edits need, and append tokens."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import triton
import triton.language as tl

# Groups of arguments of the launches that edit logits and append tokens, like :mod:`.arguments`.
#
# S is the number of request slots, M the tokens of one, V the vocabulary. Tensors of slots are dense.

_GROUPS = [
    *(
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
    ),
    *("tables", "ends", "thinking", "forced_ids"),
]
UNSPECIALIZED: Final = {
    "do_not_specialize": ["flags", "division", "parts", *_GROUPS],
    "do_not_specialize_on_alignment": _GROUPS,
}
"""Options of ``triton.jit``: one kernel serves each value of an argument, and ids and rows at each address."""


class SlotRows(NamedTuple):
    """The slots of the rows of logits, or of the requests of a verification."""

    row_index: Any
    """[rows or requests] integer. A row whose slot is none of the S has a bitmask at most."""
    num_slots: Any
    """S."""
    forced_ids: Any
    """[rows] int32: the id that a spent thinking budget forces, or -1; read if the flags say THINKING. None in other
    launches than ``process_logits``."""


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


class History(NamedTuple):
    """The tokens of each request."""

    tokens: Any
    """[S, M] int32: prompt, then output."""
    num_prompt: Any
    """[S] int32."""
    num_tokens: Any
    """[S] int32."""
    max_tokens: Any
    """M."""


class Occurrences(NamedTuple):
    """The ids in the prompt and output of each request."""

    ids: Any
    """[S, ``room``] int32: each once."""
    num_ids: Any
    """[S] int32."""
    counts: Any
    """[S, V] int32: 16 times how often an id is in the output, and flags such as ``IN_PROMPT``."""
    room: Any


class Penalties(NamedTuple):
    """The penalties of each request, [S] float32."""

    repetition: Any
    frequency: Any
    presence: Any
    last_n: Any
    """[S] int32: number of tokens that the penalties count, the last ones; -1: all."""


class Dry(NamedTuple):
    """The settings of DRY of each request, [S] but for the breakers."""

    multiplier: Any
    """float32; 0: off."""
    base: Any
    """float32."""
    allowed_length: Any
    """int32: length of the shortest match with a cost."""
    max_match: Any
    """int32: length that longer matches count as."""
    last_n: Any
    """int32: tokens that are searched."""
    breakers: Any
    """[S, ``room``] int32."""
    num_breakers: Any
    room: Any


class IdTables(NamedTuple):
    """A hash table of each row, if the flags say LAST_N or DRY: see :func:`load_table`."""

    keys: Any
    """[rows, ``room``] int64: id + 1, then 32 bits: 1 + the longest match of DRY, or 0. An empty entry is 0."""
    counts: Any
    """[rows, ``room``] int32: as in :class:`Occurrences`, in the window of penalties; read if the flags say LAST_N."""
    sizes: Any
    """[rows] int32: entries of the table in use; 0 for a row without a window and DRY."""
    room: Any


class HistoryEnds(NamedTuple):
    """The end of each row's tokens, with which DRY compares earlier tokens. Undefined where the flags say no DRY."""

    lengths: Any
    """[rows] int32: the length of the longest match that counts."""
    overlaps: Any
    """[rows, OVERLAPS] int32: number k says how many of the last tokens, read backwards, equal
    those k places before them. Undefined from the length on."""


class Thinking(NamedTuple):
    """The thinking budget of each request."""

    budget: Any
    """[S] int32; -1: off."""
    start: Any
    """[S, ``room``] int32."""
    num_start: Any
    """[S] int32."""
    end: Any
    """[S, ``room``] int32."""
    num_end: Any
    """[S] int32."""
    room: Any


class Bias(NamedTuple):
    """The biases of each request."""

    ids: Any
    """[S, ``room``] int32: each once."""
    added: Any
    """[S, ``room``] float32."""
    count: Any
    """[S] int32."""
    room: Any


class AllowedIds(NamedTuple):
    """Masks of ids: bit i % 32 of word i // 32 is set where id i is allowed."""

    bitmask: Any
    """[rows, ceil(V / 32)] int32, of the rows of this call; read if the flags say BITMASK."""
    bitmask_stride: Any
    allowed: Any
    """[S, ceil(V / 32)] int32, of requests."""
    is_restricted: Any
    """[S] bool: whether a request has a mask in ``allowed``."""


class StopIds(NamedTuple):
    """The stop ids of each request, forbidden until its output has ``min_tokens`` tokens."""

    ids: Any
    """[S, ``room``] int32."""
    count: Any
    """[S] int32."""
    min_tokens: Any
    """[S] int32: least output length for a stop id."""
    room: Any


class BadWords(NamedTuple):
    """The forbidden sequences of ids of each request: the last id is forbidden after all preceding ids."""

    ids: Any
    """[S, ``room``, ``longest``] int32: each at the right end of its row."""
    lengths: Any
    """[S, ``room``] int32."""
    count: Any
    """[S] int32."""
    room: Any
    longest: Any


class Division(NamedTuple):
    """Division of a row's work among its programs."""

    of_ids: Any
    """Number of programs for the occurring ids, in turns."""
    of_lists: Any
    """Number of programs for lists and drafts: 1 or 0."""
    of_masks: Any
    """Number of programs for tiles of the masks, in turns."""


class StepTokens(NamedTuple):
    """The tokens of a step."""

    ids: Any
    """[rows, ``width``] int64."""
    width: Any


class GrowingHistory(NamedTuple):
    """The tensors of slots that change with every token."""

    history: Any
    """[S, M] int32."""
    num_tokens: Any
    """[S] int32: tokens in ``history``."""
    limit: Any
    """[S] int32: the most tokens; 0 without a request."""
    distinct: Any
    """[S, M] int32: ids that occur in ``history``, each once."""
    num_distinct: Any
    """[S] int32: ids in ``distinct``."""
    counts: Any
    """[S, V] int32: as in :class:`Occurrences`."""
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
LAST_N = tl.constexpr(64)
DRY = tl.constexpr(128)
THINKING = tl.constexpr(256)
"""Kinds of edits in a call; ``LAST_N`` says that penalties of some requests count the last tokens alone."""


class EditedRow(NamedTuple):
    """A row of logits and its request."""

    base: Any
    """The first logit."""
    vocab_size: Any
    row: Any
    """int64."""
    slot: Any
    """int64."""
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
    forced: Any
    """The id that alone is allowed, by a spent thinking budget; -1: none."""


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
def load_row(row, logits, rows, drafts, history, stops, flags, config: tl.constexpr):
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
    has_length = (flags & (BAD_WORDS | MIN_TOKENS | LAST_N | DRY | THINKING)) != 0
    num_prompt = tl.load(history.num_prompt + slot, mask=has_length, other=0)
    num_tokens = tl.load(history.num_tokens + slot, mask=has_length, other=0)
    min_tokens = tl.load(stops.min_tokens + slot, mask=(flags & MIN_TOKENS) != 0, other=0)
    num_output = num_tokens - num_prompt + step
    forced = load_forced(row, rows, flags, config)
    row = row.to(tl.int64)
    return EditedRow(
        logits.base + row * logits.row_stride,
        logits.vocab_size,
        row,
        slot,
        step,
        draft,
        has_request,
        num_tokens,
        num_output,
        num_output < min_tokens,
        forced,
    )


@triton.jit
def load_forced(row, rows, flags, config):
    """Load the id that a spent thinking budget forces in a row; -1 without one."""
    forced = row * 0 - 1
    if config.HAS_LISTS:
        if rows.forced_ids is not None:
            forced = tl.load(rows.forced_ids + row, mask=(flags & THINKING) != 0, other=-1)
    return forced


# Reads the tokens before a row: the history of its request, then its drafts.


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
def token_before(back, size, row, history, drafts):
    """Return the tokens of a row by their distance from the last: -1 for placeholders and beyond ``size``."""
    place = row.num_tokens + row.step - 1 - back
    mask = (back >= 0) & (back < size)
    in_history = mask & (place < row.num_tokens)
    token = tl.load(history.tokens + row.slot * history.max_tokens + place, mask=in_history, other=-1)
    if drafts.ids is not None:
        token = tl.where(in_history, token, draft_id(row, drafts, place - row.num_tokens))
    return tl.where(mask & (token >= 0) & (token < row.vocab_size), token, -1)


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


# Hash tables of ids, one for each row: how often an id is in the window of penalties, and its longest match of DRY.
#
# An id is looked for from the entry on that its hash names, and stands there in front of all smaller ids. So programs
# insert side by side, by an atomic maximum a step, and a search ends at the first smaller id (Shun and Blelloch 2014,
# "Phase-concurrent hash tables for determinism"). Half of the entries remain empty. Where a table would have as many
# entries as there are ids, each id has its own.

_MULTIPLIER = tl.constexpr(0x9E3779B1)
"""2**32 by the golden ratio: neighbouring ids get hashes far apart."""


class IdTable(NamedTuple):
    """The table of a row."""

    keys: Any
    counts: Any
    """The first key and the first count; see :class:`IdTables`."""
    size: Any
    """Number of entries; 0: no table."""
    vocab_size: Any


@triton.jit
def load_table(row, tables, flags):
    """Return the :class:`IdTable` of a row."""
    offset = row.row * tables.room
    size = tl.load(tables.sizes + row.row, mask=(flags & (LAST_N | DRY)) != 0, other=0)
    return IdTable(tables.keys + offset, tables.counts + offset, size, row.vocab_size)


@triton.jit
def new_keys(ids, matches):
    """Return the keys of ids with the lengths of their matches of DRY; -1: none."""
    return ((ids.to(tl.int64) + 1) << 32) | (matches + 1).to(tl.int64)


@triton.jit
def listed_ids(table, index):
    """Return the ids in some entries: -1 for empty ones."""
    keys = tl.load(table.keys + index, mask=index < table.size, other=0)
    return ((keys >> 32) - 1).to(tl.int32)


@triton.jit
def longest_matches(table, entry, mask):
    """Return the longest match of DRY in some entries; -1: none."""
    return tl.load(table.keys + entry, mask=mask, other=0).to(tl.int32) - 1


@triton.jit
def _first_entry(ids, table):
    hashed = ids.to(tl.uint32) * _MULTIPLIER
    entry = ((hashed.to(tl.int64) * table.size) >> 32).to(tl.int32)
    return tl.where(table.size == table.vocab_size, ids, entry)


@triton.jit
def insert_keys(keys, mask, table):
    """Insert keys into the table of a row, where no key has the same id and a match as long.

    An id with a shorter match is replaced. A smaller id makes room, and is inserted further on.
    """
    entry = _first_entry(((keys >> 32) - 1).to(tl.int32), table)
    present = tl.load(table.keys + entry, mask=mask, other=0)
    active = (mask & (((present >> 32) != (keys >> 32)) | (present < keys))).to(tl.int32)
    while tl.max(active, 0) > 0:
        present = tl.atomic_max(table.keys + entry, keys, mask=active > 0, sem="relaxed")
        active &= ((present != 0) & ((present >> 32) != (keys >> 32))).to(tl.int32)
        keys = tl.minimum(keys, present)
        entry = tl.where(entry + 1 < table.size, entry + 1, 0)


@triton.jit
def find_entries(ids, mask, table):
    """Return the entries of ids; -1 for missing ones."""
    entry = _first_entry(ids, table)
    found = tl.zeros_like(ids) - 1
    active = (mask & (table.size > 0)).to(tl.int32)
    while tl.max(active, 0) > 0:
        present = (tl.load(table.keys + entry, mask=active > 0, other=0) >> 32) - 1
        found = tl.where((active > 0) & (present == ids), entry, found)
        active &= (present > ids).to(tl.int32)
        entry = tl.where(entry + 1 < table.size, entry + 1, 0)
    return found


# Matches of DRY: how many tokens in front of each place equal the last ones of the history, read backwards.
#
# A lane goes through neighbouring places from the newest on, and never back over a token that it has compared: while
# a place lies within the last match, its own match is known from that of the history's end with itself, up to the end
# of that match (the Z algorithm; Gusfield 1997, "Algorithms on Strings, Trees and Sequences", 1.4). So a lane takes
# at most two steps a place, and one for each token of the longest match, whatever repeats.

OVERLAPS = tl.constexpr(256)
"""Matches of the history's end with itself that are known. Places further behind the last match begin anew."""
_STEPS = tl.constexpr(8)
"""Tokens in front of each place of the history's end that are compared together."""
_BREAKERS = tl.constexpr(8)
"""Breakers that are compared together with a block of tokens."""
_SHARE = tl.constexpr(16)
"""A lane has at least one place for so many tokens of the longest match."""


@triton.jit
def is_breaker(tokens, row, dry):
    """Return whether each token of a block is a breaker of the row's request."""
    found = tl.zeros_like(tokens)
    count = tl.load(dry.num_breakers + row.slot)
    for start in range(0, count, _BREAKERS):
        index = start + tl.arange(0, _BREAKERS)
        breakers = tl.load(dry.breakers + row.slot * dry.room + index, mask=index < count, other=-1)
        found += tl.sum((tokens[:, None] == breakers[None, :]).to(tl.int32), 1)
    return found > 0


@triton.jit
def longest_match(size, row, history, drafts, dry):
    """Return how long a match may be: up to the last breaker or placeholder, and to the largest power.

    :param size: number of tokens that are searched.
    """
    limit = tl.minimum(size, tl.load(dry.max_match + row.slot))
    longest = limit
    start = size * 0
    while (start < limit) & (longest == limit):
        back = start + tl.arange(0, OVERLAPS)
        tokens = token_before(back, size, row, history, drafts)
        ends = ((tokens < 0) | is_breaker(tokens, row, dry)) & (back < limit)
        longest = tl.minimum(longest, tl.min(tl.where(ends, back, limit), 0))
        start += OVERLAPS
    return longest


@triton.jit
def find_overlaps(longest, size, row, history, drafts):
    """Return the match of the history's end with itself, by the distance: [OVERLAPS]."""
    distance = tl.arange(0, OVERLAPS)
    length = tl.zeros_like(distance)
    active = ((distance > 0) & (distance < longest)).to(tl.int32)
    step = size * 0
    while (step < longest) & (tl.max(active, 0) > 0):
        number = step + tl.arange(0, _STEPS)
        last = token_before(number, size, row, history, drafts)
        earlier = token_before(distance[:, None] + number[None, :], size, row, history, drafts)
        differs = (earlier != last[None, :]) | (number >= longest)[None, :]
        run = tl.min(tl.where(differs, (number - step)[None, :], _STEPS), 1)
        length += active * run
        active &= (run == _STEPS).to(tl.int32)
        step += _STEPS
    return length


@triton.jit
def insert_matches(part, parts, row, history, drafts, dry, ends, table, config: tl.constexpr):
    """Insert the ids that have a cost, with the lengths of their matches, in turns with the row's other programs."""
    LANES: tl.constexpr = config.LANES
    size = tl.minimum(row.num_tokens + row.step, tl.load(dry.last_n + row.slot))
    longest = tl.load(ends.lengths + row.row)
    if longest >= tl.load(dry.allowed_length + row.slot):
        places = tl.maximum(longest // _SHARE, config.PLACES)
        for start in range(part * LANES * places, size, parts * LANES * places):
            first = start + tl.arange(0, LANES) * places
            _insert_lanes(first, places, size, longest, row, history, drafts, dry, ends, table)


@triton.jit
def _insert_lanes(first, places, size, longest, row, history, drafts, dry, ends, table):
    """Insert the ids at some places behind the first one of each lane.

    ``place`` is the distance of a token from the last one. The tokens in front of it begin at ``place + 1``; those
    from ``match`` to ``compared`` equal the last ones.
    """
    overlaps = ends.overlaps + row.row * OVERLAPS
    allowed_length = tl.load(dry.allowed_length + row.slot)
    place = first
    last_place = tl.minimum(first + places, size)
    match = first + 1
    compared = first + 1
    last_key = tl.zeros_like(first).to(tl.int64)
    active = (place < last_place).to(tl.int32)
    while tl.max(active, 0) > 0:
        begin = place + 1
        is_inside = (begin > match) & (begin - match < OVERLAPS)
        compared = tl.where((begin > match) & (is_inside == 0), begin, compared)
        known = tl.load(overlaps + begin - match, mask=(active > 0) & is_inside, other=size)
        is_known = known < compared - begin
        matched = compared - begin
        is_open = (active > 0) & (matched < longest)
        expected = token_before(tl.where(is_open, matched, -1), size, row, history, drafts)
        earlier = token_before(compared, size, row, history, drafts)
        is_longer = (expected >= 0) & (expected == earlier) & (is_known == 0)
        length = tl.where(is_known, known, matched)
        match = tl.where(is_known, match, begin)
        compared += is_longer.to(tl.int32)
        is_over = (active > 0) & (is_longer == 0)
        has_cost = is_over & (length >= allowed_length)
        if tl.max(has_cost.to(tl.int32), 0) > 0:
            tokens = token_before(place, size, row, history, drafts)
            keys = new_keys(tokens, length)
            has_cost &= (tokens >= 0) & (keys != last_key)
            has_cost &= is_breaker(tokens, row, dry) == 0
            insert_keys(keys, has_cost, table)
            last_key = tl.where(has_cost, keys, last_key)
        place += is_over.to(tl.int32)
        begin = place + 1
        match = tl.where(begin > compared, begin, match)
        compared = tl.maximum(begin, compared)
        active = (place < last_place).to(tl.int32)


# Costs of DRY for the ids of a row.


@triton.jit
def load_multiplier(row, dry, flags, config):
    """Load the multiplier of DRY of a row's request; 0 where it is off."""
    multiplier = 0.0
    if config.HAS_LISTS:
        multiplier = tl.load(dry.multiplier + row.slot, mask=(flags & DRY) != 0, other=0.0)
    return multiplier


@triton.jit
def dry_costs(entry, mask, row, multiplier, dry, table):
    """Return the cost [n] of DRY of the ids in entries of a row's table, 0 where there is none.

    The power is computed in float64 by squaring.
    """
    longest = longest_matches(table, entry, mask & (entry >= 0))
    has_cost = longest >= 0
    rest = tl.where(has_cost, longest - tl.load(dry.allowed_length + row.slot), 0)
    factor = tl.load(dry.base + row.slot).to(tl.float64)
    cost = tl.zeros_like(entry).to(tl.float64) + 1.0
    while tl.max(rest, 0) > 0:
        cost *= tl.where((rest & 1) != 0, factor, 1.0)
        factor *= factor
        rest >>= 1
    return tl.where(has_cost, (cost * multiplier.to(tl.float64)).to(tl.float32), 0.0)


# Repetition, frequency and presence penalties of a row.


class RowPenalties(NamedTuple):
    """The penalties of a row, float32."""

    repetition: Any
    frequency: Any
    presence: Any
    last_n: Any
    """int32: number of tokens that are counted; negative: all."""


@triton.jit
def load_penalties(slot, penalties, flags):
    """Return the :class:`RowPenalties` of a request."""
    is_any = (flags & PENALTIES) != 0
    return RowPenalties(
        tl.load(penalties.repetition + slot, mask=is_any, other=1.0),
        tl.load(penalties.frequency + slot, mask=is_any, other=0.0),
        tl.load(penalties.presence + slot, mask=is_any, other=0.0),
        tl.load(penalties.last_n + slot, mask=(flags & LAST_N) != 0, other=-1),
    )


@triton.jit
def walks_table(penalties, flags):
    """Return whether the edited ids of a row all stand in its table, but for lists and masks.

    That is so with a window of penalties, and with DRY without penalties.
    """
    is_walked = flags < 0
    if flags & (LAST_N | DRY) != 0:
        is_asked = tl.where(penalties.repetition != 1.0, 1, 0)
        is_asked = tl.where(penalties.frequency != 0.0, 1, is_asked)
        is_asked = tl.where(penalties.presence != 0.0, 1, is_asked)
        is_walked = (penalties.last_n >= 0) | (is_asked == 0)
    return is_walked


@triton.jit
def count_ids(ids, entry, counts, row, penalties, table, drafts, flags, config):
    """Return (how often each id of a block [n] is in the output, whether it is in prompt or output).

    Where the penalties count the last tokens alone, both are of these.

    :param entry: of each id in ``table``; -1 or beyond the table: none.
    """
    times = (counts >> OUTPUT_SHIFT) + count_drafts(ids, row.step, row, drafts)
    if config.HAS_LISTS:
        if flags & LAST_N != 0:
            if penalties.last_n >= 0:
                is_listed = (entry >= 0) & (entry < table.size)
                counts = tl.load(table.counts + entry, mask=is_listed, other=0)
                times = counts >> OUTPUT_SHIFT
    return times, (times > 0) | ((counts & IN_PROMPT) != 0)


@triton.jit
def apply_penalties(value, times, occurs, penalties):
    """Return logits with their penalties, each step rounded to float32: the launch is compiled without fused products.

    :param times: how often each id is in the output.
    :param occurs: whether each id is in prompt or output.
    """
    divided = tl.div_rn(value, tl.zeros_like(value) + penalties.repetition)
    repeated = tl.where(value > 0, divided, value * penalties.repetition)
    value = tl.where(occurs, repeated, value)
    frequent = value - penalties.frequency * times.to(tl.float32)
    return tl.where(times > 0, frequent - penalties.presence, value)


# Ids of a row that masks, stop ids or bad words forbid.


@triton.jit
def load_restricted(row, masks, flags):
    """Load whether the request of a row has an allow-list."""
    has_masks = row.has_request & ((flags & ALLOWED) != 0)
    return tl.load(masks.is_restricted + row.slot, mask=has_masks, other=0).to(tl.int32) != 0


@triton.jit
def _allowed_bits(ids, mask, row, masks, is_restricted, flags):
    """Return words whose lowest bit says whether each id of a block is allowed."""
    offset = ids >> 5
    words = ((row.vocab_size + 31) >> 5).to(tl.int64)
    bitmask_words = tl.load(
        masks.bitmask + row.row * masks.bitmask_stride + offset,
        mask=mask & ((flags & BITMASK) != 0),
        other=-1,
    )
    allowed_words = tl.load(masks.allowed + row.slot * words + offset, mask=mask & is_restricted, other=-1)
    return (bitmask_words & allowed_words) >> (ids & 31)


@triton.jit
def banned_ids(first, row, history, drafts, words, WORDS: tl.constexpr):
    """Return (the last ids of some bad words, whether the output ends with the preceding ids): [WORDS] each.

    :param first: number of the first bad word.
    """
    word = first + tl.arange(0, WORDS)
    mask = word < tl.load(words.count + row.slot)
    offset = row.slot * words.room + word
    length = tl.load(words.lengths + offset, mask=mask, other=0)
    end = words.ids + (offset + 1) * words.longest - 1
    is_banned = mask & (length > 0) & (length <= row.num_output + 1)
    for back in range(1, tl.max(length, 0)):
        history_index = row.num_tokens + row.step - back  # of the token ``back`` steps before the next one
        in_history = (history_index >= 0) & (history_index < row.num_tokens)
        token = tl.load(
            history.tokens + row.slot * history.max_tokens + history_index, mask=in_history, other=-1
        )
        if drafts.ids is not None:
            token = tl.where(in_history, token, draft_id(row, drafts, history_index - row.num_tokens))
        expected = tl.load(end - back, mask=mask & (back < length), other=-1)
        is_banned &= (back >= length) | (expected == token)
    return tl.load(end, mask=mask, other=-1), is_banned


@triton.jit
def is_forbidden(ids, mask, counts, row, is_restricted, history, drafts, masks, words, flags, config):
    """Return whether masks, stop ids or bad words forbid each id of a block [n].

    :param counts: the words of counts of the ids.
    """
    forbidden = tl.zeros_like(mask)
    if flags & (ALLOWED | BITMASK) != 0:
        forbidden = (_allowed_bits(ids, mask, row, masks, is_restricted, flags) & 1) == 0
    if config.HAS_LISTS:
        forbidden |= ((counts & IS_STOP) != 0) & row.is_early
        if flags & BAD_WORDS != 0:
            if tl.max(counts & ENDS_BAD_WORD, 0) > 0:
                for first in range(0, tl.load(words.count + row.slot), config.WORDS):
                    last, is_banned = banned_ids(first, row, history, drafts, words, config.WORDS)
                    meets = (ids[:, None] == last[None, :]) & is_banned[None, :]
                    forbidden |= tl.max(meets.to(tl.int32), 1) > 0
        forbidden = tl.where(row.forced >= 0, ids != row.forced, forbidden)
    return forbidden


@triton.jit
def forbid_listed(row, history, drafts, stops, words, flags, config: tl.constexpr):
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


# Edits of the ids that occur in a request, of its bias list, and of the drafts before a row.
#
# Reads of each id one word of counts, one of each mask and the logit, which it writes.


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


# Writes -inf to the ids of a row that a mask leaves out, tile by tile.


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
def forbid_others(part, parts, base, forced, vocab_size, config: tl.constexpr):
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


# Bitmasks, allowed ids, bad words, early stops, biases and penalties, in place, by programs without order.
#
# A row has programs that take the ids that occur in its request, one that takes its lists and drafts, and some that
# take tiles of ids where there are masks. Which are there, the host knows; a program without anything to do ends at
# once. Of the logits nothing is read or written but what is edited. Masks are read once, from memory, and -inf is
# written where they say so.
#
# Each id has one owner, so the programs of a row need no order: every program that forbids an id writes -inf to it,
# and the others leave it alone; otherwise the program of the bias list edits its ids, and the programs of the
# occurring ids edit the rest. One word of ``counts`` tells the owner.


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

    :param flags: bits such as ``LAST_N``: the kinds of edits in the call.
    :param division: :class:`Division`; this module defines all groups except the logits'.
    :param logits: :class:`~.arguments.Logits`, edited in place; V is the vocabulary of the slots.
    :param config: :class:`~.arguments.ProcessConfig`.
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

    :param rows: :class:`SlotRows`; this module defines all groups.
    :param tokens: :class:`StepTokens`.
    :param slots: :class:`GrowingHistory`.
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


# Empties the tables of the rows with a window of penalties or DRY, and finds what DRY compares with.
#
# Several programs a row, in turns; the first one reads the end of the history some times. Writes each entry of a
# table.

ENTRIES = tl.constexpr(1024)
"""Entries that are emptied at once."""


@triton.jit(**UNSPECIALIZED)
def open_tables(
    flags, parts, rows, logits, history, drafts, stops, penalties, dry, tables, ends, config: tl.constexpr
):
    """Each program empties a part of a row's table. Grid (rows * parts), the parts of a row side by side.

    :param flags: bits such as ``LAST_N``: the kinds of edits in the call.
    :param logits: :class:`~.arguments.Logits`, which are not read.
    :param tables: :class:`IdTables`; this module defines all groups except the logits'.
    :param config: :class:`~.arguments.ProcessConfig`.
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


# Counts the tokens in the window of penalties, by their entries in the tables of rows.
#
# Several programs a row, in turns and without order. Reads each token of the window once.


@triton.jit(**UNSPECIALIZED)
def count_window(parts, rows, logits, history, drafts, stops, penalties, tables, config: tl.constexpr):
    """Each program counts some tokens of a row. Grid (rows * parts), the parts of a row side by side.

    The arguments are those of :func:`open_tables`.
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


# Inserts the ids in the window of penalties, and those that DRY makes dearer, into the tables of rows.
#
# Several programs a row, in turns and without order. Reads each token of the window once, and each token of the
# history that DRY searches about twice.


@triton.jit(**UNSPECIALIZED)
def fill_tables(
    flags, parts, rows, logits, history, drafts, stops, penalties, dry, tables, ends, config: tl.constexpr
):
    """Each program inserts some tokens of a row. Grid (rows * parts), the parts of a row side by side.

    The arguments are those of :func:`open_tables`.
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


# The ids that spent thinking budgets force. A program a row, before ``process_logits``.
#
# Reads the history backwards until it meets the newest start and the newest end, and writes one id.

_PLACES = tl.constexpr(128)
"""Tokens of a history that are looked at together."""


@triton.jit
def _tokens_since(mark, length, size, row, history, drafts):
    """Return the number of tokens behind the newest occurrence of a sequence; ``size`` without one."""
    found = size
    start = size * 0
    while (start < size) & (found == size):
        back = start + tl.arange(0, _PLACES)
        is_last = (back < size).to(tl.int32)
        for step in range(length):
            expected = tl.load(mark + length - 1 - step)
            is_last &= (token_before(back + step, size, row, history, drafts) == expected).to(tl.int32)
        found = tl.minimum(found, tl.min(tl.where(is_last > 0, back, size), 0))
        start += _PLACES
    return found


@triton.jit
def _num_begun(mark, most, size, row, history, drafts):
    """Return how many ids of a sequence, at most ``most``, end the tokens of a row."""
    count = size * 0
    for length in range(1, most + 1):
        is_begun = size * 0 + 1
        for index in range(length):
            token = token_before(length - 1 - index, size, row, history, drafts)
            is_begun &= (token == tl.load(mark + index)).to(tl.int32)
        count = tl.where(is_begun > 0, length, count)
    return count


@triton.jit(**UNSPECIALIZED)
def find_forced_ids(rows, logits, history, drafts, stops, thinking, forced_ids, config: tl.constexpr):
    """Each program writes the forced id of a row, -1 where there is none. Grid (rows).

    :param logits: :class:`~.arguments.Logits`, which are not read.
    :param thinking: :class:`Thinking`; this module defines all groups except the logits'.
    :param forced_ids: [rows] int32.
    :param config: :class:`~.arguments.ProcessConfig`.
    """
    row_number = tl.program_id(0)
    row = load_row(row_number, logits, rows, drafts, history, stops, THINKING, config)
    budget = tl.load(thinking.budget + row.slot, mask=row.has_request, other=-1)
    forced = row_number * 0 - 1
    if budget >= 0:
        size = row.num_tokens + row.step
        start = thinking.start + row.slot * thinking.room
        end = thinking.end + row.slot * thinking.room
        num_end = tl.load(thinking.num_end + row.slot)
        num_start = tl.load(thinking.num_start + row.slot)
        since_start = _tokens_since(start, num_start, size, row, history, drafts)
        since_end = _tokens_since(end, num_end, size, row, history, drafts)
        if (since_start < since_end) & (tl.minimum(since_start, row.num_output) >= budget):
            most = tl.minimum(num_end - 1, since_start)
            forced = tl.load(end + _num_begun(end, most, size, row, history, drafts))
    tl.store(forced_ids + row_number, forced)
