"""Finds the candidates that the filters keep. No sort, and ties are kept by construction.

Up to 128 candidates are all compared with each other: each gets the count and the mass of the strictly greater ones.
Among more candidates the thresholds are found by halving.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.comparisons import exceeds
from tokendraw_triton_gumbel.kernels.shared.float_keys import LARGEST, key_of, value_of
from tokendraw_triton_gumbel.kernels.shared.weights import weigh

_EXACT_HALVINGS = tl.constexpr(64)
"""Halvings for an exact threshold: a key has 32 bits."""
_BOUND_HALVINGS = tl.constexpr(12)
"""Halvings for a good enough bound."""


@triton.jit
def _counts_whole_row(filters):
    """Return whether top-p counts the mass of all tokens: no other filter comes first, or the order is joint."""
    num_filters = (filters.k > 0).to(tl.int32) + (filters.min_p_floor > float("-inf")).to(tl.int32)
    return num_filters * (filters.joint == 0).to(tl.int32) == 0


@triton.jit
def _mass_above(x, others, weights, BY_FACTORS: tl.constexpr):
    """Return (number of greater values in ``others``, their mass), for each x."""
    greater = exceeds(others[:, None], x[None, :], BY_FACTORS)
    return tl.sum(greater, 0), tl.sum(greater * weights[:, None], 0)


@triton.jit
def _weigh_once(x, max_logit, scale, BY_FACTORS: tl.constexpr):
    """Return (x, its weight), from a loop of one turn: all readers share the results."""
    values, weight = x, x
    turn = 0
    while turn < 1:
        if BY_FACTORS:
            values = tl.minimum(x, LARGEST)  # otherwise each reader would convert bfloat16 again
        weight = weigh(x, max_logit, scale)
        turn += 1
    return values, weight


@triton.jit
def _halves(x, N: tl.constexpr):
    """Return the first half of x, and the second."""
    return tl.split(tl.trans(tl.reshape(x, (2, N // 2))))


@triton.jit
def keep_by_comparison(x, num_candidates, scale, filters, N: tl.constexpr, BY_FACTORS: tl.constexpr):
    """Return a mask of the kept candidates, [N], by comparing every candidate with all others.

    :param BY_FACTORS: whether to compare by factors: fewer instructions and more registers. NVIDIA.
    """
    x, weight = _weigh_once(x, scale.max_logit, scale.scale, BY_FACTORS)
    first_half, last_half = _halves(x, N)
    first_weight, last_weight = _halves(weight, N)
    count_above, mass_above = _mass_above(x, first_half, first_weight, BY_FACTORS)
    if num_candidates > N // 2:
        last_count, last_mass = _mass_above(x, last_half, last_weight, BY_FACTORS)
        count_above += last_count
        mass_above += last_mass
    k = filters.k
    kept = (
        (x > float("-inf"))
        & (count_above < tl.where(k > 0, k, N).to(tl.float32))
        & (x >= filters.min_p_floor)
    )
    if filters.p < 1:
        total_mass = scale.mass
        if _counts_whole_row(filters) == 0:
            total_mass = tl.sum(tl.where(kept, weight, 0.0), 0)
        kept = kept & (
            (mass_above < (filters.p * total_mass.to(tl.float64)).to(tl.float32)) | (count_above == 0)
        )
    return kept


@triton.jit
def _halve(x, weight, low_key, high_key, target, HALVINGS: tl.constexpr):
    """Return the largest value with a key in [low_key, high_key) from which upwards ``weight`` adds up to ``target``.

    :param low_key: its weight is assumed to reach the target.
    :param HALVINGS: limit of halvings; the result is then a lower bound.
    """
    low_key = low_key.to(tl.int64)
    high_key = high_key.to(tl.int64)
    turns_left = tl.full((), HALVINGS, tl.int32)
    while (high_key - low_key > 1) & (turns_left > 0):
        turns_left -= 1
        middle = low_key + (high_key - low_key) // 2
        is_enough = tl.sum(tl.where(x >= value_of(middle.to(tl.int32)), weight, 0.0), 0) >= target
        low_key = tl.where(is_enough, middle, low_key)
        high_key = tl.where(is_enough, high_key, middle)
    return value_of(low_key.to(tl.int32))


@triton.jit
def keep_by_halving(x, scale, filters):
    """Return a mask of the kept candidates, by finding one threshold after the other."""
    weight = weigh(x, scale.max_logit, scale.scale)
    is_finite = x > float("-inf")
    low_key = key_of(tl.min(tl.where(is_finite, x, scale.max_logit), 0))
    high_key = key_of(scale.max_logit) + 1
    threshold = tl.maximum(filters.min_p_floor, value_of(low_key))
    step = tl.where(filters.k > 0, 0, 1)
    last_step = tl.where(filters.p < 1, 2, 1)
    while step < last_step:
        # The k-th value, then the edge of the nucleus: a single search, compiled once.
        by_mass = step == 1
        summands = tl.where(by_mass, weight, tl.where(is_finite, 1.0, 0.0))
        target = filters.k.to(tl.float32)
        if by_mass:
            mass_left = tl.sum(tl.where(x >= threshold, weight, 0.0), 0)
            total_mass = tl.where(_counts_whole_row(filters), scale.mass, mass_left)
            target = (filters.p * total_mass.to(tl.float64)).to(tl.float32)
        threshold = tl.maximum(threshold, _halve(x, summands, low_key, high_key, target, _EXACT_HALVINGS))
        step += 1
    return is_finite & (x >= tl.minimum(threshold, scale.max_logit))


@triton.jit
def bound_by_candidates(x, scale, k, required_mass):
    """Return a value that ``k`` of these tokens reach, or ``required_mass`` of mass.

    The value is -inf if too few tokens reach any value, or if neither ``k`` nor the mass counts.
    """
    low_key, high_key = key_of(tl.min(x, 0)), key_of(scale.max_logit) + 1
    bound = tl.full((), float("-inf"), tl.float32)
    by_count = k > 0
    weight = tl.where(by_count, tl.where(x > float("-inf"), 1.0, 0.0), weigh(x, scale.max_logit, scale.scale))
    target = tl.where(by_count, k.to(tl.float32), required_mass)
    if (target > 0).to(tl.int32) * (tl.sum(weight, 0) >= target).to(tl.int32) > 0:
        bound = _halve(x, weight, low_key, high_key, target, _BOUND_HALVINGS)
    return bound
