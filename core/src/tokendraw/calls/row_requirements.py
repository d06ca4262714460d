"""The requirements of rows of logits: seeds, greedy rows, filters and logprobs.

A need holds for every batch and is compared once, by :mod:`tokendraw.backends.resolution.checks`. A sampler that does
not support a property of some rows still serves all other rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tokendraw.backends.description import (
    FILTER_ORDERS,
    FILTERS,
    MOMENTS,
    Capabilities,
    Filter,
    FilterOrder,
    Requirement,
)
from tokendraw.filters.installed import required_moments

if TYPE_CHECKING:
    from tokendraw.parameters.batch_facts import BatchFacts


class RowGroup(NamedTuple):
    """Rows of a batch, comparable with requirements like a call, which has the same properties."""

    facts: BatchFacts
    vocab_size: int


def _exceeds_top_k(rows: RowGroup, capabilities: Capabilities) -> bool:
    limit, largest = capabilities.max_top_k, rows.facts.max_top_k
    return limit is not None and (largest is None or largest > limit)


def _needs_other_moments(rows: RowGroup, capabilities: Capabilities) -> bool:
    if not rows.facts.filters:
        return False
    moments = required_moments(rows.facts.filters)
    return not (capabilities.row_moments and set(moments) <= set(capabilities.row_moments))


def _listed(name: Filter | FilterOrder, kind: str, field: str, entry: object) -> Requirement:
    """Make the requirement that capabilities list an entry in a field, of rows that may have a filter or an order."""
    flag = f"any_{name}"
    return Requirement(
        kind=kind,
        is_supported=lambda capabilities, need: entry in getattr(capabilities, field),
        is_asked=lambda rows, capabilities: bool(getattr(rows.facts, flag)),
    )


VOCABULARY = Requirement(
    kind="rows of a vocabulary above its limit",
    reason="rows of a vocabulary above {capabilities.max_vocab_size}",
    is_supported=lambda capabilities, need: capabilities.max_vocab_size is None,
    is_asked=lambda rows, capabilities: rows.vocab_size > capabilities.max_vocab_size,
    is_settled=lambda need: need.vocab_size is not None,
    concerns_call=True,
    is_named_first=True,
)
LOGPROBS = Requirement(
    kind="rows that ask for {need.logprobs_mode}",
    reason="rows with logprobs",
    is_supported=lambda capabilities, need: need.logprobs_mode in capabilities.logprobs_modes,
    is_asked=lambda rows, capabilities: rows.facts.max_logprobs is not None,
)
SEEDED = Requirement(
    kind="seeded rows",
    is_supported=lambda capabilities, need: capabilities.seeding == "counter",
    is_asked=lambda rows, capabilities: rows.facts.any_seeded,
)
ROW_REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement(
        kind="greedy rows",
        is_supported=lambda capabilities, need: capabilities.greedy,
        is_asked=lambda rows, capabilities: rows.facts.any_greedy,
    ),
    SEEDED,
    *(_listed(name, f"{name} per row", "filters", (name, "per_row")) for name in FILTERS),
    Requirement(
        kind="filters from moments",
        is_supported=lambda capabilities, need: set(capabilities.row_moments) >= set(MOMENTS),
        is_asked=_needs_other_moments,
    ),
    Requirement(
        kind="a top_k above its limit",
        reason="top_k above {capabilities.max_top_k}",
        is_supported=lambda capabilities, need: capabilities.max_top_k is None,
        is_asked=_exceeds_top_k,
    ),
    VOCABULARY,
    *(_listed(name, f"filter order {name}", "filter_orders", name) for name in FILTER_ORDERS),
    LOGPROBS,
    Requirement(
        kind="rows with logprob_token_ids",
        # Where the mode is not served, LOGPROBS says so of these rows.
        is_supported=lambda capabilities, need: (
            capabilities.logprob_token_ids or need.logprobs_mode not in capabilities.logprobs_modes
        ),
        is_asked=lambda rows, capabilities: rows.facts.any_logprob_token_ids,
    ),
)
