"""Draws a row that keeps few tokens: collects candidates, and does everything else in registers.

Reads the logits from a proven bound upwards (:mod:`.candidates`). :mod:`.kept_candidates` applies the filters.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.row_draw.candidates import (
    list_candidates,
    list_granules,
    load_candidates,
)
from tokendraw_triton_gumbel.kernels.row_draw.kept_candidates import keep_by_comparison
from tokendraw_triton_gumbel.kernels.row_draw.token_draw import draw_candidate
from tokendraw_triton_gumbel.kernels.shared.noise import streams_of
from tokendraw_triton_gumbel.kernels.shared.row_params import EXACT
from tokendraw_triton_gumbel.kernels.shared.weights import scaled, weigh

SMALL_CANDIDATES = 128
"""Candidates compared all with all."""
_UNKNOWN_COUNT = tl.constexpr(2147483647)
"""Represents an uncounted number."""


@triton.jit
def _least_and_sum(least_a, sum_a, least_b, sum_b):
    return tl.minimum(least_a, least_b), sum_a + sum_b


@triton.jit
def _floor_and_mass(x, kept, scale):
    """Return (the least kept logit, the kept mass)."""
    weight = tl.where(kept, weigh(x, scale.max_logit, scale.scale), 0.0)
    return tl.reduce((tl.where(kept, x, float("inf")), weight), 0, _least_and_sum)


@triton.jit
def _list(row, granules, tiles, lists, bound, config: tl.constexpr):
    """List the logits that reach ``bound``; return their number, or _UNKNOWN_COUNT if too many granules reach it."""
    N: tl.constexpr = config.SMALL_CANDIDATES
    num_found = tl.full((), _UNKNOWN_COUNT, tl.int32)
    num_granules = list_granules(granules, tiles, bound, lists.granules, N, config.IS_NVIDIA)
    if num_granules <= N:
        num_found = list_candidates(
            row,
            lists.granules,
            num_granules,
            bound,
            lists.ids,
            config.VECTOR,
            N,
            config.GRANULES_AT_ONCE,
            config.IS_NVIDIA,
            config.IS_ALIGNED,
        )
    return num_found


@triton.jit
def draw_small_set(
    row,
    granules,
    tiles,
    lists,
    bound,
    scale,
    filters,
    required_mass,
    key,
    flags,
    wants_token,
    config: tl.constexpr,
):
    """Draw a row from the logits that reach ``bound``.

    Returns (token, or -1 with more such logits than the room holds; the least kept logit; the kept mass; the number of
    candidates). If the flags ask for more than the token, the candidates stay in ``lists``, tile by tile.

    :param granules: [tiles, 16] maxima of the row, in memory; ``lists`` the :class:`~.argument_groups.CandidateLists`
        of the row.
    :param bound: no token below it is kept, and no filter depends on one.
    :param required_mass: the least mass of the logits from ``bound`` upwards; with less the token is -1.
    :param flags: say whether to return the least kept logit and the mass: see :mod:`.row_params`.
    :param wants_token: whether to draw the token; otherwise it is 0.
    """
    N: tl.constexpr = config.SMALL_CANDIDATES
    token = tl.full((), -1, tl.int32)
    threshold = bound
    kept_mass = scale.mass
    num_candidates = tl.full((), -1, tl.int32)
    num_found = _list(row, granules, tiles, lists, bound, config)
    if num_found <= N:
        x, ids = load_candidates(row.base, lists.ids, num_found, config.VECTOR, N)
        is_enough = tl.full((), 1, tl.int32)
        if required_mass > 0:
            is_enough = (tl.sum(weigh(x, scale.max_logit, scale.scale), 0) >= required_mass).to(tl.int32)
        if is_enough > 0:
            kept = keep_by_comparison(x, num_found, scale, filters, N, config.BY_FACTORS)
            token = tl.full((), 0, tl.int32)
            if wants_token:
                of_token, of_tile = streams_of(flags)
                score = scaled(x, scale.max_logit, scale.inverse, config.FP64)
                weight = tl.where(kept, weigh(x, scale.max_logit, scale.scale), 0.0)
                token = draw_candidate(score, weight, kept, ids, key, of_token, of_tile, config.FP64)
            num_candidates = num_found
            if (flags & EXACT) != 0:
                threshold, kept_mass = _floor_and_mass(x, kept, scale)
                tl.debug_barrier()  # the list was read
                i = tl.arange(0, N)
                tl.store(lists.logits + i, x, mask=i < num_found)
                tl.store(lists.ids + i, ids, mask=i < num_found)
    return token, threshold, kept_mass, num_candidates
