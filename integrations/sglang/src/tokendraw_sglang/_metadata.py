"""Turns SGLang's parameters of a batch into tokendraw's.

SGLang keeps tensors on the device and a few facts about them on the host. The same tensors come back step after step
until a request joins or leaves, so the metadata made from them is cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokendraw import BatchFacts, SamplingMetadata
from tokendraw.engines import RULE_FIELDS
from tokendraw_sglang._engine import FILTERS
from tokendraw_sglang._rules import NO_SEED, rules_of

_TENSORS = ("temperatures", *(each.column for each in FILTERS.values()), "sampling_seed")
_FACTS = ("is_any_greedy", *(each.flag for each in FILTERS.values()), "max_top_k")


def metadata_of(info: Any, positions: Tensor, width: int = 1) -> SamplingMetadata:
    """Describe a batch. Waits for no device.

    :param info: a ``SamplingBatchInfo`` of B requests.
    :param positions: [B * width] integer: index in its sequence of the token behind each row of logits; read if a
        request may have a seed.
    :param width: rows of each request, which stand one behind the other.
    """
    temperature, rules = info.temperatures.view(-1), rules_of(info)
    if info.is_any_greedy:  # SGLang writes a temperature of 0 as top_k 1 at temperature 1
        temperature = temperature.masked_fill(info.top_ks <= 1, 0.0)
    filters = {name: getattr(info, each.column) for name, each in FILTERS.items() if getattr(info, each.flag)}
    from_moments = {name: column for name, column in rules.items() if name not in RULE_FIELDS}
    fields: dict[str, Any] = {name: column for name, column in rules.items() if name in RULE_FIELDS}
    if "top_p" in filters and len(filters) + len(rules) > 1 and "joint" not in fields:  # one has no order
        fields["joint"] = torch.ones_like(temperature, dtype=torch.bool)
    seed = info.sampling_seed
    return SamplingMetadata(
        temperature=temperature,
        **filters,
        **fields,
        filters=from_moments or None,
        seed=seed,
        seeded=None if seed is None else seed != NO_SEED,
        positions=None if seed is None else positions,
        row_index=None if width == 1 else rows_of_requests(len(temperature), width, temperature.device),
        facts=BatchFacts(
            any_greedy=info.is_any_greedy,
            max_top_k=info.max_top_k,
            all_top_k=info.max_top_k is not None,
            any_top_k_first="joint" in rules,
            filters=tuple(from_moments),
        ),
    )


def rows_of_requests(requests: int, width: int, device: torch.device) -> Tensor:
    """Make the request of each row [B * width] int64."""
    return torch.arange(requests * width, device=device).div_(width, rounding_mode="floor")


class LastMetadata:
    """Describes the batches of a run, and caches the last description."""

    def __init__(self) -> None:
        self._last: _CacheEntry | None = None

    def metadata(self, info: Any, positions: Tensor, width: int = 1) -> SamplingMetadata:
        """Describe a batch; see :func:`metadata_of`. Tensors of the last batch are not read again."""
        last = self._last
        if last is None or not last.matches(info, width):
            last = self._last = _CacheEntry.of(info, positions, width)
        return last.metadata if last.metadata.seed is None else last.metadata.with_positions(positions)


@dataclass(frozen=True, slots=True)
class _CacheEntry:
    """Metadata and the tensors and facts behind it."""

    tensors: tuple[object, ...]
    facts: tuple[Any, ...]
    metadata: SamplingMetadata

    @classmethod
    def of(cls, info: Any, positions: Tensor, width: int) -> _CacheEntry:
        return cls(_tensors(info), (*_facts(info), width), metadata_of(info, positions, width))

    def matches(self, info: Any, width: int) -> bool:
        """Return whether a batch has the same tensors, which the entry keeps alive, and the same facts."""
        same = all(cached is current for cached, current in zip(self.tensors, _tensors(info), strict=True))
        return same and self.facts == (*_facts(info), width)


def _tensors(info: Any) -> tuple[object, ...]:
    return (*(getattr(info, name) for name in _TENSORS), rules_of(info))


def _facts(info: Any) -> tuple[Any, ...]:
    return (*(getattr(info, name) for name in _FACTS), current_stream(info.temperatures.device))


def current_stream(device: torch.device) -> int | None:
    """Return the stream of a CUDA device: tensors made on one stream may not be ready on another."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
