"""Counts the greedy, seeded and unseeded rows of a call."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tokendraw import SamplingMetadata
from tokendraw.plugin import Capabilities


def kinds(capabilities: Capabilities) -> tuple[str, ...]:
    """List the kinds of rows drawn by a provider."""
    greedy = ("greedy",) if capabilities.greedy else ()
    return (*greedy, "unseeded") if capabilities.seeding == "none" else (*greedy, "seeded", "unseeded")


def rows_by_kind(metadata: SamplingMetadata, rows: int) -> Mapping[str, int]:
    """Count the rows of each kind, from the host's facts if possible: only mixed batches are read.

    :param metadata: with an entry for each of the ``rows``, or of no particular number of rows.
    """
    facts = metadata.facts
    if facts.all_greedy:
        return {"greedy": rows}
    if not facts.any_greedy and not facts.any_seeded:
        return {"unseeded": rows}
    if not facts.any_greedy and facts.all_seeded:
        return {"seeded": rows}
    temperature, seeded = metadata.per_row("temperature"), metadata.per_row("seeded")
    none = torch.zeros(rows, dtype=torch.bool)
    greedy = none if temperature is None else ~(temperature > 0).cpu()
    is_seeded = none if metadata.seed is None else ~greedy
    if seeded is not None:
        is_seeded = is_seeded & seeded.cpu()
    counts = {"greedy": int(greedy.sum()), "seeded": int(is_seeded.sum())}
    return counts | {"unseeded": rows - sum(counts.values())}
