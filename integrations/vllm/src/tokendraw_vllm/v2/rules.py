"""The rules that requests ask tokendraw for, ``extra_args["tokendraw"]``, beyond vLLM's parameters.

They are filters from moments and fields of tokendraw's own. ``InputProcessor._validate_params`` runs in the process
that takes requests: a ValueError there, for bad rules, is the answer to the request, and the engine goes on. It refuses
``min_p`` and ``logit_bias`` beside drafts, which V1 verifies without them; tokendraw serves both. The V2 runner has a
column [slots] on the device for each rule, made when a request first asks for it.

vLLM divides edited logits and drops tokens by min-p before a draw. Filters of the order ``temperature_last`` come
before both, and those of ``joint`` count what min-p drops. So a copy of vLLM's sampler edits the logits of such a step,
which reads columns without the temperature and min-p of the requests with an order of their own.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendraw import InvalidParameterError, SamplingParams
from tokendraw.engines import RULE_FIELDS, read_rules, rule_off, rule_values
from tokendraw_vllm import _parts
from tokendraw_vllm._engine import is_whole, misfits, verification_obstacle
from tokendraw_vllm._parts import SAMPLER, VERIFICATION

KEY = "tokendraw"
SOURCE = f"extra_args[{KEY!r}]"


def install() -> None:
    """Have vLLM's input processor of this process refuse bad rules, and admit what is served beside drafts."""
    from vllm.v1.engine.input_processor import InputProcessor

    _parts.replace_once(InputProcessor, "_validate_params", _checked)


def rules_of(sampling_params: Any) -> SamplingParams:
    """Read the rules of a request of vLLM; they may be bad, and raise an InvalidParameterError, a ValueError."""
    params = read_rules((getattr(sampling_params, "extra_args", None) or {}).get(KEY), SOURCE)
    if params.filters and sampling_params.min_p:
        raise InvalidParameterError(
            f"{SOURCE} needs min_p=0 beside filters, whose floors are those of the whole row, found "
            f"{sampling_params.min_p:g}. Leave out min_p or the filters."
        )
    return params


def _checked(original: Callable[..., Any]) -> Callable[..., Any]:
    def validate_params(self: Any, params: Any, *arguments: Any, **keywords: Any) -> Any:
        processor, refused = self, [name for name in ("min_p", "logit_bias") if getattr(params, name, None)]
        is_replay = getattr(params, "trace_decode_token_ids", None)  # whose check reads the same field
        if refused and self.speculative_config is not None and not is_replay:
            _check_engine(self.vllm_config, f"{refused[0]!r} beside drafts")
            processor = copy.copy(self)
            processor.speculative_config = None
        result = original(processor, params, *arguments, **keywords)
        if (getattr(params, "extra_args", None) or {}).get(KEY) is not None:
            rules_of(params)
            _check_engine(self.vllm_config, SOURCE)
        return result

    return validate_params


def _check_engine(config: Any, asked: str) -> None:
    """Refuse what a request asks for where vLLM draws or verifies the tokens of every request."""
    obstacle = verification_obstacle(config)
    part = SAMPLER if getattr(config, "speculative_config", None) is None else VERIFICATION
    if not getattr(config, "use_v2_model_runner", True):
        needed = "vLLM's V2 runner, whose sampler knows requests, found V1. Set VLLM_USE_V2_MODEL_RUNNER=1."
    elif not is_whole(part):
        reason = misfits().get(part) or misfits()[SAMPLER]
        needed = f"a {part} that tokendraw replaces, found one that is left alone: {reason}. Leave it out."
    elif obstacle is not None:
        needed = f"drafts that tokendraw verifies, found {obstacle}, by which vLLM verifies. Leave out one of them."
    else:
        return
    raise InvalidParameterError(f"{asked} needs {needed}")


_PLAIN = SamplingParams()
NOT_REPLACED = "vLLM's own V2 sampler draws"
"""Why rules are lost, for the log."""


class Rules:
    """The rules of all requests of a sampler of vLLM."""

    def __init__(self, max_requests: int, device: torch.device, *, has_orders: bool) -> None:
        self._max_requests = max_requests
        self._device = device
        self._has_orders = has_orders
        self.has_order = np.zeros(max_requests, dtype=bool)
        """Slots of requests with a filter order other than vLLM's."""
        self._by_slot: dict[int, SamplingParams] = {}
        self._pending: set[int] = set()
        """Slots whose rules are to be written into the columns."""
        self._columns: dict[str, Tensor] = {}

    def add_request(self, slot: int, sampling_params: Any) -> None:
        """Note the rules of a request. Bad rules, which admission refuses, are left out with a line in the log."""
        try:
            params = rules_of(sampling_params)
        except InvalidParameterError as error:
            _parts.log_kept(str(error).removesuffix("."), part="a request's rules")
            params = _PLAIN
        if params.filter_order != _PLAIN.filter_order and not self._has_orders:
            _parts.log_lost(
                ["filter_order"], "a sampler of vLLM's own may draw the logits that it has divided"
            )
            params = dataclasses.replace(params, filter_order=_PLAIN.filter_order)
        had_rules = self._by_slot.pop(slot, None) is not None
        if params != _PLAIN:
            self._by_slot[slot] = params
        if had_rules or params != _PLAIN:
            self._pending.add(slot)
        self.has_order[slot] = params.filter_order != _PLAIN.filter_order

    def log_lost(self, requests: np.ndarray, reason: str) -> None:
        _parts.log_lost(_names(self._asked(requests)), reason)

    def active(self, requests: np.ndarray) -> tuple[str, ...]:
        """Return the names of the rules that a batch of requests may ask for, sorted."""
        return tuple(sorted({name for params in self._asked(requests) for name in rule_values(params)}))

    def _asked(self, requests: np.ndarray) -> list[SamplingParams]:
        if not self._by_slot:  # as nearly always
            return []
        return [self._by_slot[slot] for slot in requests.tolist() if slot in self._by_slot]

    def refresh(self) -> None:
        """Write what has changed into the columns, on the current stream, without waiting."""
        for slot in self._pending:
            values = rule_values(self._by_slot.get(slot, _PLAIN))
            for name in {*values, *self._columns}:
                self._column(name)[slot].fill_(values.get(name, rule_off(name)))
        self._pending.clear()

    def tensors(self, names: tuple[str, ...]) -> dict[str, Any]:
        return metadata_fields({name: self._column(name) for name in names})

    def _column(self, name: str) -> Tensor:
        if name not in self._columns:
            self._columns[name] = filled_column(self._max_requests, rule_off(name), self._device)
        return self._columns[name]


def filled_column(requests: int, value: float, device: torch.device) -> Tensor:
    dtype = torch.bool if isinstance(value, bool) else torch.float32
    return torch.full((requests,), value, dtype=dtype, device=device)


def metadata_fields(columns: Mapping[str, Tensor]) -> dict[str, Any]:
    filters = {name: column for name, column in columns.items() if name not in RULE_FIELDS}
    fields = {name: column for name, column in columns.items() if name in RULE_FIELDS}
    return {**fields, "filters": filters or None}


def log_lost(sampling_params: Any) -> None:
    """Name the rules of a request in the log where tokendraw replaces no sampler."""
    with contextlib.suppress(InvalidParameterError):  # refused by admission
        _parts.log_lost(_names([rules_of(sampling_params)]), NOT_REPLACED)


def _names(requests: Sequence[SamplingParams]) -> list[str]:
    fields = {
        field.name
        for params in requests
        for field in dataclasses.fields(params)
        if getattr(params, field.name) != getattr(_PLAIN, field.name)
    }
    filters = {name for params in requests for name in params.filters or ()}
    return sorted(fields - {"filters"} | filters)


class Orders:
    """The parameters that either side applies to edited logits, by request."""

    def __init__(self, states: Any, rules: Rules, device: torch.device) -> None:
        self._states, self._has_order = states, rules.has_order
        zeros = torch.zeros(states.max_num_reqs, dtype=torch.float32, device=device)
        self.columns: Mapping[str, Tensor] = {"temperature": zeros, "min_p": zeros.clone()}
        """What tokendraw applies: 1 or, to greedy requests, 0, and no min-p, where vLLM applies the request's own."""
        self._of_vllm: dict[str, SimpleNamespace] = {}
        """Columns as vLLM's methods read them."""

    def any(self, requests: np.ndarray) -> bool:
        return bool(self._has_order[requests].any())

    def any_min_p(self, requests: np.ndarray) -> bool:
        """Return whether tokendraw has to apply min-p to edited logits of a batch."""
        return bool((self._has_order[requests] & (self._states.min_p.np[requests] > 0.0)).any())

    def refresh(self, columns: Mapping[str, Tensor]) -> None:
        """Divide the parameters of all requests, on the current stream, from vLLM's as of this step."""
        torch.ne(columns["temperature"], 0.0, out=self.columns["temperature"])
        if not self._has_order.any():
            return
        has_order = torch.from_numpy(self._has_order).to(columns["min_p"].device, non_blocking=True)
        self.columns["min_p"].zero_()
        for name, neutral in self.columns.items():
            host, column = getattr(self._states, name).np, columns[name]
            neutral_host = host != 0.0 if name == "temperature" else 0.0
            self._of_vllm[name] = SimpleNamespace(
                np=np.where(self._has_order, neutral_host, host).astype(host.dtype),
                gpu=torch.where(has_order, neutral, column),
            )
            torch.where(has_order, column, neutral, out=neutral)

    def editor(self, sampler: Any) -> Any:
        """Return a copy of vLLM's sampler that edits logits without the parameters that tokendraw applies."""
        editor = copy.copy(sampler)
        editor.sampling_states = copy.copy(self._states)
        vars(editor.sampling_states).update(self._of_vllm)
        return editor
