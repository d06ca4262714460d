"""Finds the kinds of rows that a sampler cannot serve, so that a companion has to.

A need holds for every batch and is looked at once, by :mod:`tokendraw.backends.resolution.checks`. Seeds, greedy
rows, filters and logprobs belong to single rows: a sampler that lacks one of them is still the right one for all the
others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tokendraw.backends.description.capabilities import FILTER_ORDERS, Capabilities, Filter, Need

if TYPE_CHECKING:
    from tokendraw.parameters.batch_facts import BatchFacts

_FILTERS: tuple[Filter, ...] = ("top_k", "top_p", "min_p")
VOCABULARY = "rows of a vocabulary above its limit"
"""The gap that a batch has as a whole."""


def beyond(capabilities: Capabilities, need: Need) -> tuple[str, ...]:
    """Name the kinds of rows that are beyond a sampler; two samplers that lack the same say the same."""
    return tuple(_gaps(capabilities, need))


def offered(capabilities: Capabilities, need: Need) -> Capabilities:
    """Leave of the logprobs modes the one that rows will get."""
    modes = tuple(mode for mode in capabilities.logprobs_modes if mode == need.logprobs_mode)
    return replace(capabilities, logprobs_modes=modes)


def _gaps(capabilities: Capabilities, need: Need) -> Iterator[str]:
    if not capabilities.greedy:
        yield "greedy rows"
    if capabilities.seeding != "counter":
        yield "seeded rows"
    for name in _FILTERS:
        if (name, "per_row") not in capabilities.filters:
            yield f"{name} per row"
    if capabilities.max_top_k is not None:
        yield "a top_k above its limit"
    if capabilities.max_vocab_size is not None and need.vocab_size is None:
        yield VOCABULARY
    for order in FILTER_ORDERS:
        if order not in capabilities.filter_orders:
            yield f"filter order {order}"
    if need.logprobs_mode not in capabilities.logprobs_modes:
        yield f"rows that ask for {need.logprobs_mode}"


def unserved(capabilities: Capabilities, facts: BatchFacts, vocab_size: int = 0) -> str | None:
    """Return a kind of row that a batch may hold and a sampler cannot serve, or None, by a few comparisons."""
    if capabilities.max_vocab_size is not None and vocab_size > capabilities.max_vocab_size:
        return f"rows of a vocabulary above {capabilities.max_vocab_size}"
    if facts.any_greedy and not capabilities.greedy:
        return "greedy rows"
    if facts.any_seeded and capabilities.seeding != "counter":
        return "seeded rows"
    for name, wanted in (
        ("top_k", facts.max_top_k != 0),
        ("top_p", facts.any_top_p),
        ("min_p", facts.any_min_p),
    ):
        if wanted and (name, "per_row") not in capabilities.filters:
            return f"{name} per row"
    limit = capabilities.max_top_k
    if limit is not None and (facts.max_top_k is None or facts.max_top_k > limit):
        return f"top_k above {limit}"
    if facts.any_joint and "joint" not in capabilities.filter_orders:
        return "filter order joint"
    if facts.any_top_k_first and "top_k_first" not in capabilities.filter_orders:
        return "filter order top_k_first"
    if facts.max_logprobs is not None and not capabilities.logprobs_modes:
        return "rows with logprobs"
    return None
