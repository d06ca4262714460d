"""Makes rows and requests with log-probabilities and kept masses next to 0, so that rounding may exceed 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.plugin import Capabilities
from tokendraw_testing.rows.requests import scalar_filters

Array = NDArray[Any]


def leading_rows(rng: Generator, size: int, rows: int) -> Array:
    """Make rows [rows, V] float32, uniform or nearly so, but for a token with a lead, sometimes a large lead."""
    logits = rng.choice([0.0, 1e-3, 1.0], (rows, 1)) * rng.standard_normal((rows, size))
    lead = rng.choice([0.0, 1.0, 60.0], rows) * rng.uniform(0, 20, rows)
    logits[np.arange(rows), rng.integers(0, size, rows)] += lead
    return logits.astype(np.float32)


def narrow_requests(capabilities: Capabilities) -> list[SamplingParams]:
    """List requests with one kept token, few, or nearly all, as far as a sampler serves them row by row."""
    requests, filters = [SamplingParams(), SamplingParams(temperature=3.0)], dict(capabilities.filters)
    if scalar_filters(capabilities):
        return requests[:1]
    if "top_k" in filters:
        limit = capabilities.max_top_k or 30
        sharp = (1, 1.0), (2, 0.7), (30, 1.0)
        requests += [SamplingParams(top_k=min(k, limit), temperature=t) for k, t in sharp]
    if "top_p" in filters:
        requests += [SamplingParams(top_p=0.5), SamplingParams(top_p=0.999)]
        requests += [SamplingParams(top_p=0.999999, temperature=2.0)]
    if "min_p" in filters:
        requests += [SamplingParams(min_p=1.0), SamplingParams(min_p=1e-6)]
    orders = capabilities.filter_orders or ("top_k_first",)
    requests = [replace(request, filter_order=order) for request in requests for order in orders]
    return requests + ([SamplingParams(temperature=0.0)] if capabilities.greedy else [])
