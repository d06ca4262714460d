"""The draw of a row with filters: from few candidates, from more of them, or left to the launch for large sets."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.first_pass import announce_first_pass
from tokendraw_triton_gumbel.kernels.row_draw.bounds import bound_by_granules, bound_by_tiles
from tokendraw_triton_gumbel.kernels.row_draw.small_set import draw_larger_set, draw_small_set
from tokendraw_triton_gumbel.kernels.row_draw.tile_survey import weigh_tiles
from tokendraw_triton_gumbel.kernels.shared.argument_groups import CandidateLists
from tokendraw_triton_gumbel.kernels.shared.row_values import RowScale
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E

_LIKELIEST = tl.constexpr(48)
"""Tokens that are tried where top-p alone filters, at least."""


@triton.jit
def draw_filtered(
    source,
    row,
    survey,
    granules,
    tiles,
    inverse,
    filters,
    key,
    flags,
    wants_token,
    lists,
    queue,
    state,
    config: tl.constexpr,
):
    """Draw a row whose largest logit is finite, or announce its first pass.

    Returns (token, or -1; the mass of the row; the least kept logit; the kept share of the mass; how many candidates
    there are, or -1; 1 if the row is left to the launch for large sets).

    :param source: the :class:`~.row_values.Row`; ``row`` its number, ``survey`` its :class:`~.tile_survey.TileSurvey`.
    :param granules: [tiles, 16] maxima of the row, in memory.
    :param lists: :class:`~.argument_groups.CandidateLists` of all rows, like ``queue`` and ``state``.
    """
    SMALL: tl.constexpr = config.SMALL_CANDIDATES
    LARGE: tl.constexpr = config.LARGE_CANDIDATES
    scale = inverse * LOG2_E
    masses = weigh_tiles(survey, scale)
    mass = tl.sum(masses, 0)
    scales = RowScale(survey.top, scale, inverse, mass)
    k, p, least = filters.k, filters.p, filters.min_p_floor
    # Top-p that looks at the whole row proves no bound; the likeliest tokens are tried, and then weighed.
    by_mass_alone = (k == 0).to(tl.int32) * (p < 1).to(tl.int32)
    by_mass_alone *= (least == float("-inf")).to(tl.int32) + (filters.joint != 0).to(tl.int32)
    needed = tl.where(by_mass_alone > 0, (p * mass.to(tl.float64)).to(tl.float32), 0.0)
    bound = least
    if (k > 0).to(tl.int32) + by_mass_alone > 0:
        wanted = tl.where(k > 0, k, _LIKELIEST).to(tl.int32)
        # Where tiles are few, their maxima prove little or nothing.
        if (survey.number < 2 * wanted).to(tl.int32) * (wanted <= SMALL).to(tl.int32) > 0:
            proven = bound_by_granules(granules, tiles * GRANULES_PER_TILE, least, survey.top, wanted, SMALL)
        else:
            proven = bound_by_tiles(
                survey.maximum, survey.top, survey.lowest, survey.number, wanted, config.TILES
            )
        bound = tl.maximum(bound, proven)
    token = tl.full((), -1, tl.int32)
    floor = tl.full((), float("-inf"), tl.float32)
    found = tl.full((), -1, tl.int32)
    kept = mass
    worth = (bound > float("-inf")).to(tl.int32)
    if by_mass_alone > 0:
        # No more than the tiles weigh that reach the bound.
        hot = tl.where(survey.maximum >= bound, masses, 0.0)
        worth *= (tl.sum(hot, 0) >= needed).to(tl.int32)
    start = row.to(tl.int64) * LARGE
    own = CandidateLists(lists.granules + start, lists.logits + start, lists.ids + start)
    if worth > 0:
        token, floor, kept, found = draw_small_set(
            source,
            granules,
            tiles,
            own,
            bound,
            scales,
            filters,
            needed,
            key,
            flags,
            wants_token,
            config,
            SMALL,
            True,
        )
    worth = tl.where(
        by_mass_alone > 0, worth + (bound == float("-inf")).to(tl.int32), (k <= LARGE).to(tl.int32)
    )
    if (token < 0).to(tl.int32) * (needed <= LARGE).to(tl.int32) * worth > 0:
        token, floor, kept, found = draw_larger_set(
            source,
            granules,
            tiles,
            own,
            bound,
            by_mass_alone,
            scales,
            filters,
            needed,
            key,
            flags,
            wants_token,
            config,
            LARGE,
        )
    is_large = tl.full((), 0, tl.int32)
    if token < 0:
        is_large = tl.full((), 1, tl.int32)
        proven = tl.where(by_mass_alone > 0, float("-inf"), floor)
        announce_first_pass(
            source, row, proven, scales, filters, survey.has_nan, key, queue, state, config.ULP_STEP
        )
    return token, mass, floor, kept / mass, found, is_large
