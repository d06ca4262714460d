"""Which kinds of rows a sampler cannot serve, so that a companion has to.

A need holds for every batch and is looked at once, by :mod:`tokendraw._checks`. Seeds, greedy rows, filters
and logprobs belong to single rows: a sampler that lacks one of them is still the right one for all the
others.
"""

from __future__ import annotations

from collections.abc import Iterator

from tokendraw._capabilities import FILTER_ORDERS, Capabilities, Filter, Need

_FILTERS: tuple[Filter, ...] = ("top_k", "top_p", "min_p")


def beyond(capabilities: Capabilities, need: Need) -> tuple[str, ...]:
    """Name the kinds of rows that are beyond a sampler; two samplers that lack the same say the same."""
    return tuple(_gaps(capabilities, need))


def covers(capabilities: Capabilities, kinds: tuple[str, ...], need: Need) -> bool:
    """Whether a sampler serves every one of ``kinds``, as named by :func:`beyond`."""
    return not set(kinds) & set(_gaps(capabilities, need))


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
        yield "a vocabulary above its limit"
    for order in FILTER_ORDERS:
        if order not in capabilities.filter_orders:
            yield f"filter order {order}"
    if need.logprobs_mode not in capabilities.logprobs_modes:
        yield f"rows that ask for {need.logprobs_mode}"
