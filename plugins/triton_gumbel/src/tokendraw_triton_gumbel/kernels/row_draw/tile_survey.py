"""A row as one program knows it from the statistics of its tiles, in registers."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.weights import weigh


class TileSurvey(NamedTuple):
    """The tiles of a row."""

    maximum: Any
    """[TILES] float32, -inf beyond the tiles."""
    marked: Any
    """[TILES] float32: the sums, whose sign bit marks NaN; 0 beyond the tiles."""
    top: Any
    """The largest maximum."""
    lowest: Any
    """The least maximum that is finite or +inf; +inf if there is none."""
    number: Any
    """Number of tiles that hold anything above -inf."""
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
    """Load the statistics of a row's tiles, the first of which is number ``first``."""
    tile = tl.arange(0, TILES)
    inside = tile < tiles
    maximum = tl.load(statistics.maxima + first + tile, mask=inside, other=float("-inf"))
    marked = tl.load(statistics.sums + first + tile, mask=inside, other=0.0)
    some = maximum > float("-inf")
    top, lowest, sign, number = tl.reduce(
        (
            maximum,
            tl.where(some, maximum, float("inf")),
            marked.to(tl.int32, bitcast=True),
            some.to(tl.int32),
        ),
        0,
        _combine,
    )
    return TileSurvey(maximum, marked, top, lowest, number, sign < 0)


@triton.jit
def weigh_tiles(survey, scale):
    """Return the mass of each tile relative to the largest logit of the row: [TILES]."""
    return tl.abs(survey.marked) * weigh(survey.maximum, survey.top, scale)
