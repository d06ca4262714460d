"""The draw of a row that keeps few tokens: candidates are collected, and everything else happens in registers.

Reads what :mod:`.gather` collects: the logits from a bound upwards below which no token can be kept; again where they are
too many and prove a better bound, up to four times in all. No sort: up to 128 candidates are all compared with each other,
which gives for each of them the count and the mass of the strictly greater ones; among more of them the thresholds are
found by halving. Either way ties are kept by construction.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.bounds import bound_by_granules
from tokendraw_triton_gumbel.gather import list_candidates, list_granules, load_candidates
from tokendraw_triton_gumbel.noise import gumbel, streams_of
from tokendraw_triton_gumbel.order import LEAST, key_of, scaled, value_of, weigh
from tokendraw_triton_gumbel.request import EXACT

LEAST_CANDIDATES = 128
"""That many are compared with each other."""
MOST_CANDIDATES = 1024
_LIKELIEST = tl.constexpr(64)
"""Granules whose candidates are tried where top-p alone filters."""
_TURNS = tl.constexpr(4)
"""Times that candidates are collected."""


@triton.jit
def _nothing_left(k, least, joint):
    """Whether top-p counts the mass of the whole row: nothing is filtered before it, or the order is joint."""
    return ((k > 0).to(tl.int32) + (least > float("-inf")).to(tl.int32)) * (joint == 0).to(tl.int32) == 0


@triton.jit
def _stand_above(x, others, weights):
    """(How many of the others are greater, what they weigh), for each of x."""
    greater = (others[:, None] > x[None, :]).to(tl.float32)
    return tl.sum(greater, 0), tl.sum(greater * weights[:, None], 0)


@triton.jit
def _weigh_once(x, top, scale):
    """:func:`~.order.weigh`, in a loop of one turn: the compiler hands on the result to all who read it, not the work."""
    weight = x
    turn = 0
    while turn < 1:
        weight = weigh(x, top, scale)
        turn += 1
    return weight


@triton.jit
def _halves(x, N: tl.constexpr):
    """The first half of x, and the second."""
    return tl.split(tl.trans(tl.reshape(x, (2, N // 2))))


@triton.jit
def _keep_by_comparison(x, found, top, scale, mass, k, p, least, joint, N: tl.constexpr):
    """Which are kept, [N]: every candidate is compared with every other."""
    weight = _weigh_once(x, top, scale)
    first, last = _halves(x, N)
    first_weight, last_weight = _halves(weight, N)
    number, above = _stand_above(x, first, first_weight)
    if found > N // 2:
        more, heavier = _stand_above(x, last, last_weight)
        number += more
        above += heavier
    kept = (x > float("-inf")) & (number < tl.where(k > 0, k, N).to(tl.float32)) & (x >= least)
    if p < 1:
        counted = mass
        if _nothing_left(k, least, joint) == 0:
            counted = tl.sum(tl.where(kept, weight, 0.0), 0)
        kept = kept & ((above < (p * counted.to(tl.float64)).to(tl.float32)) | (number == 0))
    return kept


@triton.jit
def _halve(x, weight, first, last, target, HALVINGS: tl.constexpr = 64):
    """The largest value in [first, last) from which upwards ``weight`` adds up to ``target``; ``first`` is taken to.

    :param first: as a key, like ``last``.
    :param HALVINGS: after so many the answer is a bound from below.
    """
    first = first.to(tl.int64)
    last = last.to(tl.int64)
    left = HALVINGS
    while (last - first > 1) & (left > 0):
        left -= 1
        middle = first + (last - first) // 2
        enough = tl.sum(tl.where(x >= value_of(middle.to(tl.int32)), weight, 0.0), 0) >= target
        first = tl.where(enough, middle, first)
        last = tl.where(enough, last, middle)
    return value_of(first.to(tl.int32))


@triton.jit
def _keep_by_halving(x, top, scale, mass, k, p, least, joint):
    """Which are kept: the thresholds one after the other."""
    weight = weigh(x, top, scale)
    finite = x > float("-inf")
    first = key_of(tl.min(tl.where(finite, x, top), 0))
    last = key_of(top) + 1
    floor = tl.maximum(least, value_of(first))
    if k > 0:
        ones = tl.where(finite, 1.0, 0.0)
        floor = tl.maximum(floor, _halve(x, ones, first, last, k.to(tl.float32)))
    if p < 1:
        left = tl.sum(tl.where(x >= floor, weight, 0.0), 0)
        counted = tl.where(_nothing_left(k, least, joint), mass, left)
        target = (p * counted.to(tl.float64)).to(tl.float32)
        floor = tl.maximum(floor, _halve(x, weight, first, last, target))
    return finite & (x >= tl.minimum(floor, top))


@triton.jit
def _segments(weight_a, tile_a, weight_b, tile_b):
    return tl.where(tile_a == tile_b, weight_a, 0.0) + weight_b, tile_b


@triton.jit
def running_sums(weight, tile):
    """Of the weights so far in the same tile, tile by tile: where a tile ends it is its weight, and before that no more."""
    total, _ = tl.associative_scan((weight, tile), 0, _segments)
    return total


@triton.jit
def best_of(score, label, kept):
    """The label of the largest score of those that are kept; the least label on a tie."""
    if score.dtype == tl.float32:
        key = key_of(tl.where(kept, score, float("-inf")))
        both = (key.to(tl.int64) << 32) | (2147483647 - label).to(tl.int64)
        best = 2147483647 - (tl.max(both, 0) & 0xFFFFFFFF).to(tl.int32)
    else:
        largest = tl.max(tl.where(kept, score, float("-inf")), 0)
        best = tl.min(tl.where(kept & (score == largest), label, 2147483647), 0)
    return best


@triton.jit
def _draw_kept(x, kept, token, top, scale, inverse, seed, position, flags, FP64: tl.constexpr):
    """The token."""
    tile = token // 1024
    of_token, of_tile = streams_of(flags)
    noise = gumbel(seed, position, tile, of_tile, FP64)
    own_noise = gumbel(seed, position, token, of_token, FP64)
    weight = tl.where(kept, weigh(x, top, scale), 0.0)
    total = running_sums(weight, tile)
    chosen = best_of(tl.log(tl.where(kept, total, 1.0).to(noise.dtype)) + noise, tile, kept)
    return best_of(scaled(x, top, inverse, FP64) + own_noise, token, kept & (tile == chosen))


@triton.jit
def _what_is_kept(x, kept, top, scale):
    """(The least kept logit, the kept mass)."""
    return tl.reduce(
        (tl.where(kept, x, float("inf")), tl.where(kept, weigh(x, top, scale), 0.0)), 0, _least_and_sum
    )


@triton.jit
def _least_and_sum(least_a, sum_a, least_b, sum_b):
    return tl.minimum(least_a, least_b), sum_a + sum_b


@triton.jit
def _bound_by_some(x, top, scale, k, needed):
    """A value that ``k`` of these tokens reach, or ``needed`` of mass; -inf if too few of them do or neither counts."""
    first, last = key_of(tl.min(x, 0)), key_of(top) + 1
    bound = tl.full((), float("-inf"), tl.float32)
    if k > 0:
        bound = _halve(x, tl.where(x > float("-inf"), 1.0, 0.0), first, last, k.to(tl.float32), 12)
    elif needed > 0:
        weight = weigh(x, top, scale)
        if tl.sum(weight, 0) >= needed:
            bound = _halve(x, weight, first, last, needed, 12)
    return bound


@triton.jit
def draw_few(
    base,
    vocab_size,
    granules,
    tiles,
    listed,
    values,
    ids,
    bound,
    top,
    scale,
    inverse,
    mass,
    k,
    p,
    least,
    joint,
    needed,
    seed,
    position,
    flags,
    drawn,
    FP64: tl.constexpr,
    VECTOR: tl.constexpr,
    N: tl.constexpr,
    BY_COMPARISON: tl.constexpr,
    GATHERED: tl.constexpr,
):
    """(Token, or -1 if more than ``N`` logits reach ``bound``; the least kept logit; the kept mass; how many there are).

    Where more than the token is wanted, those that reach the bound stay in ``values`` and ``ids``, tile by tile.

    :param granules: [tiles, 16] maxima of the row, in memory.
    :param bound: no token below it is kept, and no filter depends on one.
    :param least: the floor of min-p; -inf if it is off.
    :param k: [1, V), or 0 if top-k is off; ``p`` in float64, 1 if top-p is off.
    :param mass: the sum of ``exp(y)`` over the whole row.
    :param needed: the mass that has to reach ``bound``, or the answer is -1.
    :param flags: say whether the least kept logit and the mass are wanted; see :mod:`.request`.
    :param drawn: whether the token is; otherwise it is 0.
    """
    token = tl.full((), -1, tl.int32)
    floor = bound
    kept_mass = mass
    candidates = tl.full((), -1, tl.int32)
    hot = list_granules(granules, tiles, bound, listed, N)
    if hot <= N:
        found = list_candidates(base, vocab_size, listed, hot, bound, ids, VECTOR, N, GATHERED)
        if not BY_COMPARISON:
            turn = tl.where(found > N, 1, _TURNS)
            while turn < _TURNS:
                # Some of the tokens prove a bound, too.
                some, _ = load_candidates(base, ids, N, VECTOR, N)
                better = _bound_by_some(some, top, scale, k, needed)
                tl.debug_barrier()
                turn = tl.where(better > bound, turn + 1, _TURNS)
                if better > bound:
                    bound = better
                    hot = list_granules(granules, tiles, bound, listed, N)
                    found = list_candidates(base, vocab_size, listed, hot, bound, ids, VECTOR, N, GATHERED)
                    turn = tl.where(found > N, turn, _TURNS)
        if found <= N:
            x, own = load_candidates(base, ids, found, VECTOR, N)
            enough = tl.full((), 1, tl.int32)
            if needed > 0:
                enough = (tl.sum(weigh(x, top, scale), 0) >= needed).to(tl.int32)
            if enough > 0:
                if BY_COMPARISON:
                    kept = _keep_by_comparison(x, found, top, scale, mass, k, p, least, joint, N)
                else:
                    kept = _keep_by_halving(x, top, scale, mass, k, p, least, joint)
                token = tl.full((), 0, tl.int32)
                if drawn:
                    token = _draw_kept(x, kept, own, top, scale, inverse, seed, position, flags, FP64)
                candidates = found
                if (flags & EXACT) != 0:
                    floor, kept_mass = _what_is_kept(x, kept, top, scale)
                    tl.debug_barrier()  # the list was read
                    i = tl.arange(0, N)
                    tl.store(values + i, x, mask=i < found)
                    tl.store(ids + i, own, mask=i < found)
    return token, floor, kept_mass, candidates


@triton.jit(noinline=True)
def draw_more(
    base,
    vocab_size,
    granules,
    tiles,
    listed,
    values,
    ids,
    bound,
    alone,
    top,
    scale,
    inverse,
    mass,
    k,
    p,
    least,
    joint,
    needed,
    seed,
    position,
    flags,
    drawn,
    FP64: tl.constexpr,
    VECTOR: tl.constexpr,
    N: tl.constexpr,
    GATHERED: tl.constexpr,
):
    """The same for up to ``N`` tokens, of a row where fewer were not enough. A function of its own, out of the way.

    :param bound: proven, or -inf; the maxima of the granules may prove more.
    :param alone: whether nothing is proven, as top-p alone filters: the likeliest tokens are tried, and then weighed.
    """
    if (k > 0).to(tl.int32) + alone > 0:
        wanted = tl.where(alone > 0, _LIKELIEST, k).to(tl.int32)
        proven = bound_by_granules(granules, tiles * 16, least, top, wanted, N)
        bound = tl.where(alone > 0, proven, tl.maximum(bound, proven))
    token = tl.full((), -1, tl.int32)
    floor = bound
    kept = mass
    found = tl.full((), -1, tl.int32)
    if (bound > float("-inf")).to(tl.int32) + (vocab_size <= N).to(tl.int32) > 0:
        token, floor, kept, found = draw_few(
            base,
            vocab_size,
            granules,
            tiles,
            listed,
            values,
            ids,
            tl.maximum(bound, LEAST),
            top,
            scale,
            inverse,
            mass,
            k,
            p,
            least,
            joint,
            needed,
            seed,
            position,
            flags,
            drawn,
            FP64,
            VECTOR,
            N,
            False,
            GATHERED,
        )
    return token, floor, kept, found
