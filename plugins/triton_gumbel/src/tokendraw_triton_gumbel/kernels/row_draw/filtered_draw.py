"""The draw of a row with filters: from few candidates, or left to the launch for large sets."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.first_pass import announce_first_pass
from tokendraw_triton_gumbel.kernels.row_draw.bounds import bound_by_granules, bound_by_tiles
from tokendraw_triton_gumbel.kernels.row_draw.small_set import draw_small_set
from tokendraw_triton_gumbel.kernels.row_draw.tile_survey import weigh_tiles
from tokendraw_triton_gumbel.kernels.shared.argument_groups import CandidateLists
from tokendraw_triton_gumbel.kernels.shared.row_values import RowScale
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, weigh

_MAX_K = tl.constexpr(112)
"""Largest k whose candidates are collected here: some more logits than k reach a bound, and 128 are compared."""
_FIRST_TOKENS = tl.constexpr(48)
"""Number of tokens in the first try, where top-p alone filters."""
_MAX_TOKENS = tl.constexpr(112.0)
"""Approximate number of tokens in the second try: few enough to compare all with all."""
_RETRY_MASS_SHARE = tl.constexpr(0.93)
"""Least estimated share of the nucleus in the first try that justifies a second."""
_MIN_MASS_SHARE = tl.constexpr(0.97)
"""Least estimated share of the nucleus that justifies collecting candidates."""
_SMALL_VOCAB = tl.constexpr(4096)
"""Upper limit of a vocabulary whose logits may be compared themselves."""
_MIN_VISIBLE_SHARE = tl.constexpr(0.2)
"""Mass of the maxima of all tiles, as a share of the nucleus, from which on maxima of granules show its edge better
than a sample."""


@triton.jit
def _estimate_mass(survey, masses, scale, bound):
    """Estimate (the mass of the tokens that reach a bound; the mass of all maxima).

    The first is the mass of the tiles that reach the bound, less the mean mass of as many other tiles.

    :param masses: [TILES], which add up to ``scale.mass``.
    """
    reaches_bound = survey.maximum >= bound
    visible_mass = weigh(survey.maximum, scale.max_logit, scale.scale)
    count, tile_mass, visible_mass = tl.reduce(
        (reaches_bound.to(tl.int32), tl.where(reaches_bound, masses, 0.0), visible_mass), 0, _add
    )
    other_tiles = survey.num_tiles - count
    mean_rest = (scale.mass - tile_mass) / tl.maximum(other_tiles, 1).to(tl.float32)
    return tile_mass - mean_rest * count.to(tl.float32), visible_mass


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
    """Draw a row with a finite largest logit, or announce its first pass.

    Returns (token, or -1; the mass of the row; the least kept logit; the kept share of the mass; how many candidates
    there are, or -1; 1 if the row is left to the launch for large sets).

    :param source: the :class:`.RowAddress`; ``row`` its number, ``survey`` its :class:`~.tile_survey.TileSurvey`.
    :param granules: [tiles, 16] maxima of the row, in memory.
    :param lists: :class:`~.argument_groups.CandidateLists` of all rows, like ``queue`` and ``state``.
    """
    SMALL: tl.constexpr = config.SMALL_CANDIDATES
    scale = inverse * LOG2_E
    masses = weigh_tiles(survey, scale)
    mass = tl.sum(masses, 0)
    scales = RowScale(survey.max_logit, scale, inverse, mass)
    k, p, lower_limit = filters.k, filters.p, filters.floor
    # Top-p over the mass of the full row proves no bound; the likeliest tokens are tried, and then weighed.
    by_mass_alone = (k == 0).to(tl.int32) * (p < 1).to(tl.int32)
    by_mass_alone *= (lower_limit == float("-inf")).to(tl.int32) + (filters.joint != 0).to(tl.int32)
    required_mass = tl.where(by_mass_alone > 0, (p * mass.to(tl.float64)).to(tl.float32), 0.0)
    bound = lower_limit
    estimated_mass = tl.full((), 0.0, tl.float32)
    visible_mass = tl.full((), 0.0, tl.float32)
    num_granules = tiles * GRANULES_PER_TILE
    # More than that are left to the launch for large sets, unless the floor leaves fewer.
    if ((k > 0) & (k <= _MAX_K)).to(tl.int32) + by_mass_alone > 0:
        target_count = tl.where(k > 0, k, _FIRST_TOKENS).to(tl.int32)
        # Maxima of few tiles prove little or nothing.
        if survey.num_tiles < 2 * target_count:
            max_count = tl.full((), SMALL, tl.int32)  # no constant, so that the function is compiled once
            # Few maxima prove nothing; the logits of a small vocabulary take their place.
            is_small_vocab = (source.vocab_size <= _SMALL_VOCAB) & (5 * target_count > 4 * num_granules)
            proven_bound = bound_by_granules(
                tl.where(is_small_vocab, source.base, granules),
                tl.where(is_small_vocab, source.vocab_size, num_granules),
                lower_limit,
                survey.max_logit,
                target_count,
                max_count,
            )
            if by_mass_alone > 0:
                estimated_mass, visible_mass = _estimate_mass(survey, masses, scales, proven_bound)
        else:
            number_of_tiles = survey.num_tiles.to(tl.float32)
            is_trying = tl.full((), 1, tl.int32)
            proven_bound = lower_limit
            while is_trying > 0:
                proven_bound = bound_by_tiles(
                    survey.maximum,
                    survey.max_logit,
                    survey.min_maximum,
                    survey.num_tiles,
                    target_count,
                    config.TILES,
                    config.IS_NVIDIA,
                )
                is_trying = by_mass_alone * (target_count == _FIRST_TOKENS).to(tl.int32)
                if by_mass_alone > 0:
                    estimated_mass, visible_mass = _estimate_mass(survey, masses, scales, proven_bound)
                    is_trying *= (estimated_mass < required_mass).to(tl.int32) * (
                        estimated_mass >= required_mass * _RETRY_MASS_SHARE
                    ).to(tl.int32)
                    # The expected number of tiles that hold _MAX_TOKENS largest tokens.
                    expected_tiles = number_of_tiles * (1.0 - tl.exp(-1.0 / number_of_tiles * _MAX_TOKENS))
                    target_count = tl.where(is_trying > 0, expected_tiles.to(tl.int32), target_count)
        # The floor decides alone, whatever the mass above it.
        required_mass = tl.where(
            (lower_limit > float("-inf")) & (proven_bound <= lower_limit), 0.0, required_mass
        )
        bound = tl.maximum(bound, proven_bound)
    token = tl.full((), -1, tl.int32)
    threshold = tl.full((), float("-inf"), tl.float32)
    num_candidates = tl.full((), -1, tl.int32)
    kept_mass = mass
    is_worthwhile = (bound > float("-inf")).to(tl.int32)
    if by_mass_alone > 0:
        is_worthwhile *= (estimated_mass >= required_mass * _MIN_MASS_SHARE).to(tl.int32)
    start = row.to(tl.int64) * SMALL
    row_lists = CandidateLists(lists.granules + start, lists.logits + start, lists.ids + start)
    if is_worthwhile > 0:
        token, threshold, kept_mass, num_candidates = draw_small_set(
            source,
            granules,
            tiles,
            row_lists,
            bound,
            scales,
            filters,
            required_mass,
            key,
            flags,
            wants_token,
            config,
        )
    is_large = tl.full((), 0, tl.int32)
    if token < 0:
        is_large = tl.full((), 1, tl.int32)
        by_maxima = visible_mass >= required_mass * _MIN_VISIBLE_SHARE
        proven_bound = tl.where(by_mass_alone > 0, float("-inf"), bound)
        announce_first_pass(
            source,
            granules,
            num_granules,
            row,
            proven_bound,
            scales,
            filters,
            survey.has_nan,
            by_maxima,
            key,
            queue,
            state,
            config.ULP_STEP,
        )
    return token, mass, threshold, kept_mass / mass, num_candidates, is_large
