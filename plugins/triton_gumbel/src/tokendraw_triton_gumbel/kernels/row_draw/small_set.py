"""The draw of a row that keeps few tokens: candidates are collected, and everything else happens in registers.

Reads what :mod:`.candidates` collects: the logits from a bound upwards below which no token can be kept; again where
they are too many and prove a better bound, up to four times in all. Which of them are kept is in :mod:`.keep`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.row_draw.bounds import bound_by_granules
from tokendraw_triton_gumbel.kernels.row_draw.candidates import (
    list_candidates,
    list_granules,
    load_candidates,
)
from tokendraw_triton_gumbel.kernels.row_draw.keep import (
    bound_by_candidates,
    keep_by_comparison,
    keep_by_halving,
)
from tokendraw_triton_gumbel.kernels.row_draw.token_draw import draw_candidate, draw_candidate_in_turns
from tokendraw_triton_gumbel.kernels.shared.float_keys import LOWEST
from tokendraw_triton_gumbel.kernels.shared.noise import streams_of
from tokendraw_triton_gumbel.kernels.shared.row_params import EXACT
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE
from tokendraw_triton_gumbel.kernels.shared.weights import scaled, weigh

SMALL_CANDIDATES = 128
"""Candidates that are compared with each other."""
LARGE_CANDIDATES = 1024
"""Candidates that are collected, at most."""
_TURNS = tl.constexpr(4)
"""Times that candidates are collected, at most."""
_UNKNOWN = tl.constexpr(2147483647)
"""Stands for a number that nobody has counted."""


@triton.jit
def _least_and_sum(least_a, sum_a, least_b, sum_b):
    return tl.minimum(least_a, least_b), sum_a + sum_b


@triton.jit
def _floor_and_mass(x, kept, scale):
    """Return (the least kept logit, the kept mass)."""
    weight = tl.where(kept, weigh(x, scale.top, scale.scale), 0.0)
    return tl.reduce((tl.where(kept, x, float("inf")), weight), 0, _least_and_sum)


@triton.jit
def _list(row, granules, tiles, lists, bound, config: tl.constexpr, N: tl.constexpr):
    """List the logits that reach ``bound``; return how many, or _UNKNOWN where their granules are too many already."""
    found = tl.full((), _UNKNOWN, tl.int32)
    hot = list_granules(granules, tiles, bound, lists.granules, N, config.IS_NVIDIA)
    if hot <= N:
        found = list_candidates(
            row,
            lists.granules,
            hot,
            bound,
            lists.ids,
            config.VECTOR,
            N,
            config.GRANULES_AT_ONCE,
            config.IS_NVIDIA,
        )
    return found


@triton.jit
def draw_small_set(
    row,
    granules,
    tiles,
    lists,
    bound,
    scale,
    filters,
    needed,
    key,
    flags,
    wants_token,
    config: tl.constexpr,
    N: tl.constexpr,
    BY_COMPARISON: tl.constexpr,
):
    """Draw a row from the logits that reach ``bound``.

    Returns (token, or -1 if they are more than ``N``; the least kept logit; the kept mass; how many candidates there
    are). Where more than the token is wanted, the candidates stay in ``lists``, tile by tile.

    :param granules: [tiles, 16] maxima of the row, in memory; ``lists`` the :class:`~.argument_groups.CandidateLists`
        of the row.
    :param bound: no token below it is kept, and no filter depends on one.
    :param needed: the mass that has to reach ``bound``, or the answer is -1.
    :param flags: say whether the least kept logit and the mass are wanted: see :mod:`.row_params`.
    :param wants_token: whether the token is wanted; otherwise it is 0.
    """
    token = tl.full((), -1, tl.int32)
    floor = bound
    kept_mass = scale.mass
    num_candidates = tl.full((), -1, tl.int32)
    if BY_COMPARISON:
        found = _list(row, granules, tiles, lists, bound, config, N)
    else:
        found = tl.full((), 0, tl.int32)
        turn = 0
        while turn < _TURNS:
            found = _list(row, granules, tiles, lists, bound, config, N)
            turn = tl.where((found > N) & (found < _UNKNOWN), turn + 1, _TURNS)
            if turn < _TURNS:
                # Some of the tokens prove a bound, too.
                some, _ = load_candidates(row.base, lists.ids, N, config.VECTOR, N)
                better = bound_by_candidates(some, scale, filters.k, needed)
                tl.debug_barrier()
                turn = tl.where(better > bound, turn, _TURNS)
                bound = tl.maximum(bound, better)
    if found <= N:
        x, own = load_candidates(row.base, lists.ids, found, config.VECTOR, N)
        enough = tl.full((), 1, tl.int32)
        if needed > 0:
            enough = (tl.sum(weigh(x, scale.top, scale.scale), 0) >= needed).to(tl.int32)
        if enough > 0:
            if BY_COMPARISON:
                kept = keep_by_comparison(x, found, scale, filters, N, config.BY_FACTORS)
            else:
                kept = keep_by_halving(x, scale, filters)
            token = tl.full((), 0, tl.int32)
            if wants_token:
                of_token, of_tile = streams_of(flags)
                score = scaled(x, scale.top, scale.inverse, config.FP64)
                weight = tl.where(kept, weigh(x, scale.top, scale.scale), 0.0)
                if BY_COMPARISON:
                    token = draw_candidate(score, weight, kept, own, key, of_token, of_tile, config.FP64)
                else:
                    token = draw_candidate_in_turns(
                        score, weight, kept, own, key, of_token, of_tile, config.FP64
                    )
            num_candidates = found
            if (flags & EXACT) != 0:
                floor, kept_mass = _floor_and_mass(x, kept, scale)
                tl.debug_barrier()  # the list was read
                i = tl.arange(0, N)
                tl.store(lists.logits + i, x, mask=i < found)
                tl.store(lists.ids + i, own, mask=i < found)
    return token, floor, kept_mass, num_candidates


@triton.jit(noinline=True)
def draw_larger_set(
    row,
    granules,
    tiles,
    lists,
    bound,
    scale,
    filters,
    needed,
    key,
    flags,
    wants_token,
    config: tl.constexpr,
    N: tl.constexpr,
):
    """Draw likewise from up to ``N`` candidates, where fewer were not enough. Not inlined, to keep it out of the way.

    :param bound: proven, or -inf; the maxima of the granules may prove more.
    """
    if filters.k > 0:
        number = tiles * GRANULES_PER_TILE
        wanted = filters.k.to(tl.int32)
        most = tl.full((), N, tl.int32)
        proven = bound_by_granules(granules, number, filters.min_p_floor, scale.top, wanted, most)
        bound = tl.maximum(bound, proven)
    token = tl.full((), -1, tl.int32)
    floor = bound
    kept = scale.mass
    found = tl.full((), -1, tl.int32)
    if (bound > float("-inf")).to(tl.int32) + (row.vocab_size <= N).to(tl.int32) > 0:
        bound = tl.maximum(bound, LOWEST)
        token, floor, kept, found = draw_small_set(
            row,
            granules,
            tiles,
            lists,
            bound,
            scale,
            filters,
            needed,
            key,
            flags,
            wants_token,
            config,
            N,
            False,
        )
    return token, floor, kept, found
