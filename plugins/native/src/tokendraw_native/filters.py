"""The filters. Each keeps an interval of values, and a row the values ``threshold <= x <= ceiling`` of all intervals.

An interval keeps all ties, and does not depend on the order of the vocabulary or on the batch. Most filters keep the
largest tokens, without a ceiling: the threshold of a row is the largest of the thresholds of its filters.

===========  ===============================================================================================
moments      ``max x + T floor``: the highest floor of :mod:`tokendraw.filters`, from ``(x - max x) / T >= floor``
min-p        ``max x + T log(min_p)``, from ``(x - max x) / T >= log(min_p)``
top-k        the k-th largest value
typical-p    threshold and ceiling, see :mod:`tokendraw_native.ceilings`
top-p        the largest v such that the tokens with ``x >= v`` carry at least p of the mass: of what the filters
             above keep ("top_k_first"), or of the whole row ("joint")
XTC          a ceiling
greedy       the maximum, for both
===========  ===============================================================================================

Rows of the order "temperature_last" have T = 1 here, and their min-p stands behind top-p, relative to the largest value
that is left.

The thresholds of top-k and top-p are one search (:mod:`tokendraw_native.threshold_search`): the largest value such that
the weights from there upwards add up to a target, with weight 1 and target k, or with weight exp(y) and target p Z.
``torch.topk`` shortens it for small k.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw.probabilities import floor_threshold, min_p_threshold, threshold_of_sorted
from tokendraw.row_parameters import RowParameters, widest_float
from tokendraw_native.buffers import Buffers
from tokendraw_native.ceilings import typical_interval, xtc_ceiling
from tokendraw_native.moments import floors
from tokendraw_native.rows import INF, CleanedLogits, keep_mask, scale
from tokendraw_native.threshold_search import threshold_of
from tokendraw_native.topk import topk

MAX_TOPK_VALUES = 1024
"""Largest k for which ``torch.topk`` finds the largest values faster than the search does."""


class Thresholds(NamedTuple):
    """Bounds of the kept values of rows: [rows, 1] float32 each. Every row keeps a token."""

    before_top_p: Tensor
    """Least value kept by floors, min-p and top-k; top-p is a share of the mass above it (``top_k_first``)."""
    combined: Tensor
    """Least value kept by all filters."""
    ceiling: Tensor | None
    """Greatest kept value; None: every row keeps its largest value."""


def thresholds(
    rows: CleanedLogits, weight: Tensor, params: RowParameters, vocab_size: int, buffers: Buffers
) -> Thresholds:
    """Find the bounds of the kept values of each row.

    :param rows: the rows; without filters from moments, at least as many of their largest values as they keep.
    :param weight: [rows, n] float64, ``exp(y)`` of each value.
    :param params: with the temperature that the filters look at, see :func:`at_filters`.
    :param vocab_size: V; a k of V or more is off.
    """
    early_min_p, late_min_p = _min_p_by_place(params)
    threshold, top_values = None, None
    if early_min_p is not None:
        threshold = min_p_threshold(rows.max, early_min_p, params.temperature)
    if params.filters is not None:
        from_moments = floor_threshold(rows.max, floors(rows, weight, params, buffers), params.temperature)
        threshold = _higher(threshold, from_moments)
    if params.top_k is not None:
        top_values = _top_values(rows, params, vocab_size)
        threshold = _higher(threshold, _top_k_threshold(rows, top_values, params, vocab_size, buffers))
    before_top_p, ceiling = threshold, None
    if params.typical_p is not None:
        threshold, ceiling = typical_interval(rows, weight, threshold, params)
    if params.top_p is not None:
        nucleus = _top_p_threshold(rows, top_values, weight, threshold, ceiling, params, buffers)
        threshold = _higher(threshold, nucleus)
    if late_min_p is not None:
        top = rows.max if ceiling is None else ceiling
        threshold = _higher(threshold, min_p_threshold(top, late_min_p, params.temperature))
    if params.xtc_threshold is not None:
        threshold = _clamp_thresholds(threshold, rows.max if ceiling is None else ceiling, rows, params)
        ceiling = xtc_ceiling(rows, weight, threshold, ceiling, params)
    if ceiling is not None and params.greedy is not None:
        ceiling = torch.where(params.greedy, rows.max, ceiling)
    combined = _clamp_thresholds(threshold, rows.max if ceiling is None else ceiling, rows, params)
    is_last = before_top_p is threshold
    return Thresholds(
        combined if is_last else _clamp_thresholds(before_top_p, rows.max, rows, params), combined, ceiling
    )


def at_filters(params: RowParameters) -> RowParameters:
    """Return the parameters with temperature 1 in rows of the order ``temperature_last``, for their filters."""
    is_last = params.temperature_last
    if is_last is None:
        return params
    temperatures = params.temperature, params.inverse_temperature
    temperature, inverse = (torch.where(is_last, 1.0, column) for column in temperatures)
    return replace(params, temperature=temperature, inverse_temperature=inverse)


def _min_p_by_place(params: RowParameters) -> tuple[Tensor | None, Tensor | None]:
    """Return the min-p before top-k, and that behind top-p; 0 in the rows of the other place."""
    min_p, is_last = params.min_p, params.temperature_last
    if min_p is None or is_last is None:
        return min_p, None
    return min_p.masked_fill(is_last, 0.0), min_p.masked_fill(~is_last, 0.0)


def _higher(threshold: Tensor | None, other: Tensor) -> Tensor:
    return other if threshold is None else threshold.maximum(other)


def _clamp_thresholds(
    threshold: Tensor | None, ceiling: Tensor, rows: CleanedLogits, params: RowParameters
) -> Tensor:
    """Lower thresholds to the greatest kept value of their rows, the threshold of greedy rows; None is -inf."""
    if threshold is None:
        threshold = torch.full_like(rows.max, -INF)
    if params.greedy is not None:
        threshold = torch.where(params.greedy, rows.max, threshold)
    return threshold.minimum(ceiling) if params.may_drop_tokens else threshold


def _top_values(rows: CleanedLogits, params: RowParameters, vocab_size: int) -> Tensor | None:
    """Return the largest values [rows, n] in descending order, n being the largest k; None if n is too large."""
    n = min(params.max_top_k or vocab_size, rows.x.shape[-1])
    if n > MAX_TOPK_VALUES:
        return None
    return rows.x[:, :n] if rows.descending else topk(rows.x, n)[0]


def _top_k_threshold(
    rows: CleanedLogits, top_values: Tensor | None, params: RowParameters, vocab_size: int, buffers: Buffers
) -> Tensor:
    """Return the k-th largest value, [rows, 1]; -inf in rows without top-k."""
    top_k, max_top_k = params.top_k, params.max_top_k
    assert top_k is not None
    if top_values is None:
        kth = threshold_of(rows, torch.ones_like(rows.x, dtype=widest_float(rows.x.device)), top_k, buffers)
    else:
        kth = top_values.gather(-1, (top_k - 1).clamp_(0, top_values.shape[-1] - 1))
    if params.all_top_k and max_top_k is not None and max_top_k < vocab_size:
        return kth  # every row has an active k, greedy rows aside, whose threshold is the maximum
    return torch.where((top_k > 0) & (top_k < vocab_size), kth, -INF)


def _top_p_threshold(
    rows: CleanedLogits,
    top_values: Tensor | None,
    weight: Tensor,
    threshold: Tensor | None,
    ceiling: Tensor | None,
    params: RowParameters,
    buffers: Buffers,
) -> Tensor:
    """Return the smallest value of top-p's set, [rows, 1]; -inf in rows without top-p.

    :param threshold: of the filters before.
    :param ceiling: likewise.
    """
    top_p, joint = params.top_p, params.joint
    assert top_p is not None
    if ceiling is not None:  # rows that count the unfiltered mass have their nucleus in it
        is_above = rows.x > ceiling
        weight = weight.masked_fill(is_above if joint is None else is_above & ~joint, 0.0)
        top_values = None
    mass = (weight if threshold is None else weight * keep_mask(rows.x, threshold, buffers)).sum(
        -1, keepdim=True
    )
    if threshold is not None and joint is not None:
        mass = torch.where(joint, weight.sum(-1, keepdim=True), mass)
    if top_values is None or not params.all_top_k:
        nucleus = threshold_of(rows, weight, top_p * mass, buffers)
    else:  # the nucleus lies among the k largest values
        top_weight = weight[:, : top_values.shape[-1]]
        if not rows.descending:
            top_weight = scale(top_values, rows.max, params.inverse_temperature, finite=rows.finite).exp_()
        nucleus = threshold_of_sorted(top_values, top_weight, top_p * mass)
    return torch.where(top_p < 1, nucleus, -INF)
