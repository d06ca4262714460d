"""Writes the sums behind moments of a rank's columns into its message, for filters from moments."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shards.words import store_word
from tokendraw_triton_gumbel.kernels.shared.moment_bits import (
    COLLISION,
    COUNT,
    ENTROPY,
    MASS,
    MEAN,
    SQUARES,
)
from tokendraw_triton_gumbel.kernels.tile_pass.moments_of_tiles import spread_of_tiles, weights_of_tiles

_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def store_moment_sums(words, word, sums, survey, place, inside, inverse, SUMS: tl.constexpr):
    """Write those that ``SUMS`` names, as float64 relative to the rank's largest logit, from ``word`` on.

    :param sums: :class:`~..shared.argument_groups.MomentSums`, read at ``place`` [TILES] where ``inside``.
    :param survey: :class:`~..row_draw.tile_survey.TileSurvey`.
    :param inverse: ``1 / T`` in float64.
    """
    is_finite = survey.maximum > float("-inf")
    distance = tl.where(is_finite, survey.maximum.to(tl.float64) - survey.max_logit.to(tl.float64), 0.0)
    if COUNT & SUMS:
        count, mean, squares = spread_of_tiles(sums, place, inside, distance)
        store_word(words, word, count)
        word += 2
        if MEAN & SUMS:
            store_word(words, word, mean)
            word += 2
        if SQUARES & SUMS:
            store_word(words, word, squares)
            word += 2
    if MASS & SUMS:
        mass, entropy, collision = weights_of_tiles(
            survey.signed_sums, sums, place, inside, is_finite, distance, inverse
        )
        store_word(words, word, mass.to(tl.float64))
        word += 2
        if ENTROPY & SUMS:
            store_word(words, word, entropy.to(tl.float64) * _LN_2)
            word += 2
        if COLLISION & SUMS:
            store_word(words, word, collision.to(tl.float64))
