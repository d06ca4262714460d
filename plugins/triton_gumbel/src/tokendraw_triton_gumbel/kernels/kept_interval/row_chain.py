"""Loads the part of a row's filters that stands behind top-p, and tells which rows ``redraw_rows`` has to draw.

Reads a few numbers a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.row_draw.tile_survey import weigh_tiles
from tokendraw_triton_gumbel.kernels.shared.noise import XTC, uniform
from tokendraw_triton_gumbel.kernels.shared.row_params import DRAFT, has_noise
from tokendraw_triton_gumbel.kernels.shared.weights import weigh

_DEFAULT_THRESHOLD = tl.constexpr(0.1)
_MAX_THRESHOLD = tl.constexpr(0.5)
_ROUNDING = tl.constexpr(1.001)
"""Margin for the error of a mass in float32."""
KEEPS_DRAW = tl.constexpr(-1)
"""Mark of a row among ``arrivals`` that ``redraw_rows`` leaves alone."""


class RowChain(NamedTuple):
    """The part of a row's filters that stands behind top-p; integers where no type is given."""

    is_last: Any
    """1 if the filters look at temperature 1 and the draw does not."""
    has_xtc: Any
    """1 if the row asks for XTC, and has noise to decide it."""
    applies: Any
    """1 if the uniform of the row applies XTC."""
    limit: Any
    """float64: the least probability of a token that XTC may drop."""


@triton.jit
def load_chain(slot, greedy, key, row_params, interval_params, flags, FP64: tl.constexpr):
    """Return the :class:`RowChain` of a row.

    :param row_params: :class:`~..shared.argument_groups.RowParams`; ``interval_params`` :class:`.IntervalParams`.
    :param flags: with the bit DRAFT of a draft's row, which XTC leaves alone.
    """
    is_sampled = (greedy == 0).to(tl.int32)
    is_last = tl.full((), 0, tl.int32)
    if interval_params.temperature_last is not None:
        is_last = (tl.load(interval_params.temperature_last + slot).to(tl.int32) != 0).to(tl.int32)
    has_xtc = tl.full((), 0, tl.int32)
    applies = has_xtc
    limit = tl.full((), _DEFAULT_THRESHOLD, tl.float64)
    if interval_params.xtc_probability is not None:
        probability = tl.load(interval_params.xtc_probability + slot).to(tl.float64)
        has_xtc = (probability > 0).to(tl.int32) * has_noise(slot, flags, row_params)
        u = tl.max(uniform(key, tl.zeros((1,), tl.int32), XTC, FP64), 0)
        if interval_params.xtc_threshold is not None:
            limit = tl.load(interval_params.xtc_threshold + slot).to(tl.float64)
        applies = has_xtc * (u < probability).to(tl.int32) * (limit <= _MAX_THRESHOLD).to(tl.int32)
        applies *= ((flags & DRAFT) == 0).to(tl.int32) * is_sampled
    return RowChain(is_last * is_sampled, has_xtc, applies, limit)


@triton.jit
def _second_weight(survey, scale):
    """Return an upper bound of the weight of the second token of a row, relative to the first, which weighs 1.

    The second token is the largest of another tile, or weighs no more than the first one's tile does without that.
    """
    is_first = survey.maximum == survey.max_logit
    weight = weigh(survey.maximum, survey.max_logit, scale)
    others = tl.max(tl.where(is_first, 0.0, weight), 0)
    rest = tl.sum(tl.where(is_first, tl.abs(survey.signed_sums), 0.0), 0) - 1.0
    return tl.maximum(others, rest)


@triton.jit
def is_redrawn(chain, survey, scale, k, p, floor):
    """Return 1 if ``redraw_rows`` has to draw a row, or 0 if the draw at hand is that of the row.

    XTC drops nothing unless two tokens are likely. Where top-p alone filters, the kept tokens weigh at least p of the
    mass.

    :param survey: the :class:`~..row_draw.tile_survey.TileSurvey` at the temperature of the filters; ``scale`` is
        ``log2(e) / T``.
    :param k: of the row's :class:`~..shared.row_values.RowFilters`, like the others; 0 is off.
    """
    is_alone = (k == 0).to(tl.int32) * (floor == float("-inf")).to(tl.int32)
    mass = tl.sum(weigh_tiles(survey, scale), 0).to(tl.float64)
    kept_mass = tl.where(is_alone > 0, p * mass, 0.0)
    may_drop = (kept_mass * chain.limit <= _second_weight(survey, scale) * _ROUNDING).to(tl.int32)
    return tl.maximum(chain.is_last, chain.applies * may_drop)
