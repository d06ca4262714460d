"""The filters that drop tokens from above too: typical-p and XTC. Each looks at what the filters before it left.

With p the probabilities of these tokens, renormalised, and H their entropy, typical-p (Meister et al., "Locally
Typical Sampling", 2022, arXiv 2202.00666) orders tokens by ``|-log p - H|``. In y that is the distance to the mean m of
y under p, since ``-log p = log Z - y`` and ``H = log Z - m``. So the kept set is an interval around m.

XTC ("exclude top choices") drops the tokens above the least one of probability ``xtc_threshold``, in the rows that
their uniform of the stream XTC chooses.

On a CPU, where the host may read parameters, the values of rows that ask for neither are not read.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tokendraw import philox
from tokendraw.plugin import GumbelDtype
from tokendraw.probabilities import first_reaching
from tokendraw.row_parameters import RowParameters
from tokendraw_native.noise import Noise
from tokendraw_native.rows import INF, CleanedLogits, scale


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
