"""The passes over rows with too many candidates for one program: state, pivots, and what is weighed and collected."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.row_candidates import bound_by_granules, list_granules
from tokendraw_triton_gumbel.kernels.rows import RowScale
from tokendraw_triton_gumbel.kernels.values import (
    GRANULE_SIZE,
    GRANULES_PER_TILE,
    LANES,
    LARGEST,
    LOWEST,
    TILE_SIZE,
    WORDS,
    count_bits,
    element_ids,
    exp2,
    granule_ids,
    key_of,
    lane_sums,
    load_inside,
    load_vectors,
    logits_of_words,
    lowest_bit,
    reaches,
    shifted_words,
    steady,
    times,
    value_of,
    weigh,
    word_ids,
)


class WorkQueue(NamedTuple):
    """The passes of the launch for large sets: see :mod:`.large_set_passes`."""

    counters: Any = None
    """[128] int32."""
    announced: Any = None
    """[rows, ROUNDS] int32: 1 more than the row of each pass, in the order of announcement."""
    arrivals: Any = None
    """[rows] int32: parts of the current pass of a row that are done."""


# The layout of the work queue's counters for large sets: launch 1 clears them, launches 2 and 3 use them.

QUEUE_COUNTERS = tl.constexpr(128)
"""Int32 counters; the first says how many rows launch 2 has left to launch 3."""
TICKETS = tl.constexpr(32)
DONE = tl.constexpr(64)
LATER = tl.constexpr(96)
"""More counters: tickets drawn, rows drawn, passes announced after the first of each row. Each has a cache line of its
own, since programs wait for one counter while another changes."""
ROUNDS = tl.constexpr(64)
"""Limit of passes of a row, which takes 60 at most: one that collects the set; 6 of guessed pivots; 15 of even ones for
the k-th value, and one guess and 15 for the nucleus behind it. Even pivots leave a fifth of the 2 ** 32 values, rounded
up, and two fifths where nothing is known of the low end. A pass for a nucleus may be followed by one that collects in
vain, where weights are too small to add up; numbers are exact, and nothing is collected for them in vain."""
MOST_GUESSES = tl.constexpr(6)
"""Passes whose pivots are guessed; the next ones have even pivots."""


class RowState(NamedTuple):
    """The state of each row of a large set: see :mod:`.large_set_passes`."""

    reals: Any = None
    """[rows, STATE_REALS] float32."""
    ints: Any = None
    """[rows, STATE_INTS] int32."""


class PassResults(NamedTuple):
    """Tensors written by the passes of launch 3."""

    columns: Any
    """[rows, SLOTS, tiles, COLUMNS] float32: the weight of each tile above each pivot."""
    collected: Any
    """[rows, MAX_COLLECTED] int32: ids of the logits in a bracket, in any order."""


class LargeWork(NamedTuple):
    """What launch 2 leaves to launch 3; :class:`~.rows.CandidateLists` are the scratch of rows that it draws itself."""

    lists: Any
    queue: Any
    """:class:`WorkQueue`."""
    state: Any
    """:class:`RowState`."""


class LargeRow(NamedTuple):
    """A row of a large set, in memory, to the program that works at it."""

    source: Any
    """:class:`~.rows.RowAddress`."""
    number: Any
    """The row's number, int64."""
    maxima: Any
    """[tiles], like ``sums``, of :class:`~.rows.TileStatistics`; ``granules`` [tiles, 16]."""
    sums: Any
    granules: Any
    tiles: Any
    reals: Any
    """[STATE_REALS], like ``ints``, [STATE_INTS]: its state."""
    ints: Any
    columns: Any
    """Of all rows; ``collected`` [MAX_COLLECTED] of this one."""
    collected: Any


# Layout of a row's state between its passes: indices of its floats and of its integers, and the goals of passes.

STATE_REALS = tl.constexpr(16)
"""Floats a row. The first four are the pivots of the current pass, descending."""
LOW = tl.constexpr(4)
HIGH = tl.constexpr(5)
"""The bracket: LOW <= threshold < HIGH."""
MAX_LOGIT = tl.constexpr(6)
SCALE = tl.constexpr(7)
INVERSE = tl.constexpr(8)
MASS = tl.constexpr(9)
"""The row's :class:`~.rows.RowScale`."""
TARGET_MIN = tl.constexpr(10)
TARGET_MAX = tl.constexpr(11)
"""The mass that a nucleus has to reach is known to lie between the two."""
P = tl.constexpr(12)
P_REST = tl.constexpr(13)
"""p as a sum of two float32."""
KTH_LOW = tl.constexpr(14)
"""The low end of the k-th value's bracket at which the search for the nucleus began."""
LOWER_LIMIT = tl.constexpr(15)
"""A value that the threshold is known to reach."""

STATE_INTS = tl.constexpr(16)
"""Integers a row."""
GOAL = tl.constexpr(0)
ROUND = tl.constexpr(1)
"""Number of finished passes."""
LOW_COLUMN = tl.constexpr(2)
HIGH_COLUMN = tl.constexpr(3)
"""The columns that hold the weights from LOW and from HIGH upwards, -1 where none does."""
SLOT = tl.constexpr(4)
"""The slot of columns for the current pass."""
K = tl.constexpr(5)
SEED = tl.constexpr(6)
POSITION = tl.constexpr(8)
"""Two integers each: an int64."""
IS_EXTREME = tl.constexpr(10)
"""Whether the row holds NaN, or logits too large for a weight to cost one multiplication."""
GOAL_BEFORE = tl.constexpr(11)
"""The goal before and after a collecting pass."""
NUM_COLLECTED = tl.constexpr(12)
"""Number of logits found by a collecting pass; those beyond the room are not written."""
IS_EXACT = tl.constexpr(13)
"""The flag EXACT if a later launch needs the threshold of this row, else 0."""

FIND_NUCLEUS = tl.constexpr(0)
FIND_KTH = tl.constexpr(1)
FIND_LARGER = tl.constexpr(2)
"""The threshold is where the mass reaches a target, the k-th value, or the larger of the two (the joint order)."""
WEIGH_ONLY = tl.constexpr(3)
"""The threshold is known, and only the tiles are to be weighed."""
KTH_THEN_NUCLEUS = tl.constexpr(4)
FLOOR_THEN_NUCLEUS = tl.constexpr(5)
"""The k-th value, or the floor, comes first, and the nucleus is that of the mass from there upwards."""
COLLECT_BRACKET = tl.constexpr(6)
"""The logits in the bracket are collected for the threshold. This goal and those behind it collect."""
COLLECT_THRESHOLD = tl.constexpr(7)
"""The same, where the token is known."""
COLLECT_SET = tl.constexpr(8)
"""The logits from LOW upwards are collected: the kept set if the guess of LOW holds, and a few more."""

SLOTS = tl.constexpr(3)
"""Slots of columns a row: one for each end of the bracket, one for the current pass."""
COLUMNS = tl.constexpr(8)
"""Float32 a tile and slot: the weight, and the number of logits, from each of four pivots upwards."""
COUNT_COLUMN = tl.constexpr(4)
"""Distance from the column of a weight to that of the number."""
MAX_LATER_PARTS = tl.constexpr(16)
"""Upper limit of parts per row in passes after the first, which few rows need."""
NEARLY_ONE = tl.constexpr(0.99999)
"""What debug builds allow sums of float32 in other orders, of p."""
UNIT_COLUMN = tl.constexpr(3)
"""The int64 of a tile and slot that holds the weight of its collected logits; no pass weighs at the same time."""
MAX_COLLECTED = tl.constexpr(8192)
"""Room for collected logits of a row."""
MAX_EXPECTED = tl.constexpr(3072)
"""Limit of the logits that a collecting pass may be expected to find: neighbouring ids may hold more of them."""


# Reads the columns that a pass wrote: the weight, and the number of logits, of each tile from a pivot upwards.
#
# Columns are numbered over all slots of the launch: ``slot * COLUMNS`` plus the index in the slot.


@triton.jit
def load_column(columns, column, tiles, TILES: tl.constexpr):
    """Return a column of a row, [TILES]; zeros if the column is -1."""
    tile = tl.arange(0, TILES)
    at = columns + (column // COLUMNS).to(tl.int64) * tiles * COLUMNS + tile * COLUMNS + column % COLUMNS
    return tl.load(at, mask=(tile < tiles) & (column >= 0), other=0.0)


@triton.jit
def row_sum(row, column, offset, TILES: tl.constexpr):
    """Return the sum of column ``column + offset``; 0 if ``column`` is -1."""
    column = tl.where(column >= 0, column + offset, -1)
    return tl.sum(load_column(row.columns, column, row.tiles, TILES), 0)


@triton.jit
def _add_four(a0, a1, a2, a3, b0, b1, b2, b3):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def four_sums(columns, slot, offset, tiles, TILES: tl.constexpr):
    """Return the sums of four neighbouring columns of a slot, from ``offset`` on: one sum a pivot."""
    tile = tl.arange(0, TILES)
    at = columns + slot.to(tl.int64) * tiles * COLUMNS + tile * COLUMNS + offset
    inside = tile < tiles
    return tl.reduce(
        (
            tl.load(at, mask=inside, other=0.0),
            tl.load(at + 1, mask=inside, other=0.0),
            tl.load(at + 2, mask=inside, other=0.0),
            tl.load(at + 3, mask=inside, other=0.0),
        ),
        0,
        _add_four,
    )


@triton.jit
def free_slot(first, low_column, high_column):
    """Return a slot of a row that holds neither end of the bracket; the row's slots begin at ``first``."""
    low, high = low_column // COLUMNS - first, high_column // COLUMNS - first
    free = tl.where((low != 1) & (high != 1), 1, 2)
    free = tl.where((low != 0) & (high != 0), 0, free)
    return first + free


# Stores the four values above which a pass over a row weighs its tiles.


class PerPivot(NamedTuple):
    """A value for each of the four pivots of a pass; the pivots themselves descend."""

    p0: Any
    p1: Any
    p2: Any
    p3: Any


@triton.jit
def load_pivots(reals):
    """Return the pivots of the current pass."""
    return PerPivot(tl.load(reals), tl.load(reals + 1), tl.load(reals + 2), tl.load(reals + 3))


@triton.jit
def _as_pivot(pivot, low, max_logit, ULP_STEP: tl.constexpr):
    pivot = tl.minimum(tl.maximum(pivot, LOWEST), LARGEST)
    if ULP_STEP > 1:
        pivot = pivot.to(tl.bfloat16).to(tl.float32)  # and perhaps out of the bracket
    return tl.minimum(tl.maximum(pivot, low), tl.maximum(max_logit, low))


@triton.jit
def write_pivots(reals, pivots, low, max_logit, ULP_STEP: tl.constexpr):
    """Write four pivots for a pass: clamped to [low, max_logit], and rounded to bfloat16 where the logits are."""
    tl.store(reals, _as_pivot(pivots.p0, low, max_logit, ULP_STEP))
    tl.store(reals + 1, _as_pivot(pivots.p1, low, max_logit, ULP_STEP))
    tl.store(reals + 2, _as_pivot(pivots.p2, low, max_logit, ULP_STEP))
    tl.store(reals + 3, _as_pivot(pivots.p3, low, max_logit, ULP_STEP))


# Distributes work among programs by tickets: one for each part of a pass, once the pass is announced.
#
# A program waits only for running programs, so the launch ends even if the device cannot hold all programs at once:
# tickets come in order, so the parts of every pass that was announced before have been taken by programs that run.


@triton.jit
def draw_ticket(queue):
    """Return the next ticket: a number that no other program gets, which orders nothing else."""
    return tl.atomic_add(queue.counters + TICKETS, 1, sem="relaxed")


@triton.jit
def announce_row(queue, row):
    """Announce the first pass of a row."""
    tl.store(queue.announced + tl.atomic_add(queue.counters, 1), row + 1)


@triton.jit(noinline=True)
def announce_pass(queue, row, rows):
    """Announce another pass of a row after all its writes; the queue begins with ``rows`` first passes."""
    tl.store(queue.arrivals + row, 0)
    tl.debug_barrier()  # all threads' writes of the row come before the release of one of them
    index = rows + tl.atomic_add(queue.counters + LATER, 1, sem="relaxed")
    tl.atomic_xchg(queue.announced + index, row + 1, sem="release")


@triton.jit
def arrive(queue, row, parts):
    """Count an ended part of the row's current pass; return 1 to the program that ended the last part, else 0.

    It releases what this part wrote, and in the last program acquires what all others did.
    """
    tl.debug_barrier()  # all threads' writes come before it
    return (tl.atomic_add(queue.arrivals + row, 1, sem="acq_rel") == parts - 1).to(tl.int32)


@triton.jit
def finish_row(queue):
    """Count a finished row, after all writes of its results."""
    tl.debug_barrier()  # of all threads
    tl.atomic_add(queue.counters + DONE, 1, sem="release")


@triton.jit
def await_pass(queue, index, rows, max_passes, IS_NVIDIA: tl.constexpr):
    """Wait until a pass is announced; return 1 more than its row, or 0 if no pass will follow.

    A row is done only after all parts of its passes, so every thread gets the same answer.
    """
    row_plus_one = tl.where(index < max_passes, -1, 0)
    while row_plus_one < 0:
        row = tl.load(queue.announced + index, volatile=True)
        if row > 0:
            row_plus_one = row
        elif tl.load(queue.counters + DONE, volatile=True) >= rows:
            row_plus_one = tl.full((), 0, tl.int32)
        elif IS_NVIDIA:
            _pause()
    if row_plus_one > 0:
        # Acquires all earlier writes. The result is used, since the compiler drops an unused one.
        row_plus_one = tl.atomic_add(queue.announced + index, 0, sem="acquire")
    return row_plus_one


@triton.jit
def _pause():
    tl.inline_asm_elementwise(
        "nanosleep.u32 200; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


# Loads the tiles of one step of a pass, ahead of their use.
#
# bfloat16 stays in words of two until its use: the compiler unpacks single values right after the load, so that the
# warp waits for the memory and nothing is read ahead. Rows at any address stay in the two vectors of each lane for the
# same reason. Half granules are vectors of runs of 64 bytes, the pieces that memory is read in: with runs of 32
# whoever read 40 % of the granules read 65 % of the row, and a pass over 1,000 granules of each of 256 rows of float32
# took 42 us in place of 32 on an H100.

_TWO_LOWEST = tl.constexpr(-8323200)
"""Two bfloat16 of -inf."""
_UPPER_LOWEST = tl.constexpr(-8388608)
"""A bfloat16 of -inf in the upper half."""


@triton.jit
def load_group(row, group, config: tl.constexpr):
    """Return the logits of ``WARPS`` neighbouring tiles as :func:`as_logits` takes them; -inf behind the row."""
    SPAN: tl.constexpr = config.WARPS
    if not config.IS_ALIGNED:
        offset = group * (SPAN * TILE_SIZE // config.VECTOR * WORDS) + word_ids(SPAN, config.VECTOR)
        end = (group + 1) * (SPAN * TILE_SIZE)
        first, second = load_vectors(row, offset, end + config.VECTOR <= row.vocab_size)
        block = tl.join(first, second)
    elif row.base.dtype.element_ty == tl.bfloat16:
        offset = group * (SPAN * TILE_SIZE // 2) + word_ids(SPAN, config.VECTOR)
        words = row.base.to(tl.pointer_type(tl.int32)) + offset
        if (group + 1) * (SPAN * TILE_SIZE) <= row.vocab_size:
            block = tl.load(words)
        else:
            block = tl.load(words, mask=2 * offset + 1 < row.vocab_size, other=_TWO_LOWEST)
            # The word of the last logit of an odd number holds a value outside the row.
            last_bits = (
                tl.load(row.base + row.vocab_size - 1).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
            )
            block = tl.where(2 * offset + 1 == row.vocab_size, last_bits | _UPPER_LOWEST, block)
    else:
        ids = group * (SPAN * TILE_SIZE) + element_ids(SPAN, config.VECTOR)
        if (group + 1) * (SPAN * TILE_SIZE) <= row.vocab_size:
            block = tl.load(row.base + ids)
        else:
            block = tl.load(row.base + ids, mask=ids < row.vocab_size, other=float("-inf"))
    return block


@triton.jit
def load_half_granules(row, numbers, half, count, first_tile, config: tl.constexpr):
    """Return the logits of listed granules as :func:`as_logits` takes them; anything beyond the list.

    :param numbers: [count] int32: numbers of granules from ``first_tile`` on, ascending, at least one.
    :param half: [LANES, WARPS] int32: which half granule each lane gets, every second vector of a granule.
    """
    granule = tl.load(numbers + half // 2, mask=half < 2 * count, other=0)
    granule = (first_tile * GRANULES_PER_TILE + granule)[:, :, None, None]
    vector = tl.arange(0, GRANULE_SIZE // config.VECTOR // 2)[None, None, :, None]
    token = granule_ids(granule, (2 * vector + (half % 2)[:, :, None, None]) * config.VECTOR, config.VECTOR)
    words = token // config.VECTOR * WORDS + tl.arange(0, WORDS)[None, None, None, :]
    last = tl.load(numbers + tl.minimum(count, config.WARPS * LANES // 2) - 1)
    end = (first_tile + last // GRANULES_PER_TILE + 1) * TILE_SIZE
    if not config.IS_ALIGNED:
        first, second = load_vectors(row, words, end + config.VECTOR <= row.vocab_size)
        block = tl.join(first, second)
    elif end <= row.vocab_size:
        block = tl.load(row.base.to(tl.pointer_type(tl.int32)) + words)
    else:
        block = load_inside(row, words)
    return block


@triton.jit
def as_logits(block, row, config: tl.constexpr):
    """Convert a loaded group of a row to float32: [LANES, WARPS, chunks, VECTOR]."""
    if not config.IS_ALIGNED:
        first, second = tl.split(block)
        x = logits_of_words(shifted_words(first, second, row, config.IS_NVIDIA), row.base.dtype.element_ty)
    elif block.dtype == tl.int32:
        x = logits_of_words(block, row.base.dtype.element_ty)
    else:
        x = block.to(tl.float32)
    return x


# Collects the logits of a bracket in one pass: reads the granules that reach its low end, writes 4 bytes a logit.
#
# A program lists the granules of its tiles that reach the low end, marks their logits by bits, and makes a list of
# all bits at the end. Programs share the list of a row, so the logits come in any order: what is computed from them
# does not depend on it.

_TILES_AT_ONCE = tl.constexpr(128)
"""Tiles whose granules are listed at once."""
_MAX_GRANULES = tl.constexpr(2048)
_WORDS_AT_ONCE = tl.constexpr(256)


@triton.jit
def _bits_of_hits(x, low, high, VECTOR: tl.constexpr):
    """Mark the logits in [low, high) of a block [LANES, SPAN, chunks, VECTOR] by bits: [LANES, SPAN] int32."""
    bit = tl.arange(0, LANES // VECTOR)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    hit = tl.where((x >= low) & (x < high), ((bit * 0 + 1) << bit)[None, None, :, :], 0)
    return tl.sum(tl.sum(hit, 3), 2)


@triton.jit
def _mark(row, numbers, count, first_tile, low, high, words, config: tl.constexpr):
    """Write two words of bits for each listed granule: one bit for each logit in [low, high).

    :param numbers: [count] int32: numbers of granules, from the first tile on; at least one.
    """
    SPAN: tl.constexpr = config.WARPS
    half = tl.arange(0, LANES)[:, None] + tl.arange(0, SPAN)[None, :] * LANES
    start = tl.full((), 0, tl.int32)
    next_block = load_half_granules(row, numbers, half, count, first_tile, config)
    while start < count:
        x = as_logits(next_block, row, config)
        next_start = start + SPAN * LANES // 2
        if next_start < count:
            next_block = load_half_granules(
                row, numbers + next_start, half, count - next_start, first_tile, config
            )
        tl.store(
            words + 2 * start + half,
            _bits_of_hits(x, low, high, config.VECTOR),
            mask=2 * start + half < 2 * count,
        )
        start = next_start
    tl.debug_barrier()  # the bits are read by other threads


@triton.jit(noinline=True)
def collect_part(row, group, end_group, units, scratch, config: tl.constexpr):
    """Append the ids of the bracket's logits to the list of the row, up to its room, and count all of them.

    :param units: [tiles, COLUMNS // 2] int64: the weights of the tiles, set to 0 for :func:`weigh_listed_tiles`.
    :param scratch: [3 * 2048] int32 of the program: the numbers of granules, then two words of bits for each.
    """
    low, high = tl.load(row.reals + LOW), tl.load(row.reals + HIGH)
    words = scratch + _MAX_GRANULES
    first_tile, end_tile = group * config.WARPS, tl.minimum(end_group * config.WARPS, row.tiles)
    while first_tile < end_tile:
        tile = first_tile + tl.arange(0, _TILES_AT_ONCE)
        zero = tl.zeros((_TILES_AT_ONCE,), tl.int64)
        tl.store(units + tile * (COLUMNS // 2) + UNIT_COLUMN, zero, mask=tile < end_tile)
        num_granules = list_granules(
            row.granules + first_tile * GRANULES_PER_TILE,
            tl.minimum(end_tile - first_tile, _TILES_AT_ONCE),
            low,
            scratch,
            _MAX_GRANULES,
            config.IS_NVIDIA,
            _TILES_AT_ONCE,
        )
        if num_granules > 0:
            _mark(row.source, scratch, num_granules, first_tile, low, high, words, config)
        start = 0
        while start < 2 * num_granules:
            i = start + tl.arange(0, _WORDS_AT_ONCE)
            is_word = i < 2 * num_granules
            mask = tl.load(words + i, mask=is_word, other=0)
            count = count_bits(mask)
            total = tl.sum(count, 0)
            if total > 0:
                # Programs share the list, whose order is nobody's: only the places have to be apart.
                before = tl.atomic_add(row.ints + NUM_COLLECTED, total, sem="relaxed")
                offset = tl.cumsum(count, 0) - count + before
                count = tl.minimum(offset + count, MAX_COLLECTED) - offset
                max_count = tl.max(count, 0)
                granule = first_tile * GRANULES_PER_TILE + tl.load(scratch + i // 2, mask=is_word, other=0)
                j = 0
                while j < max_count:
                    bit = lowest_bit(mask)
                    element = (2 * (bit // config.VECTOR) + i % 2) * config.VECTOR + bit % config.VECTOR
                    token = granule_ids(granule, element, config.VECTOR)
                    tl.store(row.collected + offset + j, token, mask=count > j)
                    mask &= mask - 1
                    j += 1
            start += _WORDS_AT_ONCE
        tl.debug_barrier()  # the words were read
        first_tile += _TILES_AT_ONCE


# Makes a pass over a row: several programs read every logit once, and write 16 or 32 bytes a tile.
#
# Weighs every tile above each of four pivots; where k counts, also counts the logits above each. A pass that collects
# writes the ids of the logits in the bracket instead: see :func:`collect_part`.


@triton.jit
def counts_logits(goal):
    """Return whether the passes of a goal count logits beside weighing them."""
    return (goal == FIND_KTH) | (goal == FIND_LARGER) | (goal == KTH_THEN_NUCLEUS)


@triton.jit
def pass_over_part(row, goal, group, end_group, scratch, config: tl.constexpr):
    """Weigh groups of ``WARPS`` tiles above each pivot, or collect, from ``group`` to before ``end_group``.

    The next group is on its way while one is weighed.
    """
    SPAN: tl.constexpr = config.WARPS
    IS_NVIDIA: tl.constexpr = config.IS_NVIDIA
    tiles, reals = row.tiles, row.reals
    weights = row.columns + tl.load(row.ints + SLOT).to(tl.int64) * tiles * COLUMNS
    counts = counts_logits(goal)
    if goal >= COLLECT_BRACKET:
        units = weights.to(tl.pointer_type(tl.int64))
        collect_part(row, group, end_group, units, scratch.to(tl.pointer_type(tl.int32)), config)
    elif (counts == 0) & (tl.load(row.ints + IS_EXTREME) == 0):
        pivots = load_pivots(reals)
        max_logit = tl.load(reals + MAX_LOGIT)
        scale = tl.load(reals + SCALE)
        offset = -(max_logit * scale)
        correction = exp2(-tl.fma(max_logit, scale, offset), IS_NVIDIA)
        next_group = load_group(row.source, group, config)
        while group < end_group:
            x = as_logits(next_group, row.source, config)
            if group + 1 < end_group:
                next_group = load_group(row.source, group + 1, config)
            weight = exp2(tl.fma(x, scale, offset), IS_NVIDIA)
            _store_weights(weights, group, tiles, x, weight, pivots, correction, SPAN, IS_NVIDIA)
            group += 1
    else:
        weigh_carefully(row, group, end_group, weights, counts, config)


@triton.jit(noinline=True)
def weigh_carefully(row, group, end_group, weights, counts, config: tl.constexpr):
    """Weigh tiles with NaN, infinities or extreme logits, and count logits where the goal needs counts."""
    SPAN: tl.constexpr = config.WARPS
    IS_NVIDIA: tl.constexpr = config.IS_NVIDIA
    tiles, pivots = row.tiles, load_pivots(row.reals)
    max_logit = tl.load(row.reals + MAX_LOGIT)
    scale = tl.load(row.reals + SCALE)
    next_group = load_group(row.source, group, config)
    while group < end_group:
        x = as_logits(next_group, row.source, config)
        if group + 1 < end_group:
            next_group = load_group(row.source, group + 1, config)
        weight = tl.where(
            x > float("-inf"), exp2(times(x - max_logit, scale), IS_NVIDIA), 0.0
        )  # 0 of NaN, too
        _store_weights(weights, group, tiles, x, weight, pivots, 1.0, SPAN, IS_NVIDIA)
        if counts:
            _store_weights(weights + COUNT_COLUMN, group, tiles, x, 1.0, pivots, 1.0, SPAN, IS_NVIDIA)
        group += 1


@triton.jit
def _store_weights(out, group, tiles, x, weight, pivots, factor, SPAN: tl.constexpr, IS_NVIDIA: tl.constexpr):
    """Write the weight from each pivot upwards, of [LANES, SPAN, chunks, VECTOR]."""
    _store_lanes(
        out,
        group,
        tiles,
        lane_sums(weight * reaches(x, pivots.p0, IS_NVIDIA)),
        lane_sums(weight * reaches(x, pivots.p1, IS_NVIDIA)),
        lane_sums(weight * reaches(x, pivots.p2, IS_NVIDIA)),
        lane_sums(weight * reaches(x, pivots.p3, IS_NVIDIA)),
        factor,
        SPAN,
    )


@triton.jit
def _store_lanes(out, group, tiles, l0, l1, l2, l3, factor, SPAN: tl.constexpr):
    """Write four sums over lanes [LANES, SPAN] by four lanes of each warp.

    A store of one value for each warp would make all warps wait for each other twice, since Triton moves the values to
    other threads first.
    """
    lane, tile = tl.arange(0, LANES)[:, None], (group * SPAN + tl.arange(0, SPAN))[None, :]
    first = tl.where(lane == 0, _over_lanes(l0), _over_lanes(l1))
    second = tl.where(lane == 2, _over_lanes(l2), _over_lanes(l3))
    four = tl.where(lane < 2, first, second) * factor
    tl.store(out + tile * COLUMNS + lane, four, mask=(lane < 4) & (tile < tiles))


@triton.jit
def _over_lanes(block):
    """Sum [LANES, SPAN] to [1, SPAN]."""
    return tl.sum(block, 0)[None, :]


# Guesses the threshold of a row of a large set: four pivots for its first pass, which proves a bracket.
#
# Reads a sample of 2048 logits, or the maxima of the row's granules where these probably show the threshold. A wrong
# guess costs time and never a token.

_RUNS_LOG2 = tl.constexpr(8)
_RUN_LENGTH = tl.constexpr(8)
_SAMPLE_SIZE = tl.constexpr(2048)
"""A sample has 2 ** 8 runs of 8 neighbouring logits, 2048 in all; maxima are as many at most."""
_AT_ONCE = tl.constexpr(512)
_TURNS = tl.constexpr(4)
"""Values counted in a turn, and number of turns: a single turn would be four times the code. With one road for samples
and maxima that took the guess from 2,790 instructions to 1,640, and 3 to 5 us off 59 to 77 for 64 rows on an H100."""
_BINS = tl.constexpr(256)
"""Bins of the histogram of what was seen; fewer show the heaviest logits too roughly."""
WEIGHTLESS_LOG2 = tl.constexpr(87.0)
"""Powers of two below the largest logit: what lies lower weighs nothing."""
MIN_DEPTH = tl.constexpr(1e-30)
_MAX_DEPTH = tl.constexpr(3e38)
_MARGIN = tl.constexpr(1.0001)
"""The bins reach a bit beyond the least logit that weighs anything."""
_INNER_STANDARD_ERRORS = tl.constexpr(1.0)
_OUTER_STANDARD_ERRORS = tl.constexpr(4.0)
"""Standard errors from the guess to the pivots."""
_MAX_VISIBLE_SHARE = tl.constexpr(0.93)
"""Limit of the share of granules with a token of the nucleus: above it, maxima hide too many tokens."""


@triton.jit
def load_sample(row):
    """Return 2048 logits [2048] float32, in evenly spaced runs of 8; -inf for NaN."""
    return _load_runs(row.base, row.vocab_size, row.vocab_size, 1, -16)


@triton.jit
def number_in_row(row, bound):
    """Return how many logits of the row reach a bound at most, by a sample: two standard errors beyond the estimate."""
    number = tl.sum((load_sample(row) >= bound).to(tl.int32), 0).to(tl.float32)
    return (number + 2.0 * tl.sqrt(number)) * row.vocab_size.to(tl.float32) * (1.0 / _SAMPLE_SIZE)


@triton.jit
def _load_runs(base, number, spread, stride, alignment_mask):
    """Load 256 runs of 8 values, each value the largest of ``stride`` neighbours: [2048] float32; -inf for NaN.

    :param number: number of values; runs begin at ``spread`` times multiples of 1/256, rounded by ``alignment_mask``.
        Products fit an int32, since no vocabulary has more than 2 ** 21 ids.
    """
    index = tl.arange(0, _SAMPLE_SIZE)
    offset = ((index // _RUN_LENGTH * spread >> _RUNS_LOG2) & alignment_mask) + index % _RUN_LENGTH * stride
    x = tl.full((_SAMPLE_SIZE,), float("-inf"), tl.float32)
    i = 0
    while i < stride:
        value = tl.load(base + offset, mask=offset < number, other=float("-inf")).to(tl.float32)
        x = tl.where(value > x, value, x)
        offset += 1
        i += 1
    return x


@triton.jit
def _add_two(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def _share_before(target, before, one_over):
    """Return the share of each bin below the point at which the running sum reaches ``target``."""
    return tl.minimum(tl.maximum((target - before) * one_over, 0.0), 1.0)


@triton.jit
def _count_by_bin(bin_of):
    """Return the histogram of [2048] bins: [256] int32."""
    bin_of = tl.reshape(bin_of, (_TURNS, _AT_ONCE))
    turn = tl.arange(0, _TURNS)[:, None]
    bin_counts = tl.zeros((_BINS,), tl.int32)
    i = 0
    while i < _TURNS:
        bin_counts += tl.histogram(tl.sum(tl.where(turn == i, bin_of, 0), 0), _BINS)
        i += 1
    return bin_counts


@triton.jit(noinline=True)
def begin_pivots(
    row, granules, num_granules, scale, lower_limit, target, by_mass, by_maxima, reals, ULP_STEP: tl.constexpr
):
    """Write four pivots around the value from which upwards the row weighs ``target``, to ``reals``: [4] float32.

    A histogram estimates the mass beyond each of 255 edges, and its variance. A sampled logit represents the skipped
    ones around it; the mass below the threshold is estimated, which leaves out the heaviest logits. A granule's maximum
    hides all smaller logits of the granule: the lower it is, the more logits it represents. If nearly all granules show
    a token of the nucleus, the maxima hide too many, and a sample replaces them.

    :param granules: [num_granules] maxima of the row, in memory; ``by_maxima`` whether to use them.
    :param lower_limit: the lowest useful pivot.
    :param target: mass relative to the largest logit's, if ``by_mass``; otherwise a number of logits.
    """
    max_logit = scale.max_logit
    slope = tl.where(scale.scale < 0, LARGEST, scale.scale)
    by_maxima = by_maxima.to(tl.int32)
    is_open = tl.full((), 1, tl.int32)
    while is_open > 0:
        from_below = by_mass & (by_maxima == 0)
        goal = tl.where(from_below, scale.mass - target, target)
        stride = tl.where(by_maxima > 0, (num_granules + _SAMPLE_SIZE - 1) // _SAMPLE_SIZE, 1)
        x = _load_runs(
            tl.where(by_maxima > 0, granules, row.base),
            tl.where(by_maxima > 0, num_granules, row.vocab_size),
            tl.where(by_maxima > 0, stride * _SAMPLE_SIZE, row.vocab_size),
            stride,
            tl.where(by_maxima > 0, -1, -16),
        )
        is_finite = x > float("-inf")
        depth = max_logit - tl.min(tl.where(is_finite, x, max_logit), 0)
        depth = tl.maximum(
            tl.minimum(tl.minimum(1.0 / slope * WEIGHTLESS_LOG2, depth), _MAX_DEPTH), MIN_DEPTH
        )
        width = depth * _MARGIN / (_BINS - 1)
        # From the measured end; the last bin counts absent values.
        origin = tl.where(from_below, max_logit - depth, max_logit)
        step = tl.where(from_below, width, -width)
        bin_position = tl.minimum(tl.maximum((x - origin) * (1.0 / step), 0.0), _BINS - 2.0)
        b = tl.arange(0, _BINS)
        bin_counts = _count_by_bin(tl.where(is_finite, bin_position, _BINS - 1.0).to(tl.int32))
        bin_counts = tl.where(b < _BINS - 1, bin_counts, 0).to(tl.float32)
        middle = (b.to(tl.float32) + 0.5) * width
        below = tl.where(from_below, tl.maximum(depth - middle, 0.0), middle)
        weight = tl.where(by_mass, tl.exp2(-below * slope), 1.0)
        multiplicity = tl.zeros_like(weight) + row.vocab_size.to(tl.float32) * (1.0 / _SAMPLE_SIZE)
        num_hidden = multiplicity
        all_visible = tl.sum(bin_counts, 0)
        if by_maxima > 0:
            min_visible = tl.maximum(all_visible, 1.0)
            multiplicity = min_visible / tl.maximum(
                min_visible - tl.cumsum(bin_counts, 0) + 0.5 * bin_counts, 0.5
            )
            num_hidden = multiplicity - 1.0
        added = bin_counts * multiplicity * weight
        sum_before = tl.cumsum(added, 0) - added
        is_before_goal = sum_before < goal
        variance, visible_count = tl.reduce(
            (
                tl.where(is_before_goal, added * weight * num_hidden, 0.0),
                tl.where(is_before_goal, bin_counts, 0.0),
            ),
            0,
            _add_two,
        )
        is_open = by_maxima * (visible_count > all_visible * _MAX_VISIBLE_SHARE).to(tl.int32)
        if is_open == 0:
            error = tl.sqrt(tl.maximum(variance, 0.0)) * tl.where(from_below, 1.0, -1.0)
            one_over = 1.0 / tl.maximum(added, MIN_DEPTH)
            d0, d1, d2, d3 = tl.reduce(
                (
                    _share_before(goal + error * _OUTER_STANDARD_ERRORS, sum_before, one_over),
                    _share_before(goal + error * _INNER_STANDARD_ERRORS, sum_before, one_over),
                    _share_before(goal - error * _INNER_STANDARD_ERRORS, sum_before, one_over),
                    _share_before(goal - error * _OUTER_STANDARD_ERRORS, sum_before, one_over),
                ),
                0,
                _add_four,
            )
            bottom = tl.maximum(lower_limit, max_logit - depth)
            guess = PerPivot(
                tl.minimum(tl.maximum(origin + d0 * step, bottom), max_logit),
                tl.minimum(tl.maximum(origin + d1 * step, bottom), max_logit),
                tl.minimum(tl.maximum(origin + d2 * step, bottom), max_logit),
                tl.minimum(tl.maximum(origin + d3 * step, bottom), max_logit),
            )
            write_pivots(reals, _snap_pivots(x, guess, bottom, ULP_STEP), lower_limit, max_logit, ULP_STEP)
        by_maxima *= 0


@triton.jit
def _least_and_largest(least_a, largest_a, least_b, largest_b):
    return tl.minimum(least_a, least_b), tl.maximum(largest_a, largest_b)


@triton.jit
def _snap_pivots(x, pivots, lower_limit, ULP_STEP: tl.constexpr):
    """Move the two inner pivots around a value that occurs several times, so that they decide its ties.

    The value is the only sampled one between the two pivots; without one, the nearest sampled value.
    """
    p1, p2 = pivots.p1, pivots.p2
    # The least and the largest value between the two pivots; without any, the neighbours of the pivots.
    above, below = tl.reduce(
        (tl.where(x >= p2, x, float("inf")), tl.where(x < p1, x, float("-inf"))), 0, _least_and_largest
    )
    is_empty = above >= p1
    below = tl.where(below >= lower_limit, below, float("-inf"))
    value = tl.where(is_empty & (p2 - below <= above - p1), below, above)
    is_tied = (tl.sum((x == value).to(tl.int32), 0) > 1).to(tl.int32)
    is_tied *= (tl.abs(value) < float("inf")).to(tl.int32)
    is_tied *= (is_empty.to(tl.int32) + (above == below).to(tl.int32) > 0).to(tl.int32)
    low = tl.where(is_tied > 0, value, p2)
    high = tl.where(is_tied > 0, value_of(key_of(tl.where(is_tied > 0, value, 0.0)) + ULP_STEP), p1)
    return PerPivot(tl.maximum(pivots.p0, high), high, low, tl.minimum(pivots.p3, low))


# Begins the draw of a large set: writes the state of the row, with the pivots of its first pass.
#
# Reads what the first pivots read, writes 192 bytes a row: all that launch 3 needs.

MOST_EXPECTED = MAX_COLLECTED
"""Most logits of a row that is collected, as the maxima or a sample say: the room of its list."""
_GRANULES_AT_ONCE = tl.constexpr(1024)
"""Granules compared at once."""
_MORE_STANDARD_ERRORS = tl.constexpr(0.67)
"""Distance of the least collected value below the last pivot, in distances of the last two pivots: 3 standard errors
each where the guess is none of a tied value."""


@triton.jit
def _expected_number(granules, num_granules, bound):
    """Return about how many logits reach a bound: each of the granules without one is as likely for any of them."""
    number = tl.full((), 0, tl.int32)
    num_reached = tl.full((), 0, tl.int32)
    start = 0
    while start < num_granules:
        g = start + tl.arange(0, _GRANULES_AT_ONCE)
        x = tl.load(granules + g, mask=g < num_granules, other=float("-inf")).to(tl.float32)
        part, part_reached = tl.reduce(
            ((x > float("-inf")).to(tl.int32), (x >= bound).to(tl.int32)), 0, _add_two
        )
        number += part
        num_reached += part_reached
        start += _GRANULES_AT_ONCE
    share_left = (number - num_reached).to(tl.float32) / number.to(tl.float32)
    return number.to(tl.float32) * -tl.log(tl.maximum(share_left, 1e-9))


@triton.jit(noinline=True)
def announce_first_pass(
    source,
    granules,
    num_granules,
    row,
    bound,
    scale,
    filters,
    has_nan,
    by_maxima,
    key,
    work,
    ULP_STEP: tl.constexpr,
):
    """Write the state of a row, and announce its first pass.

    :param granules: [num_granules] the row's maxima; ``row`` its number, ``work`` :class:`LargeWork` of all rows.
    :param bound: a proven bound, or -inf; a bound equal to the largest logit is the threshold.
    :param by_maxima: whether to guess from the maxima of granules, where top-p alone filters.
    """
    reals = work.state.reals + row.to(tl.int64) * STATE_REALS
    ints = work.state.ints + row.to(tl.int64) * STATE_INTS
    k, p, max_logit = filters.k, filters.p, scale.max_logit
    low = tl.maximum(filters.floor, LOWEST)
    is_collected = (source.vocab_size <= MAX_EXPECTED).to(tl.int32)
    if k > 0:
        # Few granules of a large vocabulary without a logit that reaches the bound: too many logits reach it.
        number = num_granules.to(tl.float32)
        max_count = (number * (1.0 - tl.exp(-1.0 / number * MAX_EXPECTED))).to(tl.int32)
        proven_bound = bound_by_granules(
            granules, num_granules, filters.floor, max_logit, k.to(tl.int32), max_count
        )
        is_collected = tl.maximum(is_collected, (proven_bound > float("-inf")).to(tl.int32))
        low = tl.maximum(low, tl.maximum(proven_bound, bound))
    goal = tl.full((), WEIGH_ONLY, tl.int32)
    if low < max_logit:
        if p < 1:
            if k > 0:
                goal = tl.where(filters.joint, FIND_LARGER, KTH_THEN_NUCLEUS)
            else:
                has_floor = (filters.floor > float("-inf")) & (filters.joint == 0)
                goal = tl.where(has_floor, FLOOR_THEN_NUCLEUS, FIND_NUCLEUS)
        elif k > 0:
            goal = tl.full((), FIND_KTH, tl.int32)
    target = (p * scale.mass.to(tl.float64)).to(tl.float32)
    least = low
    is_given = (goal == WEIGH_ONLY) | (goal == FLOOR_THEN_NUCLEUS)
    if is_given.to(tl.int32) + is_collected > 0:
        step = tl.where(is_given, 0.0, 0.25) * (max_logit - low)
        pivots = PerPivot(low + step * 3, low + step * 2, low + step, low)
        write_pivots(reals, pivots, low, max_logit, ULP_STEP)
    else:
        by_mass = goal == FIND_NUCLEUS
        goal_amount = tl.where(by_mass, target, k.to(tl.float32))
        by_maxima = by_mass & by_maxima
        begin_pivots(
            source, granules, num_granules, scale, low, goal_amount, by_mass, by_maxima, reals, ULP_STEP
        )
        if by_maxima.to(tl.int32) + (k > 0).to(tl.int32) > 0:
            tl.debug_barrier()  # the pivots were written
            pivots = load_pivots(reals)
            least = pivots.p3
            if by_maxima:
                least -= (pivots.p2 - pivots.p3) * _MORE_STANDARD_ERRORS
            else:
                is_collected = (number_in_row(source, least) <= MOST_EXPECTED).to(tl.int32)
            least = tl.maximum(least, low)
    # A nucleus that a sample shows better than maxima is wide.
    is_likely = (k == 0) & ((goal != FIND_NUCLEUS) | by_maxima)
    if is_likely.to(tl.int32) * (is_collected == 0).to(tl.int32) > 0:
        # Two filters take a pass each, one alone hardly more than one.
        most = tl.where(goal == FLOOR_THEN_NUCLEUS, MAX_EXPECTED, MAX_EXPECTED // 4)
        is_collected = (_expected_number(granules, num_granules, least) <= most).to(tl.int32)
    share = p.to(tl.float32)
    tl.store(reals + LOWER_LIMIT, low)
    tl.store(reals + LOW, tl.where(is_collected > 0, least, low))
    tl.store(reals + HIGH, float("inf"))
    tl.store(reals + MAX_LOGIT, max_logit)
    tl.store(reals + SCALE, scale.scale)
    tl.store(reals + INVERSE, scale.inverse)
    tl.store(reals + MASS, scale.mass)
    tl.store(reals + TARGET_MIN, target)
    tl.store(reals + TARGET_MAX, target)
    tl.store(reals + P, share)
    tl.store(reals + P_REST, (p - share.to(tl.float64)).to(tl.float32))
    tl.store(ints + GOAL, tl.where(is_collected > 0, COLLECT_SET, goal))
    tl.store(ints + GOAL_BEFORE, goal)
    tl.store(ints + NUM_COLLECTED, 0)
    tl.store(ints + ROUND, 0)
    tl.store(ints + LOW_COLUMN, -1)
    tl.store(ints + HIGH_COLUMN, -1)
    tl.store(ints + SLOT, row * SLOTS)
    tl.store(ints + K, k.to(tl.int32))
    tl.store((ints + SEED).to(tl.pointer_type(tl.int64)), key.seed)
    tl.store((ints + POSITION).to(tl.pointer_type(tl.int64)), key.position)
    tl.store(ints + IS_EXTREME, has_nan.to(tl.int32) + (steady(max_logit, scale.scale) == 0).to(tl.int32))
    tl.store(work.queue.arrivals + row, 0)
    announce_row(work.queue, row)


# Guesses the threshold again, once passes have left a bracket: four pivots inside the bracket for the next pass.

_NEAR_SHARE = tl.constexpr(0.03)
_FAR_SHARE = tl.constexpr(0.15)
"""Distances of the pivots from the interpolated point, as shares of the bracket."""
_MAX_LINEAR_SHARE = tl.constexpr(0.3)
"""Above this share of the target mass inside the bracket, linear interpolation is too inaccurate."""
_UPPER_PIVOT_SHARE = tl.constexpr(0.75)
_LOWER_PIVOT_SHARE = tl.constexpr(0.25)
"""Shares of the rest of the bracket from the interpolated point to the pivots, if interpolation is inaccurate."""
_MIN_RELATIVE_STEP = tl.constexpr(1e-6)
"""The least distance of pivots towards an open end, relative to the largest logit."""


@triton.jit
def _roundest_between(low, high, ULP_STEP: tl.constexpr):
    """Return the value between ``low`` and ``high`` with the fewest bits.

    Logits computed in half precision are round: if a bracket holds a single one of their values, it is this value.
    """
    low_key, high_key = key_of(low) + ULP_STEP, key_of(high) - ULP_STEP
    is_mirrored = high_key < 0
    lower, upper = tl.where(is_mirrored, ~high_key, low_key), tl.where(is_mirrored, ~low_key, high_key)
    differ = tl.where(lower > 0, (lower - 1) ^ upper, upper)
    for shift in tl.static_range(5):
        differ |= differ >> (1 << shift)
    roundest = tl.where(lower < 0, 0, upper & ~(differ >> 1))
    return value_of(tl.where(is_mirrored, ~roundest, roundest))


@triton.jit
def only_value(x, low, high):
    """Return the value of the sampled logits in [low, high) if all are equal; otherwise infinity."""
    inside = (x >= low) & (x < high)
    first, last = tl.reduce(
        (tl.where(inside, x, float("inf")), tl.where(inside, x, float("-inf"))), 0, _least_and_largest
    )
    return tl.where(first == last, first, float("inf"))


@triton.jit
def next_pivots(
    bracket, at_low, at_high, target, scale, width, tied_value, is_second, ULP_STEP: tl.constexpr
):
    """Return four pivots inside a bracket, or towards its open end.

    Two pivots lie around the point where a straight line meets the target. The other two lie around a value with many
    ties, since no other pivots would separate these; or, in the second pass, further away.

    :param at_low: weight of the row, or its number of logits, from the low end upwards; ``at_high`` from the high end.
    :param width: the distance from the first to the last pivot of the previous pass.
    :param tied_value: the only sampled value in the bracket; infinity if there is none.
    """
    low, high, max_logit = bracket.low, bracket.high, scale.max_logit
    reach = tl.maximum(width, tl.abs(max_logit) * _MIN_RELATIVE_STEP)
    is_tied = tied_value < float("inf")
    is_bracketed = (bracket.low_column >= 0) & (bracket.high_column >= 0)
    shared_value = tl.where(is_tied, tied_value, _roundest_between(low, high, ULP_STEP))
    if is_bracketed:
        slope = tl.where(scale.scale < 0, LARGEST, scale.scale)
        base = tl.maximum(low, tl.minimum(max_logit - 1.0 / slope * WEIGHTLESS_LOG2, high))
        gap = high - base
        inside_bracket = at_low - at_high
        inner = gap * tl.minimum(
            tl.maximum((at_low - target) / tl.maximum(inside_bracket, MIN_DEPTH), 0.0), 1.0
        )
        is_wide = inside_bracket > target * _MAX_LINEAR_SHARE
        above = base + tl.where(
            is_wide, inner + (gap - inner) * _UPPER_PIVOT_SHARE, inner + _NEAR_SHARE * gap
        )
        below = base + tl.where(
            is_wide, inner + (gap - inner) * _LOWER_PIVOT_SHARE, inner - _NEAR_SHARE * gap
        )
        is_far = is_second & (is_tied == 0) & (is_wide == 0)
        upper = tl.where(is_far, base + inner + _FAR_SHARE * gap, value_of(key_of(shared_value) + ULP_STEP))
        lower = tl.where(is_far, base + inner - _FAR_SHARE * gap, shared_value)
    else:
        is_above = bracket.high_column < 0
        above = tl.where(is_above, low + 4.0 * reach, high - reach)
        below = tl.where(is_above, low + reach, high - 16.0 * reach)
        upper = tl.where(is_above, max_logit, high - 4.0 * reach)
        lower = tl.minimum(tl.where(is_above, low + 16.0 * reach, low), upper)
        upper = tl.where(is_tied, value_of(key_of(shared_value) + ULP_STEP), upper)
        lower = tl.where(is_tied, shared_value, lower)
    p0, p3 = tl.maximum(above, upper), tl.minimum(below, lower)
    a, b = tl.minimum(above, upper), tl.maximum(below, lower)
    return PerPivot(p0, tl.maximum(a, b), tl.minimum(a, b), p3)


@triton.jit
def _even_pivots(bracket, max_logit):
    """Return four pivots that divide a bracket evenly in the order of the floats: whatever its values, to a fifth."""
    low_key = key_of(tl.maximum(bracket.low, LOWEST)).to(tl.int64)
    steps = key_of(tl.minimum(bracket.high, max_logit)).to(tl.int64) - low_key
    p0, p1 = (low_key + (4 * steps + 4) // 5).to(tl.int32), (low_key + (3 * steps + 4) // 5).to(tl.int32)
    p2, p3 = (low_key + (2 * steps + 4) // 5).to(tl.int32), (low_key + (steps + 4) // 5).to(tl.int32)
    # Of a low end that was not weighed nothing is known.
    lowest = tl.where(bracket.low_column >= 0, value_of(p3), bracket.low)
    return PerPivot(value_of(p0), value_of(p1), value_of(p2), lowest)


# Chooses the goal of the next pass over a row: the nucleus after another filter, a narrower bracket, or its logits.


@triton.jit
def may_collect(row, bracket, TILES: tl.constexpr):
    """Return whether the logits of a bracket fit the buffer, by the bracket's mass and its lightest logit."""
    mass_inside = row_sum(row, bracket.low_column, 0, TILES)
    mass_inside -= row_sum(row, bracket.high_column, 0, TILES)
    lightest = weigh(bracket.low, tl.load(row.reals + MAX_LOGIT), tl.load(row.reals + SCALE))
    return (mass_inside <= lightest * MAX_EXPECTED).to(tl.int32)


@triton.jit
def _scale_of(reals):
    return RowScale(
        tl.load(reals + MAX_LOGIT), tl.load(reals + SCALE), tl.load(reals + INVERSE), tl.load(reals + MASS)
    )


@triton.jit
def start_nucleus(row, bracket, is_exact, goal, config: tl.constexpr):
    """Start the search for the nucleus of what another filter leaves: write its target mass and first pivots.

    :param bracket: of the k-th value, or of the floor; ``is_exact`` whether the low end equals it.
    """
    TILES: tl.constexpr = config.TILES
    reals = row.reals
    tl.store(reals + KTH_LOW, bracket.low)
    p = tl.load(reals + P).to(tl.float64) + tl.load(reals + P_REST).to(tl.float64)
    heaviest = row_sum(row, bracket.low_column, 0, TILES)
    lightest = tl.where(is_exact > 0, heaviest, row_sum(row, bracket.high_column, 0, TILES))
    target_max = (p * heaviest.to(tl.float64)).to(tl.float32)
    target_min = (p * lightest.to(tl.float64)).to(tl.float32)
    tl.store(reals + TARGET_MIN, target_min)
    tl.store(reals + TARGET_MAX, target_max)
    target = target_min * 0.5 + target_max * 0.5
    scale = _scale_of(reals)
    by_mass, by_maxima = goal != FIND_NUCLEUS, goal == FIND_NUCLEUS
    num_granules = row.tiles * GRANULES_PER_TILE
    begin_pivots(
        row.source,
        row.granules,
        num_granules,
        scale,
        bracket.low,
        target,
        by_mass,
        by_maxima,
        reals,
        config.ULP_STEP,
    )


@triton.jit
def place_pivots(row, bracket, goal, num_passes, config: tl.constexpr):
    """Write four pivots inside the bracket, behind ``num_passes`` passes."""
    TILES: tl.constexpr = config.TILES
    reals, ints = row.reals, row.ints
    offset = tl.where((goal == FIND_KTH) | (goal == KTH_THEN_NUCLEUS), COUNT_COLUMN, 0)
    at_low = row_sum(row, bracket.low_column, offset, TILES)
    at_low = tl.where((bracket.low_column >= 0) | (offset > 0), at_low, tl.load(reals + MASS))
    at_high = row_sum(row, bracket.high_column, offset, TILES)
    mass = tl.load(reals + TARGET_MIN) * 0.5 + tl.load(reals + TARGET_MAX) * 0.5
    target = tl.where(offset > 0, tl.load(ints + K).to(tl.float32), mass)
    scale = _scale_of(reals)
    pivots = load_pivots(reals)
    if num_passes < MOST_GUESSES:
        tied_value = only_value(load_sample(row.source), bracket.low, bracket.high)
        width = pivots.p0 - pivots.p3
        pivots = next_pivots(
            bracket, at_low, at_high, target, scale, width, tied_value, num_passes == 1, config.ULP_STEP
        )
    else:
        pivots = _even_pivots(bracket, scale.max_logit)
    # Neither end again: pivots at the ends would never divide two neighbouring values.
    lowest = value_of(key_of(bracket.low) + config.ULP_STEP)
    lowest = tl.where(bracket.low_column >= 0, lowest, bracket.low)
    highest = value_of(key_of(bracket.high) - config.ULP_STEP)
    highest = tl.where(bracket.high_column >= 0, highest, scale.max_logit)
    write_pivots(reals, pivots, lowest, highest, config.ULP_STEP)


# Finds the edge among listed values: the largest value from which upwards they weigh, or are, a target.
#
# Reads the values some ten times. Amounts are integers: of a weight, units of 2 ** -34, so that the order
# of the list changes no sum. A search compares all values with 3 pivots at a time, until one value is left.

_LISTED_AT_ONCE = tl.constexpr(512)
"""Values compared at once: few, since a short loop takes less time than long code that runs once. A turn costs 0.7 us,
whether it compares 300 values or 2,000: sums of int64 over a program are five rounds of shuffles of six words."""
UNITS = tl.constexpr(2.0**34)
"""Units in the weight of the largest logit."""
_COUNT_BITS = tl.constexpr(14)
"""Lower bits of a sum that hold the number of values; the units are above them."""
_COUNT_MASK = tl.constexpr((1 << 14) - 1)


@triton.jit
def missing_amount(target, above, by_mass):
    """Return what ``above`` lacks of ``target``, float32 or float64 both, as an amount: units or numbers, int64."""
    # For the int64 alone, and only here, behind the subtraction: a list weighs at most its room, so it does not reach
    # twice that, cut or not. A target itself must not be cut: p of a huge mass may well be within a list.
    missing = tl.minimum(target.to(tl.float64) - above.to(tl.float64), 2.0 * MAX_COLLECTED)
    missing = tl.ceil(missing * tl.where(by_mass > 0, UNITS, 1.0)).to(tl.int64)
    # Sums of the same weights in two orders: nothing may seem to be missing.
    return tl.maximum(missing, 1)


@triton.jit
def _load_packed(values, i, count, max_logit, scale):
    """Return (values [N] at the indices i, -inf beyond ``count``; their units, with 1 in the lower bits)."""
    x = tl.load(values + i, mask=i < count, other=float("-inf"))
    return x, ((weigh(x, max_logit, scale) * UNITS).to(tl.int64) << _COUNT_BITS) + 1


@triton.jit
def least_and_total(least_a, total_a, least_b, total_b):
    return tl.minimum(least_a, least_b), total_a + total_b


@triton.jit
def _add_three(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit(noinline=True)
def survey_from(values, count, bound, max_logit, scale):
    """Return (the least value that reaches ``bound``, +inf without any; the units of all that do; their number)."""
    least = tl.full((_LISTED_AT_ONCE,), float("inf"), tl.float32)
    total = tl.zeros((_LISTED_AT_ONCE,), tl.int64)
    start = 0
    while start < count:
        x, packed = _load_packed(values, start + tl.arange(0, _LISTED_AT_ONCE), count, max_logit, scale)
        is_above = (x >= bound) & (x > float("-inf"))
        least = tl.minimum(least, tl.where(is_above, x, float("inf")))
        total += tl.where(is_above, packed, 0)
        start += _LISTED_AT_ONCE
    lowest, amount = tl.reduce((least, total), 0, least_and_total)
    return lowest, amount >> _COUNT_BITS, (amount & _COUNT_MASK).to(tl.int32)


@triton.jit
def _weigh_from(values, count, pivot_0, pivot_1, pivot_2, max_logit, scale, BY_MASS: tl.constexpr):
    """Return (the amounts from each of three pivots upwards, int64; the numbers, int32)."""
    # Numbers alone are half as wide: with weights, k = 2,000 and more of 256 rows took up to 8 % longer on an H200.
    above_0 = tl.zeros((_LISTED_AT_ONCE,), tl.int64 if BY_MASS else tl.int32)
    above_1, above_2 = above_0, above_0
    start = 0
    while start < count:
        x, packed = _load_packed(values, start + tl.arange(0, _LISTED_AT_ONCE), count, max_logit, scale)
        above_0 += tl.where(x >= pivot_0, packed if BY_MASS else 1, 0)
        above_1 += tl.where(x >= pivot_1, packed if BY_MASS else 1, 0)
        above_2 += tl.where(x >= pivot_2, packed if BY_MASS else 1, 0)
        start += _LISTED_AT_ONCE
    sum_0, sum_1, sum_2 = tl.reduce((above_0, above_1, above_2), 0, _add_three)
    shift: tl.constexpr = _COUNT_BITS if BY_MASS else 0
    return (
        sum_0.to(tl.int64) >> shift,
        sum_1.to(tl.int64) >> shift,
        sum_2.to(tl.int64) >> shift,
        (sum_0 & _COUNT_MASK).to(tl.int32),
        (sum_1 & _COUNT_MASK).to(tl.int32),
        (sum_2 & _COUNT_MASK).to(tl.int32),
    )


@triton.jit(noinline=True)
def find_edge(values, count, low, target, by_mass, max_logit, scale, ULP_STEP: tl.constexpr):
    """Return (the largest value from which upwards the amount reaches ``target``; the units from there; their number).

    :param low: no value is below it; the least value is returned if the amount of all does not reach the target.
    :param target: an amount, int64: units if ``by_mass`` is above 0, otherwise a number.
    """
    SHIFT: tl.constexpr = 16 if ULP_STEP > 1 else 0
    low_key = key_of(tl.maximum(low, LOWEST)).to(tl.int64)
    num_steps = (key_of(max_logit).to(tl.int64) - low_key >> SHIFT) + 1
    number_low = count
    number_high = tl.full((), 0, tl.int32)
    while (num_steps > 1) & (number_low - number_high > 1):
        step_0, step_1, step_2 = num_steps + 3 >> 2, num_steps >> 1, num_steps * 3 >> 2
        pivot_0 = value_of((low_key + (step_0 << SHIFT)).to(tl.int32))
        pivot_1 = value_of((low_key + (step_1 << SHIFT)).to(tl.int32))
        pivot_2 = value_of((low_key + (step_2 << SHIFT)).to(tl.int32))
        if by_mass > 0:
            amount_0, amount_1, amount_2, number_0, number_1, number_2 = _weigh_from(
                values, count, pivot_0, pivot_1, pivot_2, max_logit, scale, True
            )
        else:
            amount_0, amount_1, amount_2, number_0, number_1, number_2 = _weigh_from(
                values, count, pivot_0, pivot_1, pivot_2, max_logit, scale, False
            )
        # The amounts descend: the bracket ends at the first pivot that does not reach the target.
        if amount_2 >= target:
            number_low = number_2
            low_key += step_2 << SHIFT
            num_steps -= step_2
        elif amount_1 >= target:
            number_low, number_high = number_1, number_2
            low_key += step_1 << SHIFT
            num_steps = step_2 - step_1
        elif amount_0 >= target:
            number_low, number_high = number_0, number_1
            low_key += step_0 << SHIFT
            num_steps = step_1 - step_0
        else:
            number_high = number_0
            num_steps = step_0
    return survey_from(values, count, value_of(low_key.to(tl.int32)), max_logit, scale)


# Finds the threshold of a row among its collected logits.
#
# Reads at most 8192 ids and their logits, which it copies, and then the copy some ten times; one program does it.
# Sums of weights are integers, in units of 2 ** -48: the order of the list, which differs from run to run, changes
# none of them. A set that is too large for the list, or that begins below it, is left to passes that weigh.

_TILE_UNITS = tl.constexpr(2.0**48)
"""Units in the weight of the largest logit, of the weights of tiles: sums of integers do not depend on the order."""


@triton.jit(noinline=True)
def copy_logits(base, collected, count, values):
    """Write the ``count`` collected logits as float32 to ``values``."""
    start = 0
    while start < count:
        i = start + tl.arange(0, _LISTED_AT_ONCE)
        token = tl.load(collected + i, mask=i < count, other=0)
        tl.store(values + i, tl.load(base + token, mask=i < count).to(tl.float32), mask=i < count)
        start += _LISTED_AT_ONCE
    tl.debug_barrier()  # the copy is read by other threads


@triton.jit
def find_set_threshold(row, values, count, ULP_STEP: tl.constexpr):
    """Return (the threshold of a row; whether the collected logits contain the kept set)."""
    reals, ints = row.reals, row.ints
    max_logit, scale = tl.load(reals + MAX_LOGIT), tl.load(reals + SCALE)
    goal = tl.load(ints + GOAL_BEFORE)
    k = tl.load(ints + K)
    is_guess = (tl.load(reals + LOW) > tl.load(reals + LOWER_LIMIT)).to(tl.int32)
    is_kth = ((goal == FIND_KTH) | (goal == KTH_THEN_NUCLEUS)).to(tl.int32)
    is_larger = (goal == FIND_LARGER).to(tl.int32)
    threshold = tl.load(reals + LOW)
    # Without a filter that ends above the list, its low end is the threshold.
    is_found = 1 - is_guess
    is_too_short = is_kth * is_guess * (count < k).to(tl.int32)
    total = tl.full((), 0, tl.int64)
    if (is_kth + is_larger) * (count >= k).to(tl.int32) > 0:
        by_mass = tl.full((), 0, tl.int32)
        threshold, total, _ = find_edge(
            values, count, threshold, k.to(tl.int64), by_mass, max_logit, scale, ULP_STEP
        )
        is_found = tl.full((), 1, tl.int32)
    else:
        _, total, _ = survey_from(values, count, threshold, max_logit, scale)
    if (goal == FIND_NUCLEUS) | (goal == KTH_THEN_NUCLEUS) | (goal == FLOOR_THEN_NUCLEUS) | (is_larger > 0):
        mass = total.to(tl.float64)
        if (goal == FIND_NUCLEUS) | (goal == FIND_LARGER):
            # The row's whole mass, not only what a list could hold: p of it may still be within the list. At most
            # 2 ** 21 ids weigh 2 ** 55 units, which an int64 holds.
            mass = tl.load(reals + MASS).to(tl.float64) * UNITS
        p = tl.load(reals + P).to(tl.float64) + tl.load(reals + P_REST).to(tl.float64)
        target = tl.ceil(p * mass).to(tl.int64)
        if (total >= target).to(tl.int32) * (1 - is_too_short) > 0:
            by_mass = tl.full((), 1, tl.int32)
            edge, kept, _ = find_edge(values, count, threshold, target, by_mass, max_logit, scale, ULP_STEP)
            least_mass = tl.load(reals + TARGET_MIN).to(tl.float64) * (UNITS * NEARLY_ONE)
            tl.device_assert(
                (goal != FIND_NUCLEUS) | (kept.to(tl.float64) >= least_mass), "a nucleus of less than p"
            )
            threshold = tl.maximum(threshold, edge)
            is_found = tl.full((), 1, tl.int32)
        elif (is_larger == 0).to(tl.int32) * is_guess > 0:
            is_found = tl.full((), 0, tl.int32)
    return tl.minimum(threshold, max_logit), is_found


@triton.jit(noinline=True)
def weigh_listed_tiles(row, values, count, threshold, slot, high_column, TILES: tl.constexpr):
    """Write the weight of each tile from the threshold upwards into the first column of a slot.

    :param values: the ``count`` collected logits; ``high_column`` is that of the weights above them, or -1.
    :param slot: its units are 0.
    """
    tiles = row.tiles
    max_logit, scale = tl.load(row.reals + MAX_LOGIT), tl.load(row.reals + SCALE)
    weights = row.columns + slot.to(tl.int64) * tiles * COLUMNS
    units = weights.to(tl.pointer_type(tl.int64)) + UNIT_COLUMN
    start = 0
    while start < count:
        i = start + tl.arange(0, _LISTED_AT_ONCE)
        x = tl.load(values + i, mask=i < count, other=float("-inf"))
        tile = tl.load(row.collected + i, mask=i < count, other=0) // TILE_SIZE
        amount = (weigh(x, max_logit, scale) * _TILE_UNITS).to(tl.int64)
        tl.atomic_add(
            units + tile * (COLUMNS // 2), amount, mask=(i < count) & (x >= threshold), sem="relaxed"
        )
        start += _LISTED_AT_ONCE
    tl.debug_barrier()  # all threads have added; the sums are read past the L1
    tile = tl.arange(0, TILES)
    inside = tile < tiles
    total = (
        tl.load(units + tile * (COLUMNS // 2), mask=inside, other=0, volatile=True).to(tl.float32)
        / _TILE_UNITS
    )
    tl.store(
        weights + tile * COLUMNS,
        load_column(row.columns, high_column, tiles, TILES) + total,
        mask=inside,
    )
    tl.debug_barrier()  # the weights are read by other threads


@triton.jit(noinline=True)
def find_in_bracket(row, goal, is_known, scratch, config: tl.constexpr):
    """Find the threshold among the collected logits of its bracket.

    Returns (the threshold; the mass from there upwards; whether the list held all). Unless the token is known, writes
    the weight of each tile from the threshold upwards into the first column of the row's slot, and the number of logits
    into the first of its counts.

    :param goal: of the search: the mass of the bracket's nucleus, or else its k-th value.
    :param scratch: [MAX_COLLECTED] float32.
    """
    tiles, reals, ints = row.tiles, row.reals, row.ints
    count = tl.load(ints + NUM_COLLECTED)
    fits = (count <= MAX_COLLECTED).to(tl.int32)
    threshold = tl.load(reals + LOW)
    kept_mass = tl.full((), 0.0, tl.float32)
    if fits > 0:
        copy_logits(row.source.base, row.collected, count, scratch)
        max_logit, scale = tl.load(reals + MAX_LOGIT), tl.load(reals + SCALE)
        high_column = tl.load(ints + HIGH_COLUMN)
        mass_above = row_sum(row, high_column, 0, config.TILES)
        number_above = row_sum(row, high_column, COUNT_COLUMN, config.TILES)
        by_mass = (goal == FIND_NUCLEUS).to(tl.int32)
        target = tl.where(by_mass > 0, tl.load(reals + TARGET_MAX), tl.load(ints + K).to(tl.float32))
        missing = missing_amount(target, tl.where(by_mass > 0, mass_above, number_above), by_mass)
        threshold, mass, number = find_edge(
            scratch, count, threshold, missing, by_mass, max_logit, scale, config.ULP_STEP
        )
        kept_mass = (mass_above.to(tl.float64) + mass.to(tl.float64) / UNITS).to(tl.float32)
        is_enough = (by_mass == 0) | (kept_mass >= target * NEARLY_ONE)
        tl.device_assert(is_enough, "a nucleus of less than p")
        if is_known == 0:
            slot = tl.load(ints + SLOT)
            weigh_listed_tiles(row, scratch, count, threshold, slot, high_column, config.TILES)
            tile = tl.arange(0, config.TILES)
            numbers = row.columns + slot.to(tl.int64) * tiles * COLUMNS + COUNT_COLUMN
            tl.store(
                numbers + tile * COLUMNS,
                tl.where(tile == 0, number_above + number.to(tl.float32), 0.0),
                mask=tile < tiles,
            )
            tl.debug_barrier()  # the numbers are read by other threads
    return threshold, kept_mass, fits
