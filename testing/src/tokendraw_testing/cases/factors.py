"""Factors of requests on rows of logits, and covering tables: few cases with every pair of values of two factors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.random import Generator

from tokendraw import SamplingParams
from tokendraw.plugin import Capabilities
from tokendraw_testing.kit.effort import Effort
from tokendraw_testing.subjects import crossed_orders

Case = dict[str, Any]
"""The value of each factor, by its name."""
CaseFilter = Callable[[Mapping[str, Any]], bool]
"""Whether a case is allowed; for an incomplete case, whether it can be completed."""

_CANDIDATES: Final = 6
"""Cases to choose the next one of a table from."""
_ATTEMPTS: Final = 100
Factors = dict[str, Sequence[Any]]
"""The values of each factor, by its name."""
Kind = Literal["seeded", "unseeded", "greedy", "greedy with a seed"]

ALL_BUT_ONE: Final = "V - 1"
"""A value of the factor ``top_k``, for which :func:`params_of` puts a number."""
_MOST_FILTERS: Final = 2
"""Most filters of a case: three filters hide each other."""
DISABLED_FILTERS: Final = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
NO_FILTERS: Final = {"temperature": 1.0, **DISABLED_FILTERS, "filter_order": "top_k_first"}
"""The case of a plain row."""


@dataclass(frozen=True)
class Site:
    """Dtype and vocabulary size of a call, as one factor: each pair of dtype and size meets each value of the rest."""

    dtype: str
    """Name of the dtype in torch."""
    size: int
    """V."""

    def __str__(self) -> str:
        return f"V = {self.size} in {self.dtype}"

    @property
    def torch_dtype(self) -> torch.dtype:
        """Return the dtype itself."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


def sites(capabilities: Capabilities, effort: Effort) -> list[Site]:
    """List every advertised dtype with every vocabulary of the effort within the provider's limit."""
    limit = capabilities.max_vocab_size
    sizes = [size for size in effort.crossed_sizes if limit is None or size <= limit] or [limit or 1]
    return [Site(dtype, size) for size in sizes for dtype in capabilities.dtypes]


def some_sites(capabilities: Capabilities, effort: Effort) -> list[Site]:
    """List the sites; where kernels are interpreted each dtype with one vocabulary, and each vocabulary with one."""
    return sites(capabilities, effort)[:: 1 + len(capabilities.dtypes) if effort.interpreted else 1]


def request_factors(capabilities: Capabilities) -> Factors:
    """Return the advertised temperatures, filters, per row or scalar, and filter orders."""
    filters = {name for name, _ in capabilities.filters}
    limit = capabilities.max_top_k
    ks = [k for k in (1, 40, 100, 256, 1025, 3000) if limit is None or k <= limit]
    return {
        "temperature": (1.0, 0.003, 0.5, 1.7, 12.0, 150.0, 1e-6),
        "top_k": (0, *ks, *[ALL_BUT_ONE] * (limit is None)) if "top_k" in filters else (0,),
        "top_p": (1.0, 0.0005, 0.3, 0.9, 0.999, 0.9999) if "top_p" in filters else (1.0,),
        "min_p": (0.0, 0.00002, 0.05, 0.4, 1.0) if "min_p" in filters else (0.0,),
        "filter_order": crossed_orders(capabilities),
    }


def combinations(capabilities: Capabilities, size: int) -> list[SamplingParams]:
    """Mix temperatures, filters and orders for a vocabulary of ``size``; the plain request comes first."""
    filters, limit = {name for name, _ in capabilities.filters}, capabilities.max_top_k
    ks = [k for k in (0, 1, 40, max(1, size // 2), 2**30) if limit is None or k <= limit]
    values: dict[str, Any] = {
        "temperature": (1.0, 0.6),
        "top_k": ks if "top_k" in filters else [0],
        "top_p": (1.0, 0.9, 0.3) if "top_p" in filters else (1.0,),
        "min_p": (0.0, 0.05) if "min_p" in filters else (0.0,),
        "filter_order": crossed_orders(capabilities),
    }
    requests = [
        SamplingParams(**dict(zip(values, case, strict=True))) for case in itertools.product(*values.values())
    ]
    return requests + [SamplingParams(temperature=0.0)] * capabilities.greedy


def kinds(capabilities: Capabilities) -> list[Kind]:
    """List the kinds of rows for a batch."""
    has_seeds, is_greedy = capabilities.seeding == "counter", capabilities.greedy
    served: dict[Kind, bool] = {
        "unseeded": True,
        "seeded": has_seeds,
        "greedy": is_greedy,
        "greedy with a seed": has_seeds and is_greedy,
    }
    return [kind for kind, is_served in served.items() if is_served]


def is_allowed(case: Mapping[str, Any]) -> bool:
    """Allow complete or partial cases with top-k below V and at most two filters, or the design's filter alone."""
    site, k, needed = case.get("site"), case.get("top_k", 0), getattr(case.get("design"), "needs", None)
    if site is not None and isinstance(k, int) and k >= site.size:
        return False
    active = {name for name, default in DISABLED_FILTERS.items() if case.get(name, default) != default}
    if needed is None:
        return len(active) <= _MOST_FILTERS
    # Far from zero, a dtype has no room for the levels of a designed row.
    return (
        active <= {needed}
        and case.get(needed) not in (DISABLED_FILTERS[needed], ALL_BUT_ONE)
        and abs(case.get("top", 0)) < 1000
    )


def params_of(case: Mapping[str, Any], **changes: Any) -> SamplingParams:
    """Return the unseeded request of a case, with some fields changed."""
    request = {name: case[name] for name in ("temperature", "top_k", "top_p", "min_p", "filter_order")}
    if case["top_k"] == ALL_BUT_ONE:
        request["top_k"] = case["site"].size - 1
    return SamplingParams(**(request | changes))


def allow_every_case(case: Mapping[str, Any]) -> bool:
    """Allow every case."""
    return True


def covering(
    factors: Mapping[str, Sequence[Any]], rng: Generator, allowed: CaseFilter = allow_every_case
) -> list[Case]:
    """Return cases that together hold every pair of values of two factors found in any allowed case.

    Each case begins with a pair that is still missing, and takes factor by factor the value that adds most of the
    missing pairs; the best of a few such cases is kept.
    """
    values = [(name, value) for name, owned in factors.items() for value in owned]
    numbers_of = {name: np.flatnonzero([owner == name for owner, _ in values]) for name in factors}
    missing = np.ones((len(values), len(values)), bool)  # symmetric
    for numbers in numbers_of.values():
        missing[np.ix_(numbers, numbers)] = False
    np.fill_diagonal(missing, True)  # stands for a value itself, so that a lone factor is covered too

    def case_of(numbers: Any) -> Case:
        return dict(values[i] for i in sorted(numbers))

    def complete(pair: Any) -> list[int] | None:
        """Complete a pair of numbers to a case; None in a dead end."""
        chosen = list(dict.fromkeys(pair.tolist()))
        case, gains = case_of(chosen), missing[chosen].sum(0)
        if not allowed(case):
            return None
        for name in rng.permutation([name for name in factors if name not in case]).tolist():
            numbers = rng.permutation(numbers_of[name])
            order = np.argsort(-gains[numbers], kind="stable")
            number = next((i for i in numbers[order] if allowed({**case, name: values[i][1]})), None)
            if number is None:
                return None
            chosen.append(int(number))
            gains = gains + missing[number]
            case[name] = values[number][1]
        return chosen

    cases = []
    while missing.any():
        pair = rng.choice(np.argwhere(missing))
        grown = [chosen for _ in range(_CANDIDATES) if (chosen := complete(pair)) is not None]
        best = max(grown, key=lambda numbers: missing[np.ix_(numbers, numbers)].sum(), default=None)
        covered = pair if best is None else np.array(best)
        missing[np.ix_(covered, covered)] = False
        if best is not None:
            cases.append(case_of(best))
    return cases


def random_case(
    factors: Mapping[str, Sequence[Any]], rng: Generator, allowed: CaseFilter = allow_every_case
) -> Case:
    """Return an allowed case with values at random.

    :raises ValueError: none was found in many attempts.
    """
    for _ in range(_ATTEMPTS):
        case: Case = {}
        for name in rng.permutation(list(factors)).tolist():
            values = [value for value in factors[name] if allowed({**case, name: value})]
            if not values:
                break
            case[name] = values[int(rng.integers(len(values)))]
        else:
            return {name: case[name] for name in factors}
    raise ValueError(f"'factors' need values that are allowed together, found none of {list(factors)}.")
