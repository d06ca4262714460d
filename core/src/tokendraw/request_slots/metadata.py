"""Checks the slots, positions and tokens of a step, and makes the metadata of its rows."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tokendraw._torch.tensor_checks import INTEGERS, check_device_of, check_integers, check_vector, is_plain
from tokendraw._torch.upload import uploaded
from tokendraw.errors.exceptions import InvalidParameterError
from tokendraw.parameters.batch_facts import BatchFacts
from tokendraw.parameters.fields import each, integers
from tokendraw.parameters.metadata import (
    MAX_POSITION,
    SamplingMetadata,
    check_positions,
    missing_positions,
)
from tokendraw.request_slots.requests import Population


class HasTokenIds(Protocol):
    """The appended part of an output with several tokens a request."""

    @property
    def token_ids(self) -> Tensor:
        """[B, K + 1] integer, padded with -1."""


class RowInput(NamedTuple):
    """A vector or matrix of integers, on the host or on a device."""

    values: list[int] | None
    """The integers of a vector on the host."""
    tensor: Tensor | None
    """The tensor, if on the device of the slots."""


def row_input(name: str, values: Iterable[int] | Tensor, device: torch.device) -> RowInput:
    """Read an integer for each row, from the host or a device."""
    if not isinstance(values, Tensor):
        return RowInput(list(each(name, values, "integers")), None)
    if not is_plain(values) or values.dim() != 1 or values.dtype not in INTEGERS:
        check_vector(name, values)
        check_integers(name, values)
    if values.is_cpu:
        return RowInput(values.tolist(), values if device.type == "cpu" else None)
    check_device_of(name, values.device, "the slots", device)
    return RowInput(None, values)


def position_input(positions: Iterable[int] | Tensor, device: torch.device) -> RowInput:
    """Read the position of each row, from the host or a device; values on the device stay unread."""
    if isinstance(positions, Tensor) and positions.device == device:
        check_vector("positions", positions)
        check_integers("positions", positions)
        check_positions(positions)
        return RowInput(None, positions)
    row_positions = row_input("positions", positions, device)
    integers("positions", row_positions.values or (), 0, MAX_POSITION)
    return row_positions


def check_slots(slots: Sequence[int], live: set[int], num_slots: int, *, once: bool = False) -> None:
    """Refuse slots out of range, or without a request.

    :param once: also refuse one that is named twice.
    """
    integers("row_index", slots, 0, num_slots - 1)
    if live.issuperset(slots) and not (once and len({*slots}) < len(slots)):
        return
    seen = set()
    for row, slot in enumerate(slots):
        if slot not in live:
            raise InvalidParameterError(
                f"'row_index' of row {row} needs a slot with a request, found {slot}, which has none. "
                "Add the request with slots.add first."
            )
        if once and slot in seen:
            raise InvalidParameterError(
                f"'row_index' of row {row} needs each slot at most once, found {slot} again."
            )
        seen.add(slot)


def upload_inputs(device: torch.device, **inputs: RowInput) -> dict[str, Tensor]:
    """Return the tensors, by name, after a single upload of all inputs on the host."""
    columns = {name: (rows.values or (), torch.int64) for name, rows in inputs.items() if rows.tensor is None}
    uploads = uploaded(columns, device) if columns else {}
    return {name: uploads[name] if rows.tensor is None else rows.tensor for name, rows in inputs.items()}


_ROW_FIELDS = frozenset(("row_index", "positions"))


class MetadataCache:
    """Makes metadata of changing rows; while the facts stay equal, checks and the memo of samplers are shared."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        """[S] each, by field of the metadata."""
        self._facts: BatchFacts | None = None
        self._values: dict[Hashable, dict[str, Any]] = {}
        """All other attributes of metadata under these facts, by the shapes and dtypes of row_index and positions."""

    def of(
        self,
        population: Population,
        given_ids: Tensor | None,
        filters: Mapping[str, Tensor],
        row_index: Tensor,
        positions: Tensor | None = None,
    ) -> SamplingMetadata:
        """Describe rows.

        :param given_ids: [S, M] int64, ``logprob_token_ids``; None: no request has any.
        :param filters: [S] float32 each, by name: those that the facts of the population name.
        """
        facts = population.facts
        if facts is not self._facts:
            self._values.clear()
            self._facts = facts
        key = (
            row_index.shape,
            row_index.dtype,
            None if positions is None else (positions.shape, positions.dtype),
            None if given_ids is None else given_ids.shape[1],
        )
        values = self._values.get(key)
        if values is None:
            metadata = self._checked(population, given_ids, filters, row_index, positions)
            self._values[key] = {
                name: value for name, value in vars(metadata).items() if name not in _ROW_FIELDS
            }
            return metadata
        metadata = object.__new__(SamplingMetadata)
        vars(metadata).update(values, row_index=row_index, positions=positions)
        return metadata

    def _checked(
        self,
        population: Population,
        given_ids: Tensor | None,
        filters: Mapping[str, Tensor],
        row_index: Tensor,
        positions: Tensor | None,
    ) -> SamplingMetadata:
        tensors: dict[str, Any] = dict(self._parameters)
        if filters:
            tensors["filters"] = filters
        if given_ids is not None:
            tensors["logprob_token_ids"] = given_ids
        if positions is None:
            for slot, request in population.requests.items():
                if request.params["seed"] is not None:
                    raise missing_positions(f" of slot {slot}")
            del tensors["seed"], tensors["seeded"]
        if population.facts.max_logprobs is None:
            del tensors["logprobs"]
        return SamplingMetadata(**tensors, row_index=row_index, positions=positions, facts=population.facts)
