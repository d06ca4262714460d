"""The exact edge of a large kept set among collected logits."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels import large_set_passes as passes
from tokendraw_triton_gumbel.kernels.bracket import Bracket, draw_from_bracket
from tokendraw_triton_gumbel.kernels.large_set_passes import announce_pass, finish_row, load_column, row_sum
from tokendraw_triton_gumbel.kernels.rows import LEAST_KEPT
from tokendraw_triton_gumbel.kernels.values import LOWEST, TILE_SIZE, key_of, least_kept, value_of, weigh

# Finds the edge among listed values: the largest value from which upwards they weigh, or are, a target.
#
# Reads the values some ten times. Amounts are integers: of a weight, units of 2 ** -34, so that the order
# of the list changes no sum. A search compares all values with 3 pivots at a time, until one value is left.

AT_ONCE = tl.constexpr(512)
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
    missing = tl.minimum(target.to(tl.float64) - above.to(tl.float64), 2.0 * passes.MAX_COLLECTED)
    missing = tl.ceil(missing * tl.where(by_mass > 0, UNITS, 1.0)).to(tl.int64)
    # Sums of the same weights in two orders: nothing may seem to be missing.
    return tl.maximum(missing, 1)


@triton.jit
def _load_packed(values, i, count, max_logit, scale):
    """Return (values [N] at the indices i, -inf beyond ``count``; their units, with 1 in the lower bits)."""
    x = tl.load(values + i, mask=i < count, other=float("-inf"))
    return x, ((weigh(x, max_logit, scale) * UNITS).to(tl.int64) << _COUNT_BITS) + 1


@triton.jit
def _least_and_total(least_a, total_a, least_b, total_b):
    return tl.minimum(least_a, least_b), total_a + total_b


@triton.jit
def _add_three(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit(noinline=True)
def survey_from(values, count, bound, max_logit, scale):
    """Return (the least value that reaches ``bound``, +inf without any; the units of all that do; their number)."""
    least = tl.full((AT_ONCE,), float("inf"), tl.float32)
    total = tl.zeros((AT_ONCE,), tl.int64)
    start = 0
    while start < count:
        x, packed = _load_packed(values, start + tl.arange(0, AT_ONCE), count, max_logit, scale)
        is_above = (x >= bound) & (x > float("-inf"))
        least = tl.minimum(least, tl.where(is_above, x, float("inf")))
        total += tl.where(is_above, packed, 0)
        start += AT_ONCE
    lowest, amount = tl.reduce((least, total), 0, _least_and_total)
    return lowest, amount >> _COUNT_BITS, (amount & _COUNT_MASK).to(tl.int32)


@triton.jit
def _weigh_from(values, count, pivot_0, pivot_1, pivot_2, max_logit, scale):
    """Return (the units from each of three pivots upwards, int64; the numbers)."""
    above_0 = tl.zeros((AT_ONCE,), tl.int64)
    above_1, above_2 = above_0, above_0
    start = 0
    while start < count:
        x, packed = _load_packed(values, start + tl.arange(0, AT_ONCE), count, max_logit, scale)
        above_0 += tl.where(x >= pivot_0, packed, 0)
        above_1 += tl.where(x >= pivot_1, packed, 0)
        above_2 += tl.where(x >= pivot_2, packed, 0)
        start += AT_ONCE
    sum_0, sum_1, sum_2 = tl.reduce((above_0, above_1, above_2), 0, _add_three)
    return (
        sum_0 >> _COUNT_BITS,
        sum_1 >> _COUNT_BITS,
        sum_2 >> _COUNT_BITS,
        (sum_0 & _COUNT_MASK).to(tl.int32),
        (sum_1 & _COUNT_MASK).to(tl.int32),
        (sum_2 & _COUNT_MASK).to(tl.int32),
    )


@triton.jit
def _count_from(values, count, pivot_0, pivot_1, pivot_2):
    """Return the number of values from each of three pivots upwards."""
    above_0 = tl.zeros((AT_ONCE,), tl.int32)
    above_1, above_2 = above_0, above_0
    start = 0
    while start < count:
        i = start + tl.arange(0, AT_ONCE)
        x = tl.load(values + i, mask=i < count, other=float("-inf"))
        above_0 += (x >= pivot_0).to(tl.int32)
        above_1 += (x >= pivot_1).to(tl.int32)
        above_2 += (x >= pivot_2).to(tl.int32)
        start += AT_ONCE
    return tl.reduce((above_0, above_1, above_2), 0, _add_three)


@triton.jit(noinline=True)
def find_edge(values, count, low, target, max_logit, scale, ULP_STEP: tl.constexpr, BY_MASS: tl.constexpr):
    """Return the largest value from which upwards the amount reaches ``target``.

    :param low: returned if the amount from here upwards does not reach the target.
    :param target: an amount, int64: units if ``BY_MASS``, otherwise a number.
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
        if BY_MASS:
            amount_0, amount_1, amount_2, number_0, number_1, number_2 = _weigh_from(
                values, count, pivot_0, pivot_1, pivot_2, max_logit, scale
            )
        else:
            number_0, number_1, number_2 = _count_from(values, count, pivot_0, pivot_1, pivot_2)
            amount_0, amount_1, amount_2 = number_0, number_1, number_2
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
    edge = _least_from(values, count, value_of(low_key.to(tl.int32)))
    return tl.where(edge < float("inf"), edge, low)


@triton.jit
def _least_from(values, count, bound):
    """Return the least value that reaches ``bound``; +inf without any."""
    least = tl.full((AT_ONCE,), float("inf"), tl.float32)
    start = 0
    while start < count:
        i = start + tl.arange(0, AT_ONCE)
        x = tl.load(values + i, mask=i < count, other=float("-inf"))
        least = tl.minimum(least, tl.where((x >= bound) & (x > float("-inf")), x, float("inf")))
        start += AT_ONCE
    return tl.min(least, 0)


@triton.jit
def find_either_edge(values, count, low, target, max_logit, scale, by_mass, ULP_STEP: tl.constexpr):
    """Return :func:`find_edge` of an amount that is known at run time: units if ``by_mass`` is above 0."""
    if by_mass > 0:
        edge = find_edge(values, count, low, target, max_logit, scale, ULP_STEP, BY_MASS=True)
    else:
        edge = find_edge(values, count, low, target, max_logit, scale, ULP_STEP, BY_MASS=False)
    return edge


# Finds the threshold of a row among its collected logits; draws a row whose kept set was collected as a whole.
#
# Reads at most 8192 ids and their logits, which it copies, and then the copy some ten times; one program does it.
# Sums of weights are integers, in units of 2 ** -48: the order of the list, which differs from run to run, changes
# none of them. A set that is too large for the list, or that begins below it, is left to passes that weigh.

_TILE_UNITS = tl.constexpr(2.0**48)
"""Units in the weight of the largest logit, of the weights of tiles: sums of integers do not depend on the order."""


@triton.jit(noinline=True)
def _copy_logits(base, collected, count, values):
    """Write the ``count`` collected logits as float32 to ``values``."""
    start = 0
    while start < count:
        i = start + tl.arange(0, AT_ONCE)
        token = tl.load(collected + i, mask=i < count, other=0)
        tl.store(values + i, tl.load(base + token, mask=i < count).to(tl.float32), mask=i < count)
        start += AT_ONCE
    tl.debug_barrier()  # the copy is read by other threads


@triton.jit
def _find_set_threshold(row, values, count, ULP_STEP: tl.constexpr):
    """Return (the threshold of a row; whether the collected logits contain the kept set)."""
    reals, ints = row.reals, row.ints
    max_logit, scale = tl.load(reals + passes.MAX_LOGIT), tl.load(reals + passes.SCALE)
    goal = tl.load(ints + passes.GOAL_BEFORE)
    k = tl.load(ints + passes.K)
    is_guess = (tl.load(reals + passes.LOW) > tl.load(reals + passes.LOWER_LIMIT)).to(tl.int32)
    is_kth = ((goal == passes.FIND_KTH) | (goal == passes.KTH_THEN_NUCLEUS)).to(tl.int32)
    is_larger = (goal == passes.FIND_LARGER).to(tl.int32)
    threshold = tl.load(reals + passes.LOW)
    # Without a filter that ends above the list, its low end is the threshold.
    is_found = 1 - is_guess
    is_too_short = is_kth * is_guess * (count < k).to(tl.int32)
    if is_kth + is_larger > 0:
        if count >= k:
            number = k.to(tl.int64)
            threshold = find_edge(values, count, threshold, number, max_logit, scale, ULP_STEP, BY_MASS=False)
            is_found = tl.full((), 1, tl.int32)
    if (
        (goal == passes.FIND_NUCLEUS)
        | (goal == passes.KTH_THEN_NUCLEUS)
        | (goal == passes.FLOOR_THEN_NUCLEUS)
        | (is_larger > 0)
    ):
        _, total, _ = survey_from(values, count, threshold, max_logit, scale)
        mass = total.to(tl.float64)
        if (goal == passes.FIND_NUCLEUS) | (goal == passes.FIND_LARGER):
            # The row's whole mass, not only what a list could hold: p of it may still be within the list. At most
            # 2 ** 21 ids weigh 2 ** 55 units, which an int64 holds.
            mass = tl.load(reals + passes.MASS).to(tl.float64) * UNITS
        p = tl.load(reals + passes.P).to(tl.float64) + tl.load(reals + passes.P_REST).to(tl.float64)
        target = tl.ceil(p * mass).to(tl.int64)
        if (total >= target).to(tl.int32) * (1 - is_too_short) > 0:
            edge = find_edge(values, count, threshold, target, max_logit, scale, ULP_STEP, BY_MASS=True)
            threshold = tl.maximum(threshold, edge)
            is_found = tl.full((), 1, tl.int32)
        elif (is_larger == 0).to(tl.int32) * is_guess > 0:
            is_found = tl.full((), 0, tl.int32)
    return tl.minimum(threshold, max_logit), is_found


@triton.jit(noinline=True)
def _weigh_tiles(row, values, count, threshold, slot, high_column, TILES: tl.constexpr):
    """Write the weight of each tile from the threshold upwards into the first column of a slot.

    :param values: the ``count`` collected logits; ``high_column`` is that of the weights above them, or -1.
    :param slot: its units are 0.
    """
    tiles = row.tiles
    max_logit, scale = tl.load(row.reals + passes.MAX_LOGIT), tl.load(row.reals + passes.SCALE)
    weights = row.columns + slot.to(tl.int64) * tiles * passes.COLUMNS
    units = weights.to(tl.pointer_type(tl.int64)) + passes.UNIT_COLUMN
    start = 0
    while start < count:
        i = start + tl.arange(0, AT_ONCE)
        x = tl.load(values + i, mask=i < count, other=float("-inf"))
        tile = tl.load(row.collected + i, mask=i < count, other=0) // TILE_SIZE
        amount = (weigh(x, max_logit, scale) * _TILE_UNITS).to(tl.int64)
        tl.atomic_add(
            units + tile * (passes.COLUMNS // 2), amount, mask=(i < count) & (x >= threshold), sem="relaxed"
        )
        start += AT_ONCE
    tl.debug_barrier()  # all threads have added; the sums are read past the L1
    tile = tl.arange(0, TILES)
    inside = tile < tiles
    total = (
        tl.load(units + tile * (passes.COLUMNS // 2), mask=inside, other=0, volatile=True).to(tl.float32)
        / _TILE_UNITS
    )
    tl.store(
        weights + tile * passes.COLUMNS,
        load_column(row.columns, high_column, tiles, TILES) + total,
        mask=inside,
    )
    tl.debug_barrier()  # the weights are read by other threads


@triton.jit(noinline=True)
def find_in_bracket(row, goal, is_known, scratch, out, config: tl.constexpr):
    """Find the threshold among the collected logits of its bracket; return (the threshold; whether the list held all).

    Where the token is known, writes the threshold and the kept mass. Elsewhere writes the weight of each tile from the
    threshold upwards into the first column of the row's slot, and the number of logits into the first of its counts.

    :param goal: of the search: the mass of the bracket's nucleus, or else its k-th value.
    :param scratch: [MAX_COLLECTED] float32.
    """
    tiles, reals, ints = row.tiles, row.reals, row.ints
    count = tl.load(ints + passes.NUM_COLLECTED)
    fits = (count <= passes.MAX_COLLECTED).to(tl.int32)
    threshold = tl.load(reals + passes.LOW)
    if fits > 0:
        _copy_logits(row.source.base, row.collected, count, scratch)
        max_logit, scale = tl.load(reals + passes.MAX_LOGIT), tl.load(reals + passes.SCALE)
        high_column = tl.load(ints + passes.HIGH_COLUMN)
        mass_above = row_sum(row, high_column, 0, config.TILES)
        number_above = row_sum(row, high_column, passes.COUNT_COLUMN, config.TILES)
        by_mass = (goal == passes.FIND_NUCLEUS).to(tl.int32)
        target = tl.where(
            by_mass > 0, tl.load(reals + passes.TARGET_MAX), tl.load(ints + passes.K).to(tl.float32)
        )
        missing = missing_amount(target, tl.where(by_mass > 0, mass_above, number_above), by_mass)
        threshold = find_either_edge(
            scratch, count, threshold, missing, max_logit, scale, by_mass, config.ULP_STEP
        )
        _, mass, number = survey_from(scratch, count, threshold, max_logit, scale)
        if is_known > 0:
            tl.store(out.threshold, threshold)
            kept_mass = (mass_above.to(tl.float64) + mass.to(tl.float64) / UNITS).to(tl.float32)
            tl.store(out.log_kept, tl.log(tl.minimum(kept_mass / tl.load(reals + passes.MASS), 1.0)))
        else:
            slot = tl.load(ints + passes.SLOT)
            _weigh_tiles(row, scratch, count, threshold, slot, high_column, config.TILES)
            tile = tl.arange(0, config.TILES)
            numbers = row.columns + slot.to(tl.int64) * tiles * passes.COLUMNS + passes.COUNT_COLUMN
            tl.store(
                numbers + tile * passes.COLUMNS,
                tl.where(tile == 0, number_above + number.to(tl.float32), 0.0),
                mask=tile < tiles,
            )
            tl.debug_barrier()  # the numbers are read by other threads
    return threshold, fits


@triton.jit(noinline=True)
def finish_collected_set(row, rows, scratch, queue, flags, out, config: tl.constexpr):
    """Draw the row if its kept set was collected; otherwise announce the pass that weighs around the first pivots.

    The parameters are those of :func:`~.large_set.finish_pass`.
    """
    reals, ints = row.reals, row.ints
    count = tl.load(ints + passes.NUM_COLLECTED)
    slot = tl.load(ints + passes.SLOT)
    threshold = tl.load(reals + passes.LOW)
    is_found = tl.full((), 0, tl.int32)
    if count <= passes.MAX_COLLECTED:
        _copy_logits(row.source.base, row.collected, count, scratch)
        threshold, is_found = _find_set_threshold(row, scratch, count, config.ULP_STEP)
    if is_found > 0:
        no_column = tl.full((), -1, tl.int32)
        _weigh_tiles(row, scratch, count, threshold, slot, no_column, config.TILES)
        bracket = Bracket(threshold, threshold, slot * passes.COLUMNS, slot * passes.COLUMNS)
        is_exact = tl.full((), 1, tl.int32)
        draw_from_bracket(row, bracket, is_exact, flags, out, config)
        if (flags & LEAST_KEPT) != 0:
            max_logit, scale = tl.load(reals + passes.MAX_LOGIT), tl.load(reals + passes.SCALE)
            least, _, _ = survey_from(scratch, count, threshold, max_logit, scale)
            tl.store(out.least_kept, least_kept(row.source, row.maxima, row.tiles, least, is_exact))
        finish_row(queue)
    else:
        tl.store(reals + passes.LOW, tl.load(reals + passes.LOWER_LIMIT))
        tl.store(ints + passes.GOAL, tl.load(ints + passes.GOAL_BEFORE))
        tl.store(ints + passes.ROUND, 1)
        announce_pass(queue, row.number.to(tl.int32), rows)
