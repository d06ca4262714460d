"""The filters. Each keeps an interval of values, and a row the values ``threshold <= x <= ceiling`` of all intervals.

An interval keeps all ties, and does not depend on the order of the vocabulary or on the batch. Most filters keep the
largest tokens, without a ceiling: the threshold of a row is the largest of the thresholds of its filters.

===========  ===============================================================================================
moments      ``max x + T floor``: the highest floor of :mod:`tokendraw.filters`, from ``(x - max x) / T >= floor``
min-p        ``max x + T log(min_p)``, from ``(x - max x) / T >= log(min_p)``
top-k        the k-th largest value
typical-p    threshold and ceiling, see below
top-p        the largest v such that the tokens with ``x >= v`` carry at least p of the mass: of what the filters
             above keep ("top_k_first"), or of the whole row ("joint")
XTC          a ceiling
greedy       the maximum, for both
===========  ===============================================================================================

Rows of the order "temperature_last" have T = 1 here, and their min-p stands behind top-p, relative to the largest value
that is left.

The thresholds of top-k and top-p are one search (:mod:`tokendraw_native.search`): the largest value such that
the weights from there upwards add up to a target, with weight 1 and target k, or with weight exp(y) and target p Z.
``torch.topk`` shortens it for small k.

Two filters drop tokens from above too, each of those that the filters before it left. With p the probabilities of
these, renormalised, and H their entropy, typical-p (Meister et al., "Locally Typical Sampling", 2022, arXiv 2202.00666)
orders tokens by ``|-log p - H|``. In y that is the distance to the mean m of y under p: ``-log p = log Z - y`` and
``H = log Z - m``. So the kept set is an interval around m. XTC ("exclude top choices") drops the tokens above the least
one of probability ``xtc_threshold``, in the rows that their uniform of the stream XTC chooses. On a CPU, where the host
may read parameters, the values of rows that ask for neither are not read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw import philox
from tokendraw.filters import (
    MomentSum,
    RowMoments,
    combined_floor,
    moments_of_sums,
    required_moments,
    required_sums,
)
from tokendraw.plugin import GumbelDtype, Moment
from tokendraw.probabilities import first_reaching, floor_threshold, min_p_threshold, threshold_of_sorted
from tokendraw.row_parameters import RowParameters, widest_float
from tokendraw_native.row_threads import Buffers
from tokendraw_native.rows import INF, CleanedLogits, Noise, keep_mask, scale
from tokendraw_native.search import threshold_of, topk

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
    if before_top_p is threshold:
        return Thresholds(combined, combined, ceiling)
    return Thresholds(_clamp_thresholds(before_top_p, rows.max, rows, params), combined, ceiling)


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
    kept = weight if threshold is None else weight * keep_mask(rows.x, threshold, buffers)
    mass = kept.sum(-1, keepdim=True)
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


# Typical-p and XTC.


def decide_xtc(params: RowParameters, noise: Noise | None, dtype: GumbelDtype) -> RowParameters:
    """Raise ``xtc_threshold`` to infinity in rows that XTC leaves alone, by the uniform of each row.

    :param noise: None: XTC leaves all rows alone.
    """
    if params.xtc_probability is None or params.xtc_threshold is None:
        return params
    if noise is None:
        return replace(params, xtc_threshold=None)
    is_applied = noise.uniform(philox.XTC, dtype) < params.xtc_probability
    return replace(params, xtc_threshold=torch.where(is_applied, params.xtc_threshold, INF))


def typical_interval(
    rows: CleanedLogits, weight: Tensor, threshold: Tensor | None, params: RowParameters
) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest value that typical-p keeps, [rows, 1] each.

    :param weight: [rows, n], ``exp(y)`` of each value.
    :param threshold: of the filters before, which counts in the first result; None: they keep every token.
    """
    typical_p = params.typical_p
    assert typical_p is not None
    least = torch.full_like(rows.max, -INF) if threshold is None else threshold.minimum(rows.max)
    greatest = rows.max
    asking = _rows_of(typical_p < 1)
    if asking is None:
        return least, greatest
    x, x_max, weights = rows.x[asking], rows.max[asking], weight[asking]
    out = torch.empty_like(weights)
    y = scale(x, x_max, params.inverse_temperature[asking], out, finite=rows.finite)
    is_dropped = x < least[asking]
    weights = weights.masked_fill(is_dropped, 0.0)
    mass = weights.sum(-1, keepdim=True)
    mean = (weights * y.masked_fill(weights == 0, 0.0)).sum(-1, keepdim=True) / mass
    distance = y.sub_(mean).abs_().masked_fill_(is_dropped, INF)
    ascending, order = distance.sort(-1)
    reached = first_reaching(weights.gather(-1, order).cumsum_(-1), typical_p[asking] * mass)
    is_kept = distance <= ascending.gather(-1, reached)
    is_off = typical_p[asking] >= 1
    low = torch.where(is_kept, x, INF).amin(-1, keepdim=True)
    high = torch.where(is_kept, x, -INF).amax(-1, keepdim=True)
    return (
        _replaced(least, asking, torch.where(is_off, least[asking], low)),
        _replaced(greatest, asking, torch.where(is_off, x_max, high)),
    )


def xtc_ceiling(
    rows: CleanedLogits, weight: Tensor, threshold: Tensor, ceiling: Tensor | None, params: RowParameters
) -> Tensor:
    """Return the greatest value that XTC keeps, [rows, 1].

    :param weight: [rows, n], ``exp(y)`` of each value.
    :param threshold: of the filters before; ``ceiling`` likewise, None: they keep the largest values.
    """
    assert params.xtc_threshold is not None
    greatest = rows.max if ceiling is None else ceiling
    asking = _rows_of(params.xtc_threshold < INF)
    if asking is None:
        return greatest
    x, top = rows.x[asking], greatest[asking]
    weights = weight[asking].masked_fill((x < threshold[asking]) | (x > top), 0.0)
    probability = weights.div_(weights.sum(-1, keepdim=True))
    is_likely = (probability >= params.xtc_threshold[asking]) & (probability > 0)
    least_likely = torch.where(is_likely, x, INF).amin(-1, keepdim=True)
    high = torch.where(is_likely.sum(-1, keepdim=True) > 1, least_likely, top)
    return _replaced(greatest, asking, high)


def _rows_of(is_asking: Tensor) -> Tensor | slice | None:
    """Return the numbers of the rows that ask, all on devices where the host cannot look; None: no row asks."""
    if is_asking.device.type != "cpu":
        return slice(None)
    found = is_asking.squeeze(-1).nonzero().squeeze(-1)
    if len(found) == 0:
        return None
    return slice(None) if len(found) == len(is_asking) else found


def _replaced(column: Tensor, rows: Tensor | slice, values: Tensor) -> Tensor:
    """Copy a column [rows, 1] with other values in some rows."""
    if isinstance(rows, slice):
        return values
    return column.index_copy(0, rows, values)


# The moments of rows, from which filters compute their floors; see :mod:`tokendraw.filters`.


def floors(rows: CleanedLogits, weight: Tensor, params: RowParameters, buffers: Buffers) -> Tensor:
    """Return the floor in y of each row's filters, [rows, 1] float32; -inf keeps every token.

    :param rows: all V logits of each row.
    :param weight: [rows, V], ``exp(y)`` of each logit.
    """
    assert params.filters is not None
    names = params.filter_names
    moments = row_moments(rows, weight, params.inverse_temperature, required_moments(names), buffers)
    return combined_floor(names, params.filters, moments).unsqueeze(-1)


def row_moments(
    rows: CleanedLogits,
    weight: Tensor,
    inverse_temperature: Tensor,
    names: tuple[Moment, ...],
    buffers: Buffers,
) -> RowMoments:
    """Compute the named moments of each row in the widest float, and round them to float32 once.

    Mean and deviation are those of ``x - max x``, times 1 / T: y itself may overflow. In rows with +inf they are NaN.
    """
    sums: dict[MomentSum, Tensor] = {}
    needed = required_sums(names)
    if "count" in needed:
        sums |= _spread(rows, buffers, has_squares="squares" in needed)
    if "mass" in needed:
        sums["mass"] = weight.sum(-1, keepdim=True)
    if "entropy" in needed:  # weight * y, also where y is -inf
        terms = torch.xlogy(weight, weight, out=buffers.like("terms", rows.x, weight.dtype))
        sums["entropy"] = terms.sum(-1, keepdim=True)
    if "collision" in needed:
        sums["collision"] = torch.linalg.vector_norm(weight, dim=-1, keepdim=True).square()
    return moments_of_sums(sums, names, inverse_temperature)


def _spread(rows: CleanedLogits, buffers: Buffers, *, has_squares: bool) -> dict[MomentSum, Tensor]:
    """Compute the number of finite logits, the mean of their distances from the largest, and any squares around it."""
    distance = buffers.like("terms", rows.x, widest_float(rows.x.device)).copy_(rows.x).sub_(rows.max)
    masked = rows.x == -INF
    # Only a CPU is looked at without waiting.
    is_masked = None if rows.x.device.type == "cpu" and not masked.any() else masked
    if is_masked is not None:
        distance.masked_fill_(is_masked, 0.0)
    size = rows.x.shape[-1]
    count = torch.full_like(rows.max, size, dtype=distance.dtype)
    if is_masked is not None:
        count -= is_masked.sum(-1, keepdim=True)
    mean = distance.sum(-1, keepdim=True) / count.clamp(min=1)
    sums: dict[MomentSum, Tensor] = {"count": count, "mean": mean}
    if has_squares:
        distance.sub_(mean)
        if is_masked is not None:
            distance.masked_fill_(is_masked, 0.0)
        sums["squares"] = torch.linalg.vector_norm(distance, dim=-1, keepdim=True).square()
    return sums
