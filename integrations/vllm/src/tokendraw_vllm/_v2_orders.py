"""Requests of the V2 runner with a filter order of their own, whose temperature and min-p are tokendraw's to apply.

vLLM divides edited logits and drops tokens by min-p before a draw. Filters of the order ``temperature_last`` come
before both, and those of ``joint`` count what min-p drops. So vLLM reads, while it edits the logits of a step, columns
without the temperature and min-p of these requests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class _Column(NamedTuple):
    """A column [slots] as vLLM's methods read it."""

    np: np.ndarray
    gpu: Tensor


class Orders:
    """The parameters that either side applies to edited logits, by request."""

    def __init__(self, states: Any, device: torch.device) -> None:
        """Hold vLLM's ``SamplingStates``, without a request."""
        self._states = states
        self._has_order = np.zeros(states.max_num_reqs, dtype=bool)
        zeros = torch.zeros(states.max_num_reqs, dtype=torch.float32, device=device)
        self.columns: Mapping[str, Tensor] = {"temperature": zeros, "min_p": zeros.clone()}
        """What tokendraw applies: 1 or, to greedy requests, 0, and no min-p, where vLLM applies the request's own."""
        self._of_vllm: dict[str, _Column] = {}
        self._of_tokendraw: dict[str, _Column] = {}

    def add_request(self, slot: int, *, has_order: bool) -> None:
        """Note whether a request has a filter order other than vLLM's."""
        self._has_order[slot] = has_order

    def any(self, requests: np.ndarray) -> bool:
        """Return whether a request of a batch has an order of its own."""
        return bool(self._has_order[requests].any())

    def any_min_p(self, requests: np.ndarray) -> bool:
        """Return whether tokendraw has to apply min-p to edited logits of a batch."""
        return self.any(requests) and bool((self._of_tokendraw["min_p"].np[requests] > 0.0).any())

    def refresh(self, columns: Mapping[str, Tensor]) -> None:
        """Divide the parameters of all requests, on the current stream.

        :param columns: those of vLLM, as of this step.
        """
        torch.ne(columns["temperature"], 0.0, out=self.columns["temperature"])
        if not self._has_order.any():
            return
        states, has_order = self._states, self._has_order
        on_device = torch.from_numpy(has_order).to(columns["min_p"].device, non_blocking=True)
        hosts = {"temperature": states.temperature.np, "min_p": states.min_p.np}
        neutral_hosts = {
            "temperature": (hosts["temperature"] != 0.0).astype(np.float32),
            "min_p": np.zeros_like(hosts["min_p"]),
        }
        self.columns["min_p"].zero_()
        for name, neutral in self.columns.items():
            host, neutral_host, column = hosts[name], neutral_hosts[name], columns[name]
            self._of_vllm[name] = _Column(
                np.where(has_order, neutral_host, host), torch.where(on_device, neutral, column)
            )
            torch.where(on_device, column, neutral, out=neutral)
            self._of_tokendraw[name] = _Column(np.where(has_order, host, neutral_host), neutral)

    @contextlib.contextmanager
    def withheld(self) -> Iterator[None]:
        """Let vLLM edit logits without the parameters that tokendraw applies."""
        with self._read_by_vllm(self._of_vllm):
            yield

    def apply(self, logits: Tensor, slot_of_row: Tensor, requests: np.ndarray) -> None:
        """Have vLLM apply in place what was withheld, since it draws after all."""
        with self._read_by_vllm(self._of_tokendraw):
            self._states.apply_temperature(logits, slot_of_row, requests)
            self._states.apply_min_p(logits, slot_of_row, requests)

    @contextlib.contextmanager
    def _read_by_vllm(self, columns: Mapping[str, _Column]) -> Iterator[None]:
        before = {name: getattr(self._states, name) for name in columns}
        try:
            for name, column in columns.items():
                setattr(self._states, name, column)
            yield
        finally:
            for name, column in before.items():
                setattr(self._states, name, column)
