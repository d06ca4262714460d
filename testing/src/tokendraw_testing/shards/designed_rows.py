"""Rows with a token that shows whether ranks counted mass and ties on several ranks together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.plugin import Capabilities
from tokendraw_testing.crossing.factors import Site
from tokendraw_testing.crossing.rows import CrossedRow, row_of
from tokendraw_testing.rows.subjects import crossed_orders

_LEAST_SIZE = 24
"""Least vocabulary with room for the levels of the designs."""
_TIES, _TAIL, _BULK = "ties at k decide on p", "a tail decides on p", "one token on one rank"
DESIGN_NAMES: Final = (_TIES, _TAIL, _BULK)
"""Names of the designs."""


def designed_rows(
    capabilities: Capabilities, site: Site, rng: Generator, *, copies: int
) -> Iterator[list[CrossedRow]]:
    """Make the rows of calls of a dtype and vocabulary: with a small top-k in every row, and with top-p alone."""
    filters = {name for name, _ in capabilities.filters}
    if site.size < _LEAST_SIZE or not filters >= {"top_k", "top_p"}:
        return
    ties, tail = SamplingParams(top_k=4, top_p=0.5), SamplingParams(top_k=5, top_p=0.2)
    calls = (
        {_TIES: (_ties(site.size), ties), _TAIL: (_tail(site.size), tail)},
        {_BULK: (_bulk(site.size), SamplingParams(top_p=0.9))},
    )
    for designs in calls:
        yield [
            row_of(capabilities, site, name, rng.permutation(y), replace(params, filter_order=order))
            for name, (y, params) in designs.items()
            for order in crossed_orders(capabilities)
            for _ in range(copies)
        ]


def _ties(size: int) -> NDArray[np.float64]:
    """Three tokens above many ties at k with most of the mass: p is reached among the ties only if all ranks count."""
    y = np.full(size, -20.0)
    y[:3], y[3 : 3 + min(size // 2, 40)] = 0.0, -1.0
    return y


def _tail(size: int) -> NDArray[np.float64]:
    """Five tokens, and more than their mass below the k-th: the joint order reaches p later if the tail counts."""
    y = np.full(size, np.log(5.0 / (size - 5)))
    y[:5] = np.linspace(0.0, -1.0, 5)
    return y


def _bulk(size: int) -> NDArray[np.float64]:
    """One token far above a bulk with most of the mass: the maximum of ranks without the token is far below."""
    y = np.linspace(0.0, -2.0, size) + np.log(3.0 / size)
    y[0] = 0.0
    return np.asarray(y)
