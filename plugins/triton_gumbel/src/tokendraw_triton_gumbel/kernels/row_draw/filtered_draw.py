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
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, weigh

_LIKELIEST = tl.constexpr(48)
"""Tokens that are tried where top-p alone filters, at least."""
_MOST_LIKELY = tl.constexpr(112.0)
"""Tokens that are tried where those are not enough, about: few enough to be compared with each other."""
_NEARLY = tl.constexpr(0.93)
"""The share of the nucleus that the first have to weigh, likely, for more of them to be tried."""
_PROMISING = tl.constexpr(0.97)
"""The share that the tokens have to weigh, likely, to be looked at."""
_AMONG_MAXIMA = tl.constexpr(0.5)
"""The share from which on the maxima of granules show the edge of the nucleus better than a sample does."""


@triton.jit
def _likely_mass(survey, masses, scale, bound):
    """Return (about what the tokens weigh that reach a bound; what the maxima of tiles weigh that do).

    The first is what those tiles weigh, less the rest of them: which weighs about as much in each as other tiles do.

    :param masses: [TILES], which add up to ``scale.mass``.
    """
    hot = survey.maximum >= bound
    shown = tl.where(hot, weigh(survey.maximum, scale.top, scale.scale), 0.0)
    number, heavy, shown = tl.reduce((hot.to(tl.int32), tl.where(hot, masses, 0.0), shown), 0, _add)
    others = survey.number - number
    rest = (scale.mass - heavy) / tl.maximum(others, 1).to(tl.float32)
    return heavy - rest * number.to(tl.float32), shown


@triton.jit
def _add(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


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
    likely = tl.full((), 0.0, tl.float32)
    shown = tl.full((), 0.0, tl.float32)
    number = tiles * GRANULES_PER_TILE
    if (k > 0).to(tl.int32) + by_mass_alone > 0:
        wanted = tl.where(k > 0, k, _LIKELIEST).to(tl.int32)
        # Where tiles are few, their maxima prove little or nothing.
        if (survey.number < 2 * wanted).to(tl.int32) * (wanted <= SMALL).to(tl.int32) > 0:
            most = tl.full((), SMALL, tl.int32)  # as a number, so that there is one such function
            proven = bound_by_granules(granules, number, least, survey.top, wanted, most)
            if by_mass_alone > 0:
                likely, shown = _likely_mass(survey, masses, scales, proven)
        else:
            number_of_tiles = survey.number.to(tl.float32)
            trying = tl.full((), 1, tl.int32)
            proven = least
            while trying > 0:
                proven = bound_by_tiles(
                    survey.maximum,
                    survey.top,
                    survey.lowest,
                    survey.number,
                    wanted,
                    config.TILES,
                    config.IS_NVIDIA,
                )
                trying = by_mass_alone * (wanted == _LIKELIEST).to(tl.int32)
                if by_mass_alone > 0:
                    likely, shown = _likely_mass(survey, masses, scales, proven)
                    trying *= (likely < needed).to(tl.int32) * (likely >= needed * _NEARLY).to(tl.int32)
                    # So many tiles hold the largest of that many tokens.
                    held = number_of_tiles * (1.0 - tl.exp(-1.0 / number_of_tiles * _MOST_LIKELY))
                    wanted = tl.where(trying > 0, held.to(tl.int32), wanted)
        # What the floor of min-p keeps is all, whatever it weighs.
        needed = tl.where((least > float("-inf")) & (proven <= least), 0.0, needed)
        bound = tl.maximum(bound, proven)
    token = tl.full((), -1, tl.int32)
    floor = tl.full((), float("-inf"), tl.float32)
    found = tl.full((), -1, tl.int32)
    kept = mass
    worth = (bound > float("-inf")).to(tl.int32)
    if by_mass_alone > 0:
        worth *= (likely >= needed * _PROMISING).to(tl.int32)
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
    few = (source.vocab_size <= LARGE).to(tl.int32)
    worth = tl.where(by_mass_alone > 0, few, (k <= LARGE).to(tl.int32))
    bound = tl.where(by_mass_alone > 0, float("-inf"), bound)
    if (token < 0).to(tl.int32) * worth > 0:
        token, floor, kept, found = draw_larger_set(
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
            LARGE,
        )
    is_large = tl.full((), 0, tl.int32)
    if token < 0:
        is_large = tl.full((), 1, tl.int32)
        by_maxima = shown >= needed * _AMONG_MAXIMA
        proven = tl.where(by_mass_alone > 0, float("-inf"), floor)
        announce_first_pass(
            source,
            granules,
            number,
            row,
            proven,
            scales,
            filters,
            survey.has_nan,
            by_maxima,
            key,
            queue,
            state,
            config.ULP_STEP,
        )
    return token, mass, floor, kept / mass, found, is_large
