"""The rules of the V2 runner's requests beyond vLLM's parameters: filters from moments and fields of tokendraw's own.

A column [slots] on the device for each rule, made when a request first asks for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendraw import InvalidParameterError, SamplingParams
from tokendraw.engines import RULE_FIELDS, rule_off, rule_values
from tokendraw_vllm import _log
from tokendraw_vllm._admission import rules_of

_PLAIN = SamplingParams()
NOT_REPLACED = "vLLM's own V2 sampler draws"
"""Why rules are lost, for the log."""


class Rules:
    """The rules of all requests of a sampler of vLLM."""

    def __init__(self, max_requests: int, device: torch.device, *, has_orders: bool) -> None:
        self._max_requests = max_requests
        self._device = device
        self._has_orders = has_orders
        self._by_slot: dict[int, SamplingParams] = {}
        """Requests with rules."""
        self._pending: set[int] = set()
        """Slots whose rules are to be written into the columns."""
        self._columns: dict[str, Tensor] = {}

    def add_request(self, slot: int, sampling_params: Any) -> None:
        """Note the rules of a request. Bad rules, which admission refuses, are left out with a line in the log."""
        try:
            params = rules_of(sampling_params)
        except InvalidParameterError as error:
            _log.log_kept(str(error).removesuffix("."), part="a request's rules")
            params = _PLAIN
        if params.filter_order != _PLAIN.filter_order and not self._has_orders:
            _log.log_lost(["filter_order"], "a sampler of vLLM's own may draw the logits that it has divided")
            params = dataclasses.replace(params, filter_order=_PLAIN.filter_order)
        had_rules = self._by_slot.pop(slot, None) is not None
        if params != _PLAIN:
            self._by_slot[slot] = params
        if had_rules or params != _PLAIN:
            self._pending.add(slot)

    def has_order(self, slot: int) -> bool:
        """Return whether a request has a filter order other than vLLM's."""
        return self._by_slot.get(slot, _PLAIN).filter_order != _PLAIN.filter_order

    def log_lost(self, requests: np.ndarray, reason: str) -> None:
        """Name the rules of requests that vLLM draws in the log."""
        if self._by_slot:
            asked = [self._by_slot[slot] for slot in requests.tolist() if slot in self._by_slot]
            _log.log_lost(_names(asked), reason)

    def active(self, requests: np.ndarray) -> tuple[str, ...]:
        """Return the names of the rules that a batch of requests may ask for, sorted."""
        if not self._by_slot:
            return ()
        asked = [self._by_slot[slot] for slot in requests.tolist() if slot in self._by_slot]
        return tuple(sorted({name for params in asked for name in rule_values(params)}))

    def refresh(self) -> None:
        """Write what has changed into the columns, on the current stream, without waiting."""
        for slot in self._pending:
            values = rule_values(self._by_slot.get(slot, _PLAIN))
            for name in {*values, *self._columns}:
                self._column(name)[slot].fill_(values.get(name, rule_off(name)))
        self._pending.clear()

    def tensors(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Return fields of the metadata for some rules."""
        return metadata_fields({name: self._column(name) for name in names})

    def _column(self, name: str) -> Tensor:
        if name not in self._columns:
            self._columns[name] = filled_column(self._max_requests, rule_off(name), self._device)
        return self._columns[name]


def filled_column(requests: int, value: float, device: torch.device) -> Tensor:
    """Make the column [slots] of a rule with one value: float32, or bool."""
    dtype = torch.bool if isinstance(value, bool) else torch.float32
    return torch.full((requests,), value, dtype=dtype, device=device)


def metadata_fields(columns: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return fields of the metadata for columns of rules."""
    filters = {name: column for name, column in columns.items() if name not in RULE_FIELDS}
    fields = {name: column for name, column in columns.items() if name in RULE_FIELDS}
    return {**fields, "filters": filters or None}


def log_lost(sampling_params: Any) -> None:
    """Name the rules of a request in the log where tokendraw replaces no sampler."""
    with contextlib.suppress(InvalidParameterError):  # refused by admission
        _log.log_lost(_names([rules_of(sampling_params)]), NOT_REPLACED)


def _names(requests: Sequence[SamplingParams]) -> list[str]:
    """Return the names of rules as requests give them, sorted."""
    fields = {
        field.name
        for params in requests
        for field in dataclasses.fields(params)
        if getattr(params, field.name) != getattr(_PLAIN, field.name)
    }
    filters = {name for params in requests for name in params.filters or ()}
    return sorted(fields - {"filters"} | filters)
