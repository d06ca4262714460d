"""Groups of arguments of the launches for XTC and the filter order ``temperature_last``."""

from __future__ import annotations

from typing import Any, NamedTuple


class IntervalParams(NamedTuple):
    """Parameters of the requests; each None where no request of a batch may use it."""

    temperature_last: Any = None
    """[slots] bool."""
    xtc_probability: Any = None
    """[slots] floating point, like ``xtc_threshold``."""
    xtc_threshold: Any = None


class FilterParams(NamedTuple):
    """The parameters that the filters look at, written by ``filter_params``.

    Each is None where the requests' own serve.
    """

    temperature: Any = None
    """[slots] floating point: 1 in slots of ``temperature_last`` that are not greedy, elsewhere the temperature."""
    other_temperature: Any = None
    """[slots] floating point: the other of 1 and the temperature."""
    min_p: Any = None
    """[slots] floating point: 0 where min-p stands behind top-p."""


class KeptInterval(NamedTuple):
    """Results and scratch of ``redraw_rows``; all None where no request of a batch may need the launch."""

    ceiling: Any = None
    """[rows] float32: the greatest kept logit of rows that ask for XTC, elsewhere +inf. None without XTC."""
    sums: Any = None
    """[rows, tiles] float32 of scratch: the weights of the tiles of a row."""
    arrivals: Any = None
    """[rows] int32 of scratch, written by launch 2: programs of a row that have weighed their part, or a mark."""
    log_masses: Any = None
    """[rows] float32 of scratch: of rows whose ceiling lies below their largest logit, the logarithm of the sum of
    ``exp((x - ceiling) / T)`` over the kept logits. None without log-probabilities."""


class KeptMasses(NamedTuple):
    """Kept masses for a verification by probabilities, of its target and of its drafts; all None elsewhere."""

    peaks: Any = None
    """[rows] float32: the greatest kept logit."""
    masses: Any = None
    """[rows] float32: ``masses * exp(log_shares)`` is the sum of ``exp((x - peak) / T)`` over the kept logits."""
    log_shares: Any = None
    """[rows] float32."""
