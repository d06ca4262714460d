"""Finds the edge among listed values: the largest value from which upwards they weigh, or are, a target.

Reads the values some ten times. Amounts are integers: of a weight, units of 2 ** -34, so that the order
of the list changes no sum. A search compares all values with 3 pivots at a time, until one value is left.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.row_state import MAX_COLLECTED
from tokendraw_triton_gumbel.kernels.shared.float_keys import LOWEST, key_of, value_of
from tokendraw_triton_gumbel.kernels.shared.weights import weigh

AT_ONCE = tl.constexpr(512)
"""Values compared at once: few, since a short loop takes less time than long code that runs once."""
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
    return tl.ceil(missing * tl.where(by_mass > 0, UNITS, 1.0)).to(tl.int64)


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
