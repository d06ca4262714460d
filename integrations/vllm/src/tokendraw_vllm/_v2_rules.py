"""The rules of the V2 runner's requests beyond vLLM's parameters: filters from moments and fields of tokendraw's own.

A column [slots] on the device for each rule, made when a request first asks for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendraw import InvalidParameterError, SamplingParams
from tokendraw.engines import RULE_FIELDS
from tokendraw.filters import find_filter
from tokendraw_vllm import _log
from tokendraw_vllm._admission import rules_of

_PLAIN = SamplingParams()


class Rules:
    """The rules of all requests of a sampler of vLLM."""

    def __init__(self, max_requests: int, device: torch.device) -> None:
        self._max_requests = max_requests
        self._device = device
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
        had_rules = self._by_slot.pop(slot, None) is not None
        if params != _PLAIN:
            self._by_slot[slot] = params
        if had_rules or params != _PLAIN:
            self._pending.add(slot)

    def active(self, requests: np.ndarray) -> tuple[str, ...]:
        """Return the names of the rules that a batch of requests may ask for, sorted."""
        if not self._by_slot:
            return ()
        asked = [self._by_slot[slot] for slot in requests.tolist() if slot in self._by_slot]
        return tuple(sorted({name for params in asked for name in _values(params)}))

    def refresh(self) -> None:
        """Write what has changed into the columns, on the current stream, without waiting."""
        for slot in self._pending:
            values = _values(self._by_slot.get(slot, _PLAIN))
            for name in {*values, *self._columns}:
                self._column(name)[slot].fill_(values.get(name, _off(name)))
        self._pending.clear()

    def tensors(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Return fields of the metadata for some rules."""
        filters = {name: self._column(name) for name in names if name not in RULE_FIELDS}
        fields = {name: self._column(name) for name in names if name in RULE_FIELDS}
        return {**fields, "filters": filters or None}

    def _column(self, name: str) -> Tensor:
        if name not in self._columns:
            column = torch.empty(self._max_requests, dtype=torch.float32, device=self._device)
            self._columns[name] = column.fill_(_off(name))
        return self._columns[name]


def _values(params: SamplingParams) -> dict[str, float]:
    """Return the rules of a request by name."""
    fields = {name: getattr(params, name) for name in RULE_FIELDS}
    return {
        **{name: float(value) for name, value in fields.items() if value != getattr(_PLAIN, name)},
        **{name: float(value) for name, value in (params.filters or {}).items()},
    }


def _off(name: str) -> float:
    """Return the value of rows that do not ask for a rule."""
    return float(getattr(_PLAIN, name) if name in RULE_FIELDS else find_filter(name).off)
