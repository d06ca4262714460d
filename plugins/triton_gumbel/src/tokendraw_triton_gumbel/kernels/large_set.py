"""The launch that draws from kept sets with many tokens, of the rows that the draw announced.

ptxas lays out functions that are not inlined in the order of their names, that of the module first, and code behind the
first 75 KB waited for its instructions for 50 to 95 % of its time where 64 multiprocessors or more ran it. So what most
rows pass through stands here, before :mod:`.large_set_passes`, or has a name that sorts before the rest, as
``begin_pivots``. Another order of the same instructions took 2 to 7 % longer for wide nuclei of bfloat16 on an H100.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels import large_set_passes as passes
from tokendraw_triton_gumbel.kernels.large_set_passes import (
    MAX_COLLECTED,  # the room of scratch: a test has kernels fill less of it
    LargeRow,
    PassResults,
    PerPivot,
    announce_pass,
    arrive,
    await_pass,
    copy_logits,
    counts_logits,
    draw_ticket,
    find_in_bracket,
    find_set_threshold,
    finish_row,
    four_sums,
    free_slot,
    load_column,
    load_pivots,
    may_collect,
    pass_over_part,
    place_pivots,
    row_sum,
    start_nucleus,
    survey_from,
    weigh_listed_tiles,
)
from tokendraw_triton_gumbel.kernels.rows import (
    EXACT,
    LEAST_KEPT,
    MANY_EXACT,
    ROW_EXACT,
    DraftRows,
    DrawResults,
    NoiseKey,
    gumbel,
    row_logits,
    streams_of,
)
from tokendraw_triton_gumbel.kernels.tile_pass import TileLaunches
from tokendraw_triton_gumbel.kernels.values import (
    GRANULES_PER_TILE,
    TILE_SIZE,
    key_of,
    least_kept,
    scaled,
    weigh,
)
from tokendraw_triton_gumbel.launch import DrawArguments, Launch, LaunchArguments, Step, group
from tokendraw_triton_gumbel.plan import PER_CALL, PER_PROGRAM, Scratch, Target, Variant


class LargeSetConfig(NamedTuple):
    """Constants of launch 3, the draw of large sets."""

    FP64: bool
    TILES: int
    EXACT_PARTS: int
    """Parts of a row in later passes if the flags say EXACT, at most 16."""
    WARPS: int
    """Warps of a program, and tiles read at once."""
    VECTOR: int
    IS_ALIGNED: bool
    """Whether every row begins at a multiple of 16 bytes."""
    ULP_STEP: int
    IS_NVIDIA: bool


# Bounds a row's threshold by a bracket, and narrows the bracket after each pass.
#
# That a tile weighs no less from a lower value upwards holds of the float32 sums of a pass, too: all pivots' sums of a
# tile add up in one order, where one has a weight another has it or 0, and rounding keeps the order.


class Bracket(NamedTuple):
    """The threshold is at least ``low`` and below ``high``."""

    low: Any
    high: Any
    low_column: Any
    """The column of the tiles' weights from ``low`` upwards, or -1."""
    high_column: Any


@triton.jit
def load_bracket(row):
    """Return the bracket of a row."""
    low, high = tl.load(row.reals + passes.LOW), tl.load(row.reals + passes.HIGH)
    return Bracket(low, high, tl.load(row.ints + passes.LOW_COLUMN), tl.load(row.ints + passes.HIGH_COLUMN))


@triton.jit
def store_bracket(row, low, high, low_column, high_column):
    """Write the bracket of a row."""
    tl.store(row.reals + passes.LOW, low)
    tl.store(row.reals + passes.HIGH, high)
    tl.store(row.ints + passes.LOW_COLUMN, low_column)
    tl.store(row.ints + passes.HIGH_COLUMN, high_column)


@triton.jit
def _judge(weight, number, target_min, target_max, k, goal, is_given):
    """Compare the weight or the count from a pivot upwards with the target: 1 enough, 0 too little, -1 undecided."""
    by_mass = tl.where(weight >= target_max, 1, tl.where(weight < target_min, 0, -1))
    by_count = (number >= k.to(tl.float32)).to(tl.int32)
    either = tl.maximum(by_mass, by_count)
    verdict = tl.where(
        goal == passes.FIND_NUCLEUS, by_mass, tl.where(goal == passes.FIND_LARGER, either, by_count)
    )
    return tl.where(is_given > 0, 1, verdict)


@triton.jit
def _narrow_bracket(bracket, pivots, verdicts, numbers, slot, is_weighing):
    """Return (the bracket after a pass; whether its low end moved; the count at the lowest pivot with enough).

    :param pivots: :class:`PerPivot`, like ``verdicts`` of :func:`_judge` and ``numbers`` of logits.
    :param is_weighing: 0 if the pass weighed nothing: the bracket stays.
    """
    e0, e1, e2, e3 = verdicts.p0, verdicts.p1, verdicts.p2, verdicts.p3
    column = tl.where(e0 > 0, 0, tl.where(e1 > 0, 1, tl.where(e2 > 0, 2, tl.where(e3 > 0, 3, -1))))
    lower = tl.where(e0 > 0, pivots.p0, tl.where(e1 > 0, pivots.p1, tl.where(e2 > 0, pivots.p2, pivots.p3)))
    count_at_low = tl.where(
        e0 > 0, numbers.p0, tl.where(e1 > 0, numbers.p1, tl.where(e2 > 0, numbers.p2, numbers.p3))
    )
    low_moved = is_weighing * ((column >= 0) & (lower >= bracket.low)).to(tl.int32)
    low_column = tl.where(low_moved > 0, slot * passes.COLUMNS + column, bracket.low_column)
    low = tl.where(low_moved > 0, lower, bracket.low)
    column = tl.where(e3 == 0, 3, tl.where(e2 == 0, 2, tl.where(e1 == 0, 1, tl.where(e0 == 0, 0, -1))))
    upper = tl.where(
        e3 == 0, pivots.p3, tl.where(e2 == 0, pivots.p2, tl.where(e1 == 0, pivots.p1, pivots.p0))
    )
    high_moved = is_weighing * ((column >= 0) & (upper <= bracket.high)).to(tl.int32)
    high_column = tl.where(high_moved > 0, slot * passes.COLUMNS + column, bracket.high_column)
    high = tl.where(high_moved > 0, upper, bracket.high)
    return Bracket(low, high, low_column, high_column), low_moved, count_at_low


@triton.jit
def bracket_after_pass(row, goal, is_weighing, config: tl.constexpr):
    """Return (the bracket after a pass; whether the threshold equals the low end).

    :param is_weighing: 0 if the pass collected.
    """
    TILES: tl.constexpr = config.TILES
    columns, tiles, reals, ints = row.columns, row.tiles, row.reals, row.ints
    slot = tl.load(ints + passes.SLOT)
    k = tl.load(ints + passes.K)
    pivots = load_pivots(reals)
    max_logit = tl.load(reals + passes.MAX_LOGIT)
    target_min = tl.load(reals + passes.TARGET_MIN)
    target_max = tl.load(reals + passes.TARGET_MAX)
    counts = counts_logits(goal).to(tl.int32)
    is_given = ((goal == passes.WEIGH_ONLY) | (goal == passes.FLOOR_THEN_NUCLEUS)).to(tl.int32)
    w0, w1, w2, w3 = four_sums(columns, slot, 0, tiles, TILES)
    n0, n1, n2, n3 = w0, w1, w2, w3
    if counts > 0:
        n0, n1, n2, n3 = four_sums(columns, slot, passes.COUNT_COLUMN, tiles, TILES)
    verdicts = PerPivot(
        _judge(w0, n0, target_min, target_max, k, goal, is_given),
        _judge(w1, n1, target_min, target_max, k, goal, is_given),
        _judge(w2, n2, target_min, target_max, k, goal, is_given),
        _judge(w3, n3, target_min, target_max, k, goal, is_given),
    )
    numbers = PerPivot(n0, n1, n2, n3)
    bracket, low_moved, count_at_low = _narrow_bracket(
        load_bracket(row), pivots, verdicts, numbers, slot, is_weighing
    )
    low, high, low_column = bracket.low, bracket.high, bracket.low_column
    exactly_k = low_moved * counts * (goal != passes.FIND_LARGER).to(tl.int32)
    exactly_k *= (count_at_low == k.to(tl.float32)).to(tl.int32)
    one_value = key_of(tl.minimum(low, max_logit)).to(tl.int64) + config.ULP_STEP >= key_of(high).to(tl.int64)
    is_exact = is_given + exactly_k + one_value.to(tl.int32) + (low >= max_logit).to(tl.int32)
    is_exact = ((is_exact > 0) & (low_column >= 0)).to(tl.int32)
    # Too little mass from the floor of the other filters upwards: the floor is the threshold.
    at_floor = ((bracket.high_column >= 0) & (high <= low)).to(tl.int32)
    low_column = tl.where(at_floor > 0, bracket.high_column, low_column)
    return Bracket(low, high, low_column, bracket.high_column), tl.maximum(is_exact, at_floor)


# Draws a row from the bracket of its threshold, if every threshold in the bracket gives the same token.
#
# Reads 8 bytes a tile, 8 or 16 more that passes wrote, and one tile of logits.
#
# For every threshold in the bracket, a tile weighs at most its weight from the low end upwards, and at least its
# weight from the high end upwards. A tile wins for sure if its lower bound beats the upper bounds of all other tiles;
# a token of this tile wins for sure if it reaches the high end and beats every logit from the low end upwards.


@triton.jit(noinline=True)
def draw_from_bracket(row, bracket, is_exact, flags, out, config: tl.constexpr):
    """Draw a row if its bracket decides the token, as it does where its low end is the threshold; return whether."""
    FP64: tl.constexpr = config.FP64
    source, tiles, reals, ints = row.source, row.tiles, row.reals, row.ints
    tile = tl.arange(0, config.TILES)
    inside = tile < tiles
    max_logit = tl.load(reals + passes.MAX_LOGIT)
    inverse = tl.load(reals + passes.INVERSE)
    seed = tl.load((ints + passes.SEED).to(tl.pointer_type(tl.int64)))
    position = tl.load((ints + passes.POSITION).to(tl.pointer_type(tl.int64)))
    key = NoiseKey(seed, position)
    upper_weight = load_column(row.columns, bracket.low_column, tiles, config.TILES)
    lower_weight = upper_weight
    if is_exact == 0:
        lower_weight = load_column(row.columns, bracket.high_column, tiles, config.TILES)
    if bracket.low_column < 0:
        maximum = tl.load(row.maxima + tile, mask=inside, other=float("-inf"))
        upper_weight = tl.abs(tl.load(row.sums + tile, mask=inside, other=0.0))
        upper_weight *= weigh(maximum, max_logit, tl.load(reals + passes.SCALE))
    is_nucleus = (tl.load(ints + passes.GOAL) == passes.FIND_NUCLEUS) & (
        bracket.low > tl.load(reals + passes.LOWER_LIMIT)
    )
    least_mass = tl.load(reals + passes.TARGET_MIN) * passes.NEARLY_ONE
    tl.device_assert((is_nucleus == 0) | (tl.sum(upper_weight, 0) >= least_mass), "a nucleus of less than p")
    of_token, of_tile = streams_of(flags)
    noise = gumbel(key, tile, of_tile, FP64)
    upper = _scores(upper_weight, noise)
    lower = _scores(lower_weight, noise)
    best_score, chosen = tl.max(lower, 0, return_indices=True)
    rival = tl.max(tl.where(tile == chosen, float("-inf"), upper), 0)
    decided = tl.maximum(is_exact, (best_score > rival).to(tl.int32))
    if decided > 0:
        members = chosen * TILE_SIZE + tl.arange(0, TILE_SIZE)
        x = tl.load(source.base + members, mask=members < source.vocab_size, other=float("-inf"))
        x = x.to(tl.float32)
        x = tl.where((x == x) & (x >= bracket.low), x, float("-inf"))
        score = scaled(x, max_logit, inverse, FP64) + gumbel(key, members, of_token, FP64)
        winner = chosen * TILE_SIZE + tl.argmax(score, 0)
        value = tl.load(source.base + winner).to(tl.float32)
        decided = tl.maximum(is_exact, (value >= bracket.high).to(tl.int32))
        if decided > 0:
            tl.store(out.token_ids, winner.to(tl.int64))
            if (flags & EXACT) != 0:
                tl.store(out.threshold, bracket.low)
                share = tl.sum(upper_weight, 0) / tl.load(reals + passes.MASS)
                tl.store(out.log_kept, tl.log(tl.minimum(share, 1.0)))
    return decided


@triton.jit
def _scores(weight, noise):
    has_weight = weight > 0
    return tl.where(
        has_weight, tl.log(tl.where(has_weight, weight, 1.0).to(noise.dtype)) + noise, float("-inf")
    )


# Decides, in the program that ends a pass over a row, how to continue: draw, or announce another pass.
#
# Reads 16 or 32 bytes a tile that the pass wrote, and what :mod:`.large_set_passes` reads; before another pass a sample
# of 2048 logits; of a pass that collected, the list.

_MIN_PASSES = tl.constexpr(2)
"""Passes before a nucleus is collected whose bracket does not decide the token: each narrows it to a tenth or less."""
_MAX_SET = tl.constexpr(7680)
"""Upper limit of logits from the bracket's low end upwards, for a list of all of them: in larger lists one program
searches for longer than passes take."""


@triton.jit(noinline=True)
def finish_pass(row, rows, scratch, queue, flags, out, config: tl.constexpr):
    """Draw the row if its bracket decides the token; otherwise announce another pass.

    The next pass collects the logits from the bracket's low end upwards if these are few and two filters end among
    them. It collects the logits in the bracket if these are few, and the threshold is needed: for another filter,
    because the flags ask for it, or because it decides the token.

    :param row: :class:`~.large_set_passes.LargeRow`; ``rows`` is the number of rows, and of first passes.
    :param scratch: [MAX_COLLECTED] float32.
    :param out: :class:`~.rows.DrawResults` of the row.
    """
    TILES: tl.constexpr = config.TILES
    reals, ints = row.reals, row.ints
    goal = tl.load(ints + passes.GOAL)
    is_weighing = (goal < passes.COLLECT_BRACKET).to(tl.int32)
    is_known = (goal == passes.COLLECT_THRESHOLD).to(tl.int32)
    goal = tl.where(is_weighing > 0, goal, tl.load(ints + passes.GOAL_BEFORE))
    num_passes = tl.load(ints + passes.ROUND) + 1
    bracket, is_exact = bracket_after_pass(row, goal, is_weighing, config)
    max_logit = tl.load(reals + passes.MAX_LOGIT)
    # Whether the filter that is searched for comes before the nucleus.
    precedes_nucleus = ((goal == passes.KTH_THEN_NUCLEUS) | (goal == passes.FLOOR_THEN_NUCLEUS)).to(tl.int32)
    is_drawn = tl.full((), 0, tl.int32)
    kept_mass = tl.full((), 0.0, tl.float32)
    is_ready = is_weighing * tl.where(
        precedes_nucleus > 0, is_exact * (bracket.low >= max_logit).to(tl.int32), 1
    )
    if is_weighing == 0:
        threshold, kept_mass, is_exact = find_in_bracket(row, goal, is_known, scratch, config)
        if is_exact > 0:
            column = tl.load(ints + passes.SLOT) * passes.COLUMNS
            bracket = Bracket(threshold, threshold, column, column)
        is_drawn = is_exact * is_known
        is_ready = is_exact * (1 - is_known) * (1 - precedes_nucleus)
    if num_passes == passes.ROUNDS:
        # Never reached, as :data:`~.large_set_passes.ROUNDS` says; the launch has to end in any case.
        is_exact = tl.full((), 1, tl.int32)
        is_ready = 1 - is_drawn
    if is_ready > 0:
        is_drawn = draw_from_bracket(row, bracket, is_exact, flags, out, config)
    if ((flags & EXACT) != 0).to(tl.int32) * (1 - is_weighing) * is_drawn > 0:
        tl.debug_barrier()  # the draw wrote the same from the weights of tiles, whose sum has other bits
        tl.store(out.threshold, bracket.low)
        tl.store(out.log_kept, tl.log(tl.minimum(kept_mass / tl.load(reals + passes.MASS), 1.0)))
    low, high, low_column, high_column = bracket.low, bracket.high, bracket.low_column, bracket.high_column
    # Whether the token is known, but not the threshold that the flags ask for. Which passes follow does not depend on
    # it: what a row keeps has the same bits under every seed.
    is_known = ((flags & EXACT) != 0).to(tl.int32) * is_weighing * is_drawn * (1 - is_exact)
    is_drawn -= is_known
    is_bracketed = ((low_column >= 0) & (high_column >= 0)).to(tl.int32)
    has_target = (tl.load(reals + passes.TARGET_MIN) == tl.load(reals + passes.TARGET_MAX)).to(tl.int32)
    is_collecting = tl.full((), 0, tl.int32)
    collecting_goal = tl.where(is_known > 0, passes.COLLECT_THRESHOLD, passes.COLLECT_BRACKET)
    if is_weighing * (1 - is_drawn) * (1 - is_exact) > 0:
        if counts_logits(goal):
            if low_column >= 0:
                num_kept = row_sum(row, low_column, passes.COUNT_COLUMN, TILES)
                if (goal != passes.FIND_KTH) & (num_kept <= _MAX_SET):
                    # One program finds the ends of both filters in the list of the entire set.
                    collecting_goal = tl.full((), passes.COLLECT_SET, tl.int32)
                    is_collecting = tl.full((), 1, tl.int32)
                elif goal != passes.FIND_LARGER:
                    num_inside = num_kept - row_sum(row, high_column, passes.COUNT_COLUMN, TILES)
                    is_collecting = (num_inside <= passes.MAX_COLLECTED).to(tl.int32)
        elif ((flags & EXACT) != 0) | (num_passes >= _MIN_PASSES):
            if is_bracketed * has_target > 0:
                is_collecting = may_collect(row, bracket, TILES)
    if is_drawn == 0:
        is_guessing = (num_passes < passes.MOST_GUESSES).to(tl.int32)
        is_nucleus_next = precedes_nucleus * (
            is_exact + is_bracketed * is_guessing * (num_passes > 1).to(tl.int32)
        )
        if is_collecting > 0:
            tl.store(ints + passes.GOAL_BEFORE, goal)
            tl.store(ints + passes.NUM_COLLECTED, 0)
            goal = collecting_goal
            if goal == passes.COLLECT_SET:
                tl.store(reals + passes.LOWER_LIMIT, low)
                high = tl.full((), float("inf"), tl.float32)
                high_column = tl.full((), -1, tl.int32)
        elif is_nucleus_next > 0:
            start_nucleus(row, bracket, is_exact, goal, config)
            goal = tl.full((), passes.FIND_NUCLEUS, tl.int32)
            high = tl.full((), float("inf"), tl.float32)
            high_column = tl.full((), -1, tl.int32)
        else:
            if (goal == passes.FIND_NUCLEUS).to(tl.int32) * (1 - has_target) * (1 - is_guessing) > 0:
                # No pivot between the two targets narrows the bracket: the k-th value comes first.
                goal = tl.full((), passes.KTH_THEN_NUCLEUS, tl.int32)
                low, high = tl.load(reals + passes.KTH_LOW), tl.full((), float("inf"), tl.float32)
                low_column = tl.full((), -1, tl.int32)
                high_column = low_column
            place_pivots(row, Bracket(low, high, low_column, high_column), goal, num_passes, config)
        store_bracket(row, low, high, low_column, high_column)
        tl.store(ints + passes.GOAL, goal)
        tl.store(ints + passes.ROUND, num_passes)
        tl.store(
            ints + passes.SLOT, free_slot(row.number.to(tl.int32) * passes.SLOTS, low_column, high_column)
        )
        announce_pass(queue, row.number.to(tl.int32), rows)
    elif (flags & LEAST_KEPT) != 0:
        tl.debug_barrier()  # the threshold was written
        is_value = 1 - is_weighing  # a threshold from a list is a logit, one from pivots perhaps not
        least = least_kept(row.source, row.maxima, row.tiles, tl.load(out.threshold), is_value)
        tl.store(out.least_kept, least)
    if is_drawn > 0:
        finish_row(queue)


@triton.jit(noinline=True)
def finish_collected_set(row, rows, scratch, queue, flags, out, config: tl.constexpr):
    """Draw the row if its kept set was collected; otherwise announce the pass that weighs around the first pivots.

    The parameters are those of :func:`finish_pass`.
    """
    reals, ints = row.reals, row.ints
    count = tl.load(ints + passes.NUM_COLLECTED)
    slot = tl.load(ints + passes.SLOT)
    threshold = tl.load(reals + passes.LOW)
    is_found = tl.full((), 0, tl.int32)
    if count <= passes.MAX_COLLECTED:
        copy_logits(row.source.base, row.collected, count, scratch)
        threshold, is_found = find_set_threshold(row, scratch, count, config.ULP_STEP)
    if is_found > 0:
        no_column = tl.full((), -1, tl.int32)
        weigh_listed_tiles(row, scratch, count, threshold, slot, no_column, config.TILES)
        bracket = Bracket(threshold, threshold, slot * passes.COLUMNS, slot * passes.COLUMNS)
        is_exact = tl.full((), 1, tl.int32)
        draw_from_bracket(row, bracket, is_exact, flags, out, config)
        if (flags & LEAST_KEPT) != 0:
            max_logit, scale = tl.load(reals + passes.MAX_LOGIT), tl.load(reals + passes.SCALE)
            least, _, _ = survey_from(scratch, count, threshold, max_logit, scale)
            tl.store(out.least_kept, least_kept(row.source, row.maxima, row.tiles, least, is_exact))
        finish_row(queue)
    else:
        # Of a first pass alone: a set that a later pass collects begins at LOWER_LIMIT and fits.
        tl.store(reals + passes.LOW, tl.load(reals + passes.LOWER_LIMIT))
        tl.store(ints + passes.GOAL, tl.load(ints + passes.GOAL_BEFORE))
        tl.store(ints + passes.ROUND, 1)
        announce_pass(queue, row.number.to(tl.int32), rows)


# Launch 3, the draw of rows that keep many tokens: many programs at once read each row about once more.
#
# A row with few logits above a proven or guessed bound is collected (:func:`finish_collected_set`): reads the granules
# that reach the bound. Of other rows reads every logit once, then one tile. Launch 2 has guessed four pivots around the
# threshold; the pass weighs every tile above each pivot (writes 16 bytes a tile, or 32), which proves a bracket. The
# bracket nearly always decides the draw. Otherwise a second pass has its pivots inside the bracket, and so on, until
# the bracket holds few logits, among which one program finds the threshold
# (:func:`~.large_set_passes.find_in_bracket`). After six passes pivots divide the bracket evenly in the order of the
# floats: it ends at one value, whatever the logits. Where top-p counts the mass that another filter leaves, passes for
# that filter come first; a bracket of the mass is enough for the nucleus too.
#
# Tickets hand out the work (:mod:`.large_set_passes`): first the parts of the first passes, then parts of later passes
# in the order of their announcement. Without a row to draw the launch ends at once.

_MIN_PARTS = tl.constexpr(2)
"""Least number of parts of a row: smaller parts shorten the wait for the last program."""


@triton.jit
def _parts_of(groups, parts):
    """Divide groups of tiles into about ``parts`` parts; return (groups a part, number of parts)."""
    span = (groups + parts - 1) // parts
    return span, (groups + span - 1) // span


@triton.jit(do_not_specialize=["counts", "flags"])
def draw_large_sets(
    logits,
    drafts,
    counts,
    statistics,
    flags,
    scratch,
    queue,
    state,
    results,
    out,
    config: tl.constexpr,
):
    """Each program draws tickets until none is left: reads its part of a pass; the last part finishes the pass.

    The groups are those of :func:`~.row_draw.draw_rows`, and these:

    :param scratch: [programs, MAX_COLLECTED] float32: collected logits.
    """
    rows = tl.load(queue.counters)
    if rows > 0:
        program = tl.program_id(0).to(tl.int64)
        tiles = counts.tiles
        groups = (tiles + config.WARPS - 1) // config.WARPS
        parts = tl.minimum(tl.maximum(tl.num_programs(0) // rows, _MIN_PARTS), groups)
        span, parts = _parts_of(groups, parts)
        # If the flags ask for thresholds, nearly all rows take one more pass, which collects.
        later_parts = tl.where(
            (flags & (EXACT | MANY_EXACT)) != 0, config.EXACT_PARTS, passes.MAX_LATER_PARTS
        )
        later_span, later_parts = _parts_of(groups, later_parts)
        program_scratch = scratch + program * passes.MAX_COLLECTED
        row_plus_one = tl.full((), 1, tl.int32)
        while row_plus_one > 0:
            ticket = draw_ticket(queue)
            is_later = ticket >= rows * parts
            ticket = tl.where(is_later, ticket - rows * parts, ticket)
            all_parts = tl.where(is_later, later_parts, parts)
            step = tl.where(is_later, later_span, span)
            if is_later:
                index = rows + ticket // all_parts
                row_plus_one = await_pass(queue, index, rows, counts.rows * passes.ROUNDS, config.IS_NVIDIA)
            else:
                row_plus_one = tl.load(queue.announced + ticket // all_parts)
            if row_plus_one > 0:
                number = (row_plus_one - 1).to(tl.int64)
                group = (ticket % all_parts) * step
                row = LargeRow(
                    row_logits(number, logits, drafts, counts),
                    number,
                    statistics.maxima + number * tiles,
                    statistics.sums + number * tiles,
                    statistics.granules + number * tiles * GRANULES_PER_TILE,
                    tiles,
                    state.reals + number * passes.STATE_REALS,
                    state.ints + number * passes.STATE_INTS,
                    results.columns,
                    results.collected + number * passes.MAX_COLLECTED,
                )
                goal = tl.load(row.ints + passes.GOAL)
                end_group = tl.minimum(group + step, groups)
                pass_over_part(row, goal, group, end_group, program_scratch, config)
                if arrive(queue, number, all_parts) > 0:
                    row_out = DrawResults(
                        out.token_ids + number,
                        None,
                        out.threshold + number,
                        out.log_kept + number,
                        out.least_kept + number,
                    )
                    # The launch after the draw reads nothing of a draft's least kept logit.
                    row_flags = tl.where(number < counts.target_rows, flags, flags & ~LEAST_KEPT)
                    row_flags |= tl.load(row.ints + passes.IS_EXACT, mask=(flags & ROW_EXACT) != 0, other=0)
                    if goal == passes.COLLECT_SET:
                        finish_collected_set(row, rows, program_scratch, queue, row_flags, row_out, config)
                    else:
                        finish_pass(row, rows, program_scratch, queue, row_flags, row_out, config)


# The host side: constants, scratch and arguments of the launch.


class LargeSetLaunch:
    """The launch of a variant with filters, and its scratch."""

    def __init__(self, variant: Variant, target: Target, scratch: Scratch, tiles: TileLaunches) -> None:
        configuration, real, whole = variant.configuration, torch.float32, torch.int32
        queue = (whole, passes.QUEUE_COUNTERS.value, PER_CALL), (whole, passes.ROUNDS.value), (whole, 1)
        self.queue = scratch.fields(*queue)
        self.state = scratch.fields((real, passes.STATE_REALS.value), (whole, passes.STATE_INTS.value))
        self._search = scratch.reserve(real, MAX_COLLECTED.value, PER_PROGRAM)
        columns = passes.SLOTS.value * tiles.count * passes.COLUMNS.value
        self._results = scratch.fields((real, columns), (whole, MAX_COLLECTED.value))
        config = LargeSetConfig(
            FP64=target.fp64,
            TILES=tiles.count_limit,
            EXACT_PARTS=configuration.large_set_exact_parts,
            WARPS=configuration.large_set_warps,
            VECTOR=variant.logits.vector,
            IS_ALIGNED=variant.is_aligned,
            ULP_STEP=variant.logits.ulp_step,
            IS_NVIDIA=target.is_nvidia,
        )
        options = target.options(configuration.large_set_warps, configuration.large_set_registers)
        self._launch = Launch(draw_large_sets, {"config": config}, options)

    def step(self, arguments: LaunchArguments, draw: DrawArguments) -> Step:
        """Return the launch: one kernel, with drafts and without, where the target stands in for them."""
        logits, drafts, counts, statistics, _, flags, _, queue, state, results, *_ = draw
        source, scratch = logits if drafts.base is None else drafts, arguments.scratch
        others = group(DraftRows, (source.base, source.row_stride, None))
        passed = group(PassResults, self._results(scratch))
        work = scratch[self._search], queue, state, passed, results
        grid = arguments.geometry.large_set_grid
        return self._launch, grid, (logits, others, counts, statistics, flags, *work)
