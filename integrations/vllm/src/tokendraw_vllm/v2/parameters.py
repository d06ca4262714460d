"""Parameters of the V2 runner's requests, as tokendraw's: rules of requests beyond vLLM's, batches as metadata.

Rules, ``extra_args["tokendraw"]``, are filters from moments and fields of tokendraw's own.
``InputProcessor._validate_params`` runs in the process that takes requests: a ValueError there, for bad rules, is the
answer to the request, and the engine goes on. It refuses ``min_p`` and ``logit_bias`` beside drafts, which V1 verifies
without them; tokendraw serves both.

vLLM keeps the parameters in pinned host memory that the device reads, in alternating buffers. A copy in device memory,
with an entry a slot, changes only when a request is added, and keeps its address, so a step builds nothing but the
host's facts about its rows. These are kept too while no request comes: steps of a running batch are equal. Rules have
such columns from the first request on that asks for them.

vLLM divides edited logits and drops tokens by min-p before a draw. Filters of the order ``temperature_last`` come
before both, and those of ``joint`` count what min-p drops. So a copy of vLLM's sampler edits the logits of such a step,
which reads columns without the temperature and min-p of the requests with an order of their own.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tokendraw import BatchFacts, InvalidParameterError, SamplingMetadata, SamplingParams
from tokendraw.engines import RULE_FIELDS, read_rules, rule_off, rule_values, warmup_rules
from tokendraw_vllm import _parts
from tokendraw_vllm._engine import is_whole, misfits, verification_obstacle
from tokendraw_vllm._parts import SAMPLER, VERIFICATION
from tokendraw_vllm.v2.edits import EditedRows, Edits

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
    """The rules of all requests of a sampler of vLLM, and the parameters that either side applies to edited logits."""

    def __init__(self, states: Any, device: torch.device, *, has_orders: bool) -> None:
        self._states, self._device, self._has_orders = states, device, has_orders
        self._has_order = np.zeros(states.max_num_reqs, dtype=bool)
        """Slots of requests with a filter order other than vLLM's."""
        self._by_slot: dict[int, SamplingParams] = {}
        self._pending: set[int] = set()
        """Slots whose rules are to be written into the columns."""
        self._columns: dict[str, Tensor] = {}
        zeros = torch.zeros(states.max_num_reqs, dtype=torch.float32, device=device)
        self.behind_edits = {"temperature": zeros, "min_p": zeros.clone()}
        """What tokendraw applies: 1 or, to greedy requests, 0, and no min-p, where vLLM applies the request's own."""
        self._of_vllm: dict[str, SimpleNamespace] = {}
        """Columns as vLLM's methods read them."""

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
        self._has_order[slot] = params.filter_order != _PLAIN.filter_order

    def log_lost(self, requests: np.ndarray, reason: str) -> None:
        _parts.log_lost(_names(self._asked(requests)), reason)

    def active(self, requests: np.ndarray) -> tuple[str, ...]:
        """Return the names of the rules that a batch of requests may ask for, sorted."""
        return tuple(sorted({name for params in self._asked(requests) for name in rule_values(params)}))

    def _asked(self, requests: np.ndarray) -> list[SamplingParams]:
        if not self._by_slot:  # as nearly always
            return []
        return [self._by_slot[slot] for slot in requests.tolist() if slot in self._by_slot]

    def refresh(self, columns: Mapping[str, Tensor]) -> None:
        """Write what has changed into the columns, on the current stream, without waiting.

        :param columns: vLLM's parameters of all requests, as of this step; those of edited logits are divided.
        """
        for slot in self._pending:
            values = rule_values(self._by_slot.get(slot, _PLAIN))
            for name in {*values, *self._columns}:
                self._column(name)[slot].fill_(values.get(name, rule_off(name)))
        self._pending.clear()
        torch.ne(columns["temperature"], 0.0, out=self.behind_edits["temperature"])
        if not self._has_order.any():
            return
        has_order = torch.from_numpy(self._has_order).to(columns["min_p"].device, non_blocking=True)
        self.behind_edits["min_p"].zero_()
        for name, neutral in self.behind_edits.items():
            host, column = getattr(self._states, name).np, columns[name]
            neutral_host = host != 0.0 if name == "temperature" else 0.0
            self._of_vllm[name] = SimpleNamespace(
                np=np.where(self._has_order, neutral_host, host).astype(host.dtype),
                gpu=torch.where(has_order, neutral, column),
            )
            torch.where(has_order, column, neutral, out=neutral)

    def tensors(self, names: tuple[str, ...]) -> dict[str, Tensor]:
        return {name: self._column(name) for name in names}

    def _column(self, name: str) -> Tensor:
        if name not in self._columns:
            self._columns[name] = filled_column(self._states.max_num_reqs, rule_off(name), self._device)
        return self._columns[name]

    def any_order(self, requests: np.ndarray) -> bool:
        return bool(self._has_order[requests].any())

    def any_min_p(self, requests: np.ndarray) -> bool:
        """Return whether tokendraw has to apply min-p to edited logits of a batch."""
        return bool((self._has_order[requests] & (self._states.min_p.np[requests] > 0.0)).any())

    def editor(self, sampler: Any) -> Any:
        """Return a copy of vLLM's sampler that edits logits without the parameters that tokendraw applies."""
        editor = copy.copy(sampler)
        editor.sampling_states = copy.copy(self._states)
        vars(editor.sampling_states).update(self._of_vllm)
        return editor


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


_DTYPES = {  # as in kernels without the parameter, so that a missing parameter compiles nothing
    "temperature": torch.float32,
    "top_k": torch.int64,
    "top_p": torch.float32,
    "min_p": torch.float32,
    "seeds": torch.int64,
}


def example_batches(
    max_requests: int, device: torch.device, *, seeds_every_row: bool, least_rows: int = 1
) -> list[SamplingMetadata]:
    """Make up batches of the V2 runner to compile kernels for, with the rules of the environment variable.

    :param max_requests: number of slots; the batches have the least number of rows, or as many as slots, up to 256.
    :param least_rows: 1, or K + 1 for a verification of one request.
    """
    columns = empty_columns(max_requests, device)
    for name, value in {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.05}.items():
        columns[name].fill_(value)
    switches = itertools.product((False, True), (0, 50), (False, True), (False, True))
    asked: list[dict[str, float]] = [{}, *warmup_rules()]
    rules_of_forms = [
        {name: filled_column(max_requests, value, device) for name, value in rules.items()} for rules in asked
    ]
    forms = [
        make_metadata(
            columns,
            BatchFacts(
                any_greedy=greedy,
                max_top_k=top_k,
                all_top_k=top_k > 0,
                any_top_p=top_p,
                any_min_p=min_p,
                any_joint=False,
                filters=_from_moments(rules),
            ),
            rules,
            has_seeds=has_seeds,
        )
        for (greedy, top_k, top_p, min_p), rules in itertools.product(switches, rules_of_forms)
        for has_seeds in ((True,) if seeds_every_row else (False, True))
    ]
    counts = sorted({least_rows, max(least_rows, min(max_requests, 256))})
    rows = [torch.arange(count, device=device) % max_requests for count in counts]
    return [form.for_rows(slots, slots) for form in forms for slots in rows]


def empty_columns(requests: int, device: torch.device) -> dict[str, Tensor]:
    return {name: torch.zeros(requests, dtype=dtype, device=device) for name, dtype in _DTYPES.items()}


def make_metadata(
    columns: Mapping[str, Tensor], facts: BatchFacts, rules: Mapping[str, Tensor], *, has_seeds: bool
) -> SamplingMetadata:
    """Describe batches with given facts; :meth:`SamplingMetadata.for_rows` fills in the rows."""
    placeholder = columns["seeds"].new_zeros(1)
    fields: dict[str, Any] = {name: column for name, column in rules.items() if name in RULE_FIELDS}
    return SamplingMetadata(
        temperature=columns["temperature"],
        top_k=columns["top_k"] if facts.max_top_k else None,
        top_p=columns["top_p"] if facts.any_top_p else None,
        min_p=columns["min_p"] if facts.any_min_p else None,
        seed=columns["seeds"] if has_seeds else None,
        positions=placeholder,
        row_index=placeholder,
        facts=facts,
        filters={name: rules[name] for name in _from_moments(rules)} or None,
        **fields,
    )


def _from_moments(rules: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in rules if name not in RULE_FIELDS)


def filled_column(requests: int, value: float, device: torch.device) -> Tensor:
    dtype = torch.bool if isinstance(value, bool) else torch.float32
    return torch.full((requests,), value, dtype=dtype, device=device)


MAX_CACHED = 64
"""Limit of cached batches, and of cached metadata, one for each set of facts: mixed traffic may bring many."""


class Batch(NamedTuple):
    """Host facts about the requests of a batch."""

    requests: np.ndarray
    """[B]: slots of vLLM."""
    rules: tuple[str, ...]
    facts: BatchFacts
    """Of draws from the model's logits."""
    has_seeds: bool
    """Whether a user gave a seed."""
    may_draw_raw: bool
    """Whether the model's logits need no edit of vLLM's."""
    edited: EditedRows | None
    """The rows that tokendraw edits."""
    metadata_by_stage: dict[bool, SamplingMetadata]
    """Metadata without rows, by whether it describes the model's logits."""

    @property
    def is_plain(self) -> bool:
        """Whether no request has a filter, a seed, a rule or an edit."""
        facts = self.facts
        has_filters = facts.max_top_k or facts.any_top_p or facts.any_min_p
        return self.edited is None and not (self.rules or has_filters or self.has_seeds)


class Batches:
    """The parameters of all requests of a sampler of vLLM, in columns with an entry a slot, and its batches."""

    def __init__(self, states: Any, edits: Edits, rules: Rules, device: torch.device) -> None:
        self._states, self._edits, self._rules = states, edits, rules
        self.columns = empty_columns(states.max_num_reqs, device)
        self._is_stale = True
        """Whether a request came since the last copy."""
        self._batches: dict[bytes, Batch] = {}
        self.described = functools.lru_cache(MAX_CACHED)(self._described)

    def forget(self) -> None:
        """Forget all batches, since a request came or is edited elsewhere."""
        self._is_stale = True
        self._batches.clear()

    def of(self, requests: np.ndarray) -> Batch:
        key = requests.tobytes()
        if key not in self._batches:
            if len(self._batches) >= MAX_CACHED:
                self._batches.clear()
            self._batches[key] = self._made(requests)
        return self._batches[key]

    def _made(self, requests: np.ndarray) -> Batch:
        states, rules = self._states, self._rules.active(requests)
        top_k, greedy = states.top_k.np[requests], states.temperature.np[requests] == 0.0
        active = top_k < states.vocab_size
        facts = BatchFacts(
            any_greedy=bool(greedy.any()),
            all_greedy=bool(greedy.all()),
            max_top_k=int(top_k[active].max()) if active.any() else 0,
            all_top_k=bool((active | greedy).all()),
            any_top_p=bool((states.top_p.np[requests] < 1.0).any()),
            any_min_p=bool((states.min_p.np[requests] > 0.0).any()),
            any_joint="joint" in rules,
            filters=_from_moments(rules),
        )
        return Batch(
            requests.copy(),
            rules,
            facts,
            states.any_explicit_seed(requests),
            not (facts.all_greedy or self._edits.by_vllm[requests].any()),
            self._edits.rows(requests),
            {},
        )

    def refresh(self) -> None:
        """Copy the parameters, if stale, after the draws of earlier steps, on the current stream."""
        if not self._is_stale:
            return
        for name, column in self.columns.items():
            column.copy_(getattr(self._states, name).gpu, non_blocking=True)
        self._rules.refresh(self.columns)
        self._is_stale = False

    def metadata(self, batch: Batch, *, raw: bool, seeds_every_row: bool) -> SamplingMetadata:
        """Describe a batch; equal facts share metadata, and so the samplers' caches on it.

        :param raw: whether temperature and min-p are still to be applied.
        """
        self.refresh()
        if raw not in batch.metadata_by_stage:
            facts = batch.facts
            if not raw:
                facts = dataclasses.replace(facts, any_min_p=self._rules.any_min_p(batch.requests))
            described = self.described(facts, raw, seeds_every_row or batch.has_seeds, batch.rules)
            batch.metadata_by_stage[raw] = described
        return batch.metadata_by_stage[raw]

    def _described(
        self, facts: BatchFacts, raw: bool, has_seeds: bool, rules: tuple[str, ...]
    ) -> SamplingMetadata:
        columns = self.columns if raw else {**self.columns, **self._rules.behind_edits}
        return make_metadata(columns, facts, self._rules.tensors(rules), has_seeds=has_seeds)
