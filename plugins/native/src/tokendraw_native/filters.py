"""The filters: each is a value threshold, so together they are a number a row. A token is kept if ``x >= threshold``.

A threshold keeps all ties, and does not depend on the order of the vocabulary or on the batch. Every filter keeps the
largest tokens, so the strictest one decides: the threshold of a row is the largest of those of its filters.

========  ==================================================================================================
moments   ``max x + T floor``: the highest floor of :mod:`tokendraw.filters`, from ``(x - max x) / T >= floor``
min-p     ``max x + T log(min_p)``, from ``(x - max x) / T >= log(min_p)``
top-k     the k-th largest value
top-p     the largest v such that the tokens with ``x >= v`` carry at least p of the mass: of what the other
          filters keep ("top_k_first"), or of the whole row ("joint")
greedy    the maximum
========  ==================================================================================================

The thresholds of top-k and top-p are one search (:mod:`tokendraw_native.threshold_search`): the largest value such that
the weights from there upwards add up to a target, with weight 1 and target k, or with weight exp(y) and target p Z.
``torch.topk`` shortens it for small k.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw.probabilities import floor_threshold, min_p_threshold, threshold_of_sorted
from tokendraw.row_parameters import RowParameters, widest_float
from tokendraw_native.buffers import Buffers
from tokendraw_native.moments import floors
from tokendraw_native.rows import INF, CleanedLogits, keep_mask, scale
from tokendraw_native.threshold_search import threshold_of
from tokendraw_native.topk import topk

MAX_TOPK_VALUES = 1024
"""Largest k for which ``torch.topk`` finds the largest values faster than the search does."""


class Thresholds(NamedTuple):
    """Least kept values of rows: [rows, 1] float32 each, at most ``rows.max``, so every row keeps a token."""

    before_top_p: Tensor
    """After floors, min-p and top-k; top-p is a share of the mass above it (``top_k_first``)."""
    combined: Tensor
    """After all filters."""


def thresholds(
    rows: CleanedLogits, weight: Tensor, params: RowParameters, vocab_size: int, buffers: Buffers
) -> Thresholds:
    """Find the least kept value of each row.

    :param rows: the rows; without filters from moments, at least as many of their largest values as they keep.
    :param weight: [rows, n] float64, ``exp(y)`` of each value.
    :param vocab_size: V; a k of V or more is off.
    """
    threshold, top_values = None, None
    if params.min_p is not None:
        threshold = min_p_threshold(rows.max, params.min_p, params.temperature)
    if params.filters is not None:
        from_moments = floor_threshold(rows.max, floors(rows, weight, params, buffers), params.temperature)
        threshold = from_moments if threshold is None else threshold.maximum(from_moments)
    if params.top_k is not None:
        top_values = _top_values(rows, params, vocab_size)
        kth = _top_k_threshold(rows, top_values, params, vocab_size, buffers)
        threshold = kth if threshold is None else threshold.maximum(kth)
    before_top_p = threshold
    if params.top_p is not None:
        nucleus = _top_p_threshold(rows, top_values, weight, threshold, params, buffers)
        threshold = nucleus if threshold is None else threshold.maximum(nucleus)
    combined = _clamp_thresholds(threshold, rows, params)
    return Thresholds(
        combined if before_top_p is threshold else _clamp_thresholds(before_top_p, rows, params), combined
    )


def _clamp_thresholds(threshold: Tensor | None, rows: CleanedLogits, params: RowParameters) -> Tensor:
    """Lower thresholds to the maximum of their rows, which is the threshold of greedy rows; None is -inf."""
    if threshold is None:
        threshold = torch.full_like(rows.max, -INF)
    if params.greedy is not None:
        threshold = torch.where(params.greedy, rows.max, threshold)
    return threshold.minimum(rows.max) if params.may_drop_tokens else threshold


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
    params: RowParameters,
    buffers: Buffers,
) -> Tensor:
    """Return the smallest value of top-p's set, [rows, 1]; -inf in rows without top-p.

    :param threshold: of the other filters.
    """
    top_p = params.top_p
    assert top_p is not None
    mass = (weight if threshold is None else weight * keep_mask(rows.x, threshold, buffers)).sum(
        -1, keepdim=True
    )
    if threshold is not None and params.joint is not None:
        mass = torch.where(params.joint, weight.sum(-1, keepdim=True), mass)
    if top_values is None or not params.all_top_k:
        nucleus = threshold_of(rows, weight, top_p * mass, buffers)
    else:  # the nucleus lies among the k largest values
        top_weight = weight[:, : top_values.shape[-1]]
        if not rows.descending:
            top_weight = scale(top_values, rows.max, params.inverse_temperature, finite=rows.finite).exp_()
        nucleus = threshold_of_sorted(top_values, top_weight, top_p * mass)
    return torch.where(top_p < 1, nucleus, -INF)
