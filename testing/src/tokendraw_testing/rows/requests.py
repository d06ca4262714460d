"""Makes requests within the capabilities of a subject, in every combination."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.filters import required_moments
from tokendraw.plugin import Capabilities
from tokendraw_testing.kit.effort import Effort
from tokendraw_testing.rows.subjects import SampleSubject, crossed_orders

SHIPPED: Final = {"top_n_sigma": 1.0, "epsilon_cutoff": 0.01, "eta_cutoff": 0.02, "p_less": 1.0}
"""Filters from moments that tokendraw ships, and values that leave some tokens of a few hundred."""


def combinations(capabilities: Capabilities, size: int) -> list[SamplingParams]:
    """Mix temperatures, filters and orders for a vocabulary of ``size``; the plain request comes first."""
    filters = {name for name, _ in capabilities.filters}
    limit = capabilities.max_top_k
    ks = [k for k in (0, 1, 40, max(1, size // 2), 2**30) if limit is None or k <= limit]
    top_k = ks if "top_k" in filters else [0]
    top_p = (1.0, 0.9, 0.3) if "top_p" in filters else (1.0,)
    min_p = (0.0, 0.05) if "min_p" in filters else (0.0,)
    requests = [
        SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m, filter_order=order)
        for t, k, p, m, order in itertools.product(
            (1.0, 0.6), top_k, top_p, min_p, crossed_orders(capabilities)
        )
    ]
    return requests + ([SamplingParams(temperature=0.0)] if capabilities.greedy else [])


def batches(
    subject: SampleSubject, requests: Sequence[SamplingParams], rows: int, turn: int = 0
) -> list[list[SamplingParams]]:
    """Make batches of ``rows`` requests with all of ``requests``: one batch for each request.

    Where they are to be mixed, there is one batch of all kinds, behind those that kernels may serve in a way of their
    own: plain rows only, greedy rows only.

    :param turn: of several such batches, which one this is: the next one goes on with other requests.
    """
    if not requests or not subject.effort.mixed:
        return [[params] * rows for params in requests]
    if scalar_filters(subject.capabilities):
        return [[params] * rows for params in _spread_requests(requests, 4)]
    uniform = SamplingParams(), SamplingParams(temperature=0.0)
    uniform_requests = [params for params in requests if params in uniform]
    return [*([params] * rows for params in uniform_requests), _spread_requests(requests, rows, turn * rows)]


def assign_requests(effort: Effort, requests: Sequence[SamplingParams], rows: int) -> list[SamplingParams]:
    """Pick a request for each of ``rows`` rows: in order, or spread over all requests for a mixed batch."""
    if effort.mixed:
        return _spread_requests(requests, rows)
    return [requests[i % len(requests)] for i in range(rows)]


def _spread_requests(requests: Sequence[SamplingParams], rows: int, start: int = 0) -> list[SamplingParams]:
    """Order requests at golden-ratio distances, so that neighbours differ and all requests come before a repetition."""
    step = round(0.618 * len(requests))
    while math.gcd(step, len(requests)) > 1:
        step += 1
    return [requests[i * step % len(requests)] for i in range(start, start + rows)]


def describe(params: SamplingParams) -> str:
    """Describe a request in words."""
    defaults = SamplingParams()
    names = ("temperature", "top_k", "top_p", "min_p", "typical_p", "xtc_probability", "xtc_threshold")
    values = {name: getattr(params, name) for name in names}
    words = [f"{name} = {value:.10g}" for name, value in values.items() if value != getattr(defaults, name)]
    words += [f"{name} = {value:.10g}" for name, value in (params.filters or {}).items()]
    return ", ".join(words) or "a plain row"


def scalar_filters(capabilities: Capabilities) -> tuple[str, ...]:
    """List the filters with one value for the whole batch."""
    per_row = {name for name, how in capabilities.filters if how == "per_row"}
    return tuple(name for name, how in capabilities.filters if how == "scalar" and name not in per_row)


def tokens_of(
    subject: SampleSubject,
    logits: torch.Tensor | NDArray[Any],
    params: Sequence[SamplingParams],
    positions: Sequence[int] | None = None,
    **options: Any,
) -> NDArray[Any]:
    """Draw the tokens of rows with different requests: in one call, or in one call for each value of a scalar filter.

    :param options: of :meth:`SampleSubject.tokens`.
    """
    logits = torch.as_tensor(logits)
    names = scalar_filters(subject.capabilities)
    if not names:
        return subject.tokens(logits, params, positions, **options)
    tokens = np.zeros(len(params), np.int64)
    keys = [tuple(getattr(p, name) for name in names) for p in params]
    for key in dict.fromkeys(keys):
        rows = [i for i, k in enumerate(keys) if k == key]
        part = None if positions is None else [positions[i] for i in rows]
        tokens[rows] = subject.tokens(logits[rows], [params[i] for i in rows], part, **options)
    return tokens


def has_filter(which: str) -> Callable[[Any], bool]:
    """Make the predicate of capabilities with a filter, per row or scalar."""
    return lambda capabilities: any(name == which for name, _ in capabilities.filters)


def has_counter(capabilities: Capabilities) -> bool:
    """Whether rows may bring seeds of their own."""
    return capabilities.seeding == "counter"


def has_logprobs(capabilities: Capabilities) -> bool:
    """Tell whether any logprobs mode is served."""
    return bool(capabilities.logprobs_modes)


def seedings(capabilities: Capabilities) -> tuple[bool, ...]:
    """List whether rows bring seeds: False, and True if seeds are served."""
    return (False, True) if has_counter(capabilities) else (False,)


def interval_choices(capabilities: Capabilities) -> list[dict[str, Any]]:
    """List fields of requests that cut rows from above, or whose filters look at temperature 1, if advertised."""
    choices: list[dict[str, Any]] = []
    if ("typical_p", "per_row") in capabilities.filters:
        choices += [{"typical_p": 0.3}, {"typical_p": 0.9}]
    if ("xtc", "per_row") in capabilities.filters:
        choices += [{"xtc_probability": p, "xtc_threshold": t} for p, t in ((1.0, 0.05), (0.5, 0.01))]
    if "temperature_last" in capabilities.filter_orders:
        others: list[dict[str, Any]] = [
            {name: value}
            for name, value in (("top_p", 0.8), ("min_p", 0.05))
            if (name, "per_row") in capabilities.filters
        ]
        choices += [{"filter_order": "temperature_last", **choice} for choice in (*choices, *others)]
    return choices


def shipped_filters(capabilities: Capabilities) -> list[str]:
    """List the filters from moments that tokendraw ships and whose moments are advertised."""
    return [name for name in SHIPPED if {*required_moments([name])} <= {*capabilities.row_moments}]


def moment_choices(capabilities: Capabilities) -> list[dict[str, Any]]:
    """List fields of requests with a filter from moments, alone and in each further filter order, if advertised."""
    choices = [{"filters": {name: SHIPPED[name]}} for name in shipped_filters(capabilities)]
    return [{"filter_order": order, **choice} for order in crossed_orders(capabilities) for choice in choices]
