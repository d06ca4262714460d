"""Finds the candidates that the filters keep. No sort, and ties are kept by construction.

Up to 128 candidates are all compared with each other, which gives for each of them the count and the mass of the
strictly greater ones; among more of them the thresholds are found by halving.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.comparisons import exceeds
from tokendraw_triton_gumbel.kernels.shared.float_keys import LARGEST, key_of, value_of
from tokendraw_triton_gumbel.kernels.shared.weights import weigh

_PRECISE = tl.constexpr(64)
"""Halvings that always find the threshold: a key has 32 bits."""
_ROUGH = tl.constexpr(12)
"""Halvings after which a bound is good enough."""


@triton.jit
def _counts_whole_row(filters):
    """Return whether top-p counts the mass of the whole row: nothing is filtered before it, or the order is joint."""
    before = (filters.k > 0).to(tl.int32) + (filters.min_p_floor > float("-inf")).to(tl.int32)
    return before * (filters.joint == 0).to(tl.int32) == 0


@triton.jit
def _stand_above(x, others, weights, BY_FACTORS: tl.constexpr):
    """Return (how many of the others are greater, what they weigh), for each of x."""
    greater = exceeds(others[:, None], x[None, :], BY_FACTORS)
    return tl.sum(greater, 0), tl.sum(greater * weights[:, None], 0)


@triton.jit
def _weigh_once(x, top, scale, BY_FACTORS: tl.constexpr):
    """Return (x, what it weighs), from a loop of one turn: all who read them get the results, not the work anew."""
    same, weight = x, x
    turn = 0
    while turn < 1:
        if BY_FACTORS:
            same = tl.minimum(x, LARGEST)  # or readers would each convert the bfloat16 that it was
        weight = weigh(x, top, scale)
        turn += 1
    return same, weight


@triton.jit
def _halves(x, N: tl.constexpr):
    """Return the first half of x, and the second."""
    return tl.split(tl.trans(tl.reshape(x, (2, N // 2))))


@triton.jit
def keep_by_comparison(x, found, scale, filters, N: tl.constexpr, BY_FACTORS: tl.constexpr):
    """Return which are kept, [N]: every candidate is compared with every other.

    :param BY_FACTORS: whether that takes fewer instructions and more registers. NVIDIA.
    """
    x, weight = _weigh_once(x, scale.top, scale.scale, BY_FACTORS)
    first, last = _halves(x, N)
    first_weight, last_weight = _halves(weight, N)
    number, above = _stand_above(x, first, first_weight, BY_FACTORS)
    if found > N // 2:
        more, heavier = _stand_above(x, last, last_weight, BY_FACTORS)
        number += more
        above += heavier
    k = filters.k
    kept = (x > float("-inf")) & (number < tl.where(k > 0, k, N).to(tl.float32)) & (x >= filters.min_p_floor)
    if filters.p < 1:
        counted = scale.mass
        if _counts_whole_row(filters) == 0:
            counted = tl.sum(tl.where(kept, weight, 0.0), 0)
        kept = kept & ((above < (filters.p * counted.to(tl.float64)).to(tl.float32)) | (number == 0))
    return kept


@triton.jit
def _halve(x, weight, first, last, target, HALVINGS: tl.constexpr):
    """Return the largest value in [first, last) from which upwards ``weight`` adds up to ``target``.

    :param first: a key, like ``last``; its weight is taken to reach the target.
    :param HALVINGS: after so many the answer is a bound from below.
    """
    first = first.to(tl.int64)
    last = last.to(tl.int64)
    left = tl.full((), HALVINGS, tl.int32)
    while (last - first > 1) & (left > 0):
        left -= 1
        middle = first + (last - first) // 2
        enough = tl.sum(tl.where(x >= value_of(middle.to(tl.int32)), weight, 0.0), 0) >= target
        first = tl.where(enough, middle, first)
        last = tl.where(enough, last, middle)
    return value_of(first.to(tl.int32))


@triton.jit
def keep_by_halving(x, scale, filters):
    """Return which are kept: the thresholds are found one after the other."""
    weight = weigh(x, scale.top, scale.scale)
    finite = x > float("-inf")
    first = key_of(tl.min(tl.where(finite, x, scale.top), 0))
    last = key_of(scale.top) + 1
    floor = tl.maximum(filters.min_p_floor, value_of(first))
    step = tl.where(filters.k > 0, 0, 1)
    last_step = tl.where(filters.p < 1, 2, 1)
    while step < last_step:
        # The k-th value, then the edge of the nucleus: one and the same search, which is compiled once.
        by_mass = step == 1
        added = tl.where(by_mass, weight, tl.where(finite, 1.0, 0.0))
        target = filters.k.to(tl.float32)
        if by_mass:
            left = tl.sum(tl.where(x >= floor, weight, 0.0), 0)
            counted = tl.where(_counts_whole_row(filters), scale.mass, left)
            target = (filters.p * counted.to(tl.float64)).to(tl.float32)
        floor = tl.maximum(floor, _halve(x, added, first, last, target, _PRECISE))
        step += 1
    return finite & (x >= tl.minimum(floor, scale.top))


@triton.jit
def bound_by_candidates(x, scale, k, needed):
    """Return a value that ``k`` of these tokens reach, or ``needed`` of mass.

    It is -inf if too few of them do, or neither counts.
    """
    first, last = key_of(tl.min(x, 0)), key_of(scale.top) + 1
    bound = tl.full((), float("-inf"), tl.float32)
    by_count = k > 0
    weight = tl.where(by_count, tl.where(x > float("-inf"), 1.0, 0.0), weigh(x, scale.top, scale.scale))
    target = tl.where(by_count, k.to(tl.float32), needed)
    if (target > 0).to(tl.int32) * (tl.sum(weight, 0) >= target).to(tl.int32) > 0:
        bound = _halve(x, weight, first, last, target, _ROUGH)
    return bound
