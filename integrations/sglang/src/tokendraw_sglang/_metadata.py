"""Turns SGLang's parameters of a batch into tokendraw's.

SGLang keeps tensors on the device and a few facts about them on the host. The same tensors come back step after step
until a request joins or leaves, so the metadata made from them is cached.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokendraw import BatchFacts, SamplingMetadata
from tokendraw.engines import RULE_FIELDS
from tokendraw_sglang._engine import FILTERS, is_deterministic
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
        seeded=None if seed is None or is_deterministic() else seed != NO_SEED,
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
        self._tensors: tuple[object, ...] = ()
        """Those of the last batch, kept alive."""
        self._facts: tuple[Any, ...] = ()
        self._metadata = SamplingMetadata()

    def metadata(self, info: Any, positions: Tensor, width: int = 1) -> SamplingMetadata:
        """Describe a batch; see :func:`metadata_of`. Tensors of the last batch are not read again."""
        tensors = (*(getattr(info, name) for name in _TENSORS), rules_of(info))
        stream = current_stream(info.temperatures.device)
        facts = (*(getattr(info, name) for name in _FACTS), stream, width)
        if facts != self._facts or any(a is not b for a, b in zip(self._tensors, tensors, strict=True)):
            self._metadata = metadata_of(info, positions, width)
            self._tensors, self._facts = tensors, facts
        last = self._metadata
        return last if last.seed is None else last.with_positions(positions)


def current_stream(device: torch.device) -> int | None:
    """Return the stream of a CUDA device: tensors made on one stream may not be ready on another."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
