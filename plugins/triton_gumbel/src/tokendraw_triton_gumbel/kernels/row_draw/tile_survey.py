"""Summarises a row from the statistics of its tiles, in registers."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.weights import weigh


class TileSurvey(NamedTuple):
    """The tiles of a row."""

    maximum: Any
    """[TILES] float32, -inf beyond the tiles."""
    signed_sums: Any
    """[TILES] float32: the sums, whose sign bit marks NaN; 0 beyond the tiles."""
    max_logit: Any
    """The largest maximum."""
    min_maximum: Any
    """The least maximum that is finite or +inf; +inf if there is none."""
    num_tiles: Any
    """Number of tiles with a logit above -inf."""
    has_nan: Any


@triton.jit
def _combine(top_a, least_a, sign_a, number_a, top_b, least_b, sign_b, number_b):
    return (
        tl.maximum(top_a, top_b),
        tl.minimum(least_a, least_b),
        tl.minimum(sign_a, sign_b),
        number_a + number_b,
    )


@triton.jit
def survey_tiles(statistics, first, tiles, TILES: tl.constexpr):
    """Load the statistics of a row's tiles, from tile ``first`` on, and reduce them."""
    tile = tl.arange(0, TILES)
    inside = tile < tiles
    maximum = tl.load(statistics.maxima + first + tile, mask=inside, other=float("-inf"))
    signed_sums = tl.load(statistics.sums + first + tile, mask=inside, other=0.0)
    is_finite = maximum > float("-inf")
    max_logit, min_maximum, sign, num_tiles = tl.reduce(
        (
            maximum,
            tl.where(is_finite, maximum, float("inf")),
            signed_sums.to(tl.int32, bitcast=True),
            is_finite.to(tl.int32),
        ),
        0,
        _combine,
    )
    return TileSurvey(maximum, signed_sums, max_logit, min_maximum, num_tiles, sign < 0)


@triton.jit
def weigh_tiles(survey, scale):
    """Return the mass of each tile relative to the largest logit of the row: [TILES]."""
    return tl.abs(survey.signed_sums) * weigh(survey.maximum, survey.max_logit, scale)
