"""The operation's call, which edits logits in place, the object that ``tokendraw.load`` returns, and the proof."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from tokendraw._torch.importing import untraced
from tokendraw._torch.tensors import (
    check_dense_rows,
    check_device_of,
    check_dtype,
    check_integers,
    check_plain,
    check_vector,
)
from tokendraw.calls.call import Call, OutputCheck, check_type, wrong_object
from tokendraw.calls.dispatch import Provider, dispatch
from tokendraw.calls.rows import check_logits
from tokendraw.calls.warmup import Batches, checked_choices, checked_integer, warm_up
from tokendraw.edits import OPERATION, LogitsProcessorBackend, ProcessCapabilities, ProcessNeed
from tokendraw.edits.slots import RequestSlots
from tokendraw.edits.tables import ONE_OUTPUT, RequestTables
from tokendraw.errors import InvalidInputError, PluginError, type_name
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.fields import integers
from tokendraw.parameters.params import Edit, SamplingParams

_DRAFT_TENSORS = ("draft_token_ids", "cu_num_logits")


@dataclass(slots=True, eq=False)
class Process(Call):
    """Logits [R, V], the slot of each row, and bitmasks and drafts, if any."""

    logits: Tensor
    slots: RequestSlots
    row_index: Tensor
    bitmask: Tensor | None = None
    drafts: Drafts | None = None
    target: Tensor | None = field(default=None, init=False)
    """The caller's logits, where the backend edits a copy of them."""

    def check(self, device: torch.device, need: ProcessNeed) -> None:
        logits, slots = self.logits, self.slots
        _check_logits(logits, device)
        check_type("slots", slots, RequestSlots, "Pass the one that the requests were added to.")
        mend = "Make the slots with device= of the logits."
        check_device_of("slots", slots.device, "'logits'", logits.device, mend)
        if slots.vocab_size != logits.shape[1]:
            raise InvalidInputError(
                f"'logits' needs the vocabulary of 'slots', {slots.vocab_size}, found {logits.shape[1]}. "
                "Pass slots that were made with the vocab_size of the logits."
            )
        if self.drafts is not None:
            if not isinstance(self.drafts, Drafts):
                raise InvalidInputError(
                    f"'drafts' needs a tokendraw.Drafts or None, found {type_name(self.drafts)}. "
                    "Pass Drafts.from_lists(draft_token_ids, device=...)."
                )
            self.drafts.check(logits, "logits")
        self._check_row_index()
        if self.bitmask is not None:
            _check_bitmask(self.bitmask, logits)

    def _check_row_index(self) -> None:
        row_index, drafts = self.row_index, self.drafts
        check_vector("row_index", row_index, "Pass a tensor of slots on the device of the logits.")
        check_integers("row_index", row_index)
        _check_device("row_index", row_index, self.logits)
        each, needed = ("row", self.num_rows) if drafts is None else ("request", drafts.num_requests)
        if row_index.shape[0] != needed:
            found = row_index.shape[0]
            raise InvalidInputError(f"'row_index' needs one slot for each {each}, {needed}, found {found}.")
        if row_index.is_cpu:
            self._check_range()

    def _check_range(self) -> None:
        """Refuse slots out of range. Waits for the device of ``row_index``."""
        if self.row_index.shape[0]:
            least, largest = self.row_index.aminmax()
            if least < 0 or largest >= self.slots.num_slots:
                integers("row_index", self.row_index.tolist(), 0, self.slots.num_slots - 1)

    def check_values(self) -> None:
        self._check_range()
        if self.drafts is not None:
            self.drafts.check_values()

    def tensors(self) -> dict[str, Tensor]:
        tensors = {"row_index": self.row_index}
        if self.bitmask is not None:
            tensors["bitmask"] = self.bitmask
        if self.drafts is not None:
            tensors |= {name: getattr(self.drafts, name) for name in _DRAFT_TENSORS}
        return tensors

    def with_tensors(self, tensors: Mapping[str, Any]) -> Self:
        drafts = self.drafts
        if drafts is not None:
            drafts = replace(drafts, **{name: tensors[name] for name in _DRAFT_TENSORS})
        return replace(self, row_index=tensors["row_index"], bitmask=tensors.get("bitmask"), drafts=drafts)

    def copied(self) -> Self:
        """Copy the logits too: a failing backend may have begun to edit them in place."""
        copy = Call.copied(self)  # super() does not know a dataclass with slots
        copy.logits, copy.target = self.logits.clone(), self.logits
        return copy

    def signature(self) -> Hashable:
        drafts, form = self.drafts, None
        if drafts is not None:
            ids = drafts.draft_token_ids
            form = ids.dim(), ids.dtype, drafts.cu_num_logits.dtype, drafts.max_drafts.bit_length()
        masked, facts = self.bitmask is not None, self.slots.facts
        return self.logits.dtype, self.vocab_size, self.row_index.dtype, masked, facts, form

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[1]

    @property
    def num_rows(self) -> int:
        return self.logits.shape[0]

    def run(self, backend: LogitsProcessorBackend) -> Any:
        logits, target = self.logits, self.target
        self.slots.appender = getattr(backend, "append", None)
        if not logits.shape[0] or (self.bitmask is None and not self.slots.facts.any_edit):
            return logits if target is None else target
        output = backend.process(logits, self.slots, self.row_index, self.bitmask, self.drafts)
        if target is None or output is not logits:
            return output
        with torch.inference_mode():  # in which logits may be written to that were made in it
            target.copy_(logits)
        return target

    def output_check(self, need: ProcessNeed) -> OutputCheck:
        needed = self.logits if self.target is None else self.target
        return lambda output: wrong_object(output, needed, "the logits that it was given")


def _check_logits(logits: Tensor, device: torch.device) -> None:
    check_logits("logits", logits, device, built="processor")
    if logits.requires_grad:
        raise InvalidInputError(
            "'logits' needs to be free of gradients, since it is edited in place, found requires_grad. "
            "Pass logits.detach()."
        )
    rows, vocab_size = logits.shape
    check_dense_rows("logits", logits, "ids", ", and use what is returned")
    if rows > 1 and logits.stride(0) < vocab_size:
        raise InvalidInputError(
            f"'logits' needs rows with memory of their own, since it is edited in place, found row stride "
            f"{logits.stride(0)} of {vocab_size} ids. Pass logits.contiguous(), and use what is returned."
        )


def _check_bitmask(bitmask: Tensor, logits: Tensor) -> None:
    check_plain("bitmask", bitmask, "Pass a tensor of int32 words, or None.")
    rows, vocab_size = logits.shape
    words = -(-vocab_size // 32)
    if bitmask.shape != (rows, words):
        raise InvalidInputError(
            f"'bitmask' needs shape {[rows, words]}, one bit for each of {vocab_size} ids, found {list(bitmask.shape)}."
        )
    check_dtype("bitmask", bitmask, torch.int32, "Pass 32 ids a word, as xgrammar does.")
    _check_device("bitmask", bitmask, logits)
    check_dense_rows("bitmask", bitmask, "words")


def _check_device(name: str, tensor: Tensor, logits: Tensor) -> None:
    check_device_of(name, tensor.device, "'logits'", logits.device, f"Pass {name}.to('{logits.device}').")


_VOCAB_SIZE = 40
_OFF = float("-inf")
_EDITS: dict[Edit, tuple[dict[str, Any], dict[int, float]]] = {
    "bitmask": ({}, {39: _OFF}),
    "allowed_token_ids": ({"allowed_token_ids": [i for i in range(_VOCAB_SIZE) if i != 4]}, {4: _OFF}),
    "bad_words": ({"bad_words": [[1, 2]]}, {2: _OFF}),
    "min_tokens": ({"min_tokens": 2, "stop_token_ids": [5]}, {5: _OFF}),
    "thinking_budget": ({}, {}),
    "logit_bias": ({"logit_bias": {3: 4.0}}, {3: 4.0}),
    "repetition_penalty": ({"repetition_penalty": 2.0}, {0: -4.0, 1: -4.0}),
    "frequency_penalty": ({"frequency_penalty": 0.5}, {1: -0.5}),
    "presence_penalty": ({"presence_penalty": 1.0}, {1: -1.0}),
    "penalty_last_n": ({"penalty_last_n": 1}, {}),
    "dry_multiplier": ({"dry_multiplier": 0.25, "dry_allowed_length": 0}, {0: -0.25, 1: -0.25}),
}
"""Fields of the proof's request for each edit, and the changes of logits of 8; a second one has a thinking budget."""
_FORCED_ID = 39
"""In the proof, the id that a spent thinking budget forces; a bitmask forbids it."""


class LogitsProcessor(Provider):
    """Edits logits in place, as the requests of their rows ask."""

    _operations = (OPERATION,)

    @untraced
    def process(
        self,
        logits: Tensor,
        slots: RequestSlots,
        row_index: Tensor,
        bitmask: Tensor | None = None,
        drafts: Drafts | None = None,
    ) -> Tensor:
        """Edit logits in place and return them: see docs/logits-processing.md.

        :param logits: [R, V] float32, bfloat16 or float16, the ids of a row one behind the other.
        :param slots: the requests, and the tokens of each one so far.
        :param row_index: [R] integer, with drafts [B]: the slot of each row, or request.
        :param bitmask: [R, ceil(V / 32)] int32: a bit for each id, set where the id is allowed.
        :param drafts: the rows are those of a verification of these drafts.
        :raises InvalidInputError: a ValueError, before anything is launched.
        :raises SamplerUnavailableError: no plugin here serves the call.
        """
        call = Process(logits, slots, row_index, bitmask, drafts)
        output: Tensor = dispatch(self._negotiator, OPERATION, call)
        return output

    @untraced
    def warmup(
        self,
        vocab_size: int,
        *,
        dtypes: Iterable[torch.dtype],
        batch_sizes: Iterable[int] = (1, 64),
        row_stride: int | None = None,
        index_dtypes: Iterable[torch.dtype] = (torch.int64, torch.int32),
        bitmask: bool = True,
        max_drafts: int | None = None,
        progress: bool | None = None,
    ) -> float:
        """Edit made-up logits, so that no request waits for a kernel to be compiled or loaded.

        The other parameters, what is returned and raised are those of :meth:`tokendraw.Sampler.warmup`.

        :param batch_sizes: numbers of rows; with drafts numbers of requests, of K + 1 rows each. Beside the largest
            logits, slots for as many requests are allocated: 4 bytes for each request and id.
        :param index_dtypes: of ``row_index``, and of the ids and ``cu_num_logits`` of drafts, in every combination:
            int64 or int32. Name those alone that come where kernels take long to compile.
        :param bitmask: whether bitmasks may come.
        """
        sizes: dict[str, Any] = {"batch_sizes": batch_sizes, "row_stride": row_stride}
        batches = Batches(self.device, vocab_size, dtypes=dtypes, **sizes)
        permitted = torch.int64, torch.int32
        indices = checked_choices("index_dtypes", index_dtypes, "dtypes of indices", permitted)
        most = 0 if max_drafts is None else checked_integer("max_drafts", max_drafts, 1)
        edited = partial(batches.edited, Process, RequestSlots, indices, most, bool(bitmask))
        return warm_up(self._negotiator, [(OPERATION, edited)], progress=progress)


def prove(
    backend: LogitsProcessorBackend,
    capabilities: ProcessCapabilities,
    device: torch.device,
    need: ProcessNeed,
) -> None:
    """Edit a row of 40 logits of 8, for a request with prompt 0 and output 1, with a bitmask of two words."""
    edits = {*capabilities.edits}
    dtype = getattr(torch, need.dtype or (*capabilities.dtypes, "float32")[0])
    slots = RequestSlots(num_slots=2, max_tokens=4, vocab_size=_VOCAB_SIZE, device=device)
    params: dict[str, Any] = {}
    needed = [8.0] * _VOCAB_SIZE
    for edit in edits:
        fields, changes = _EDITS[edit]
        params |= fields
        for token, change in changes.items():
            needed[token] += change
    if {"repetition_penalty", "penalty_last_n"} <= edits:
        needed[0] -= _EDITS["repetition_penalty"][1][0]  # it left the window
    slots.add(1, SamplingParams(**params), prompt_token_ids=[0])
    slots.append([1], [1])
    rows, row_index = [needed], [1]
    if "thinking_budget" in edits:
        slots.add(0, SamplingParams(thinking_budget=(0, [0], [_FORCED_ID])), prompt_token_ids=[0])
        rows.append([8.0 if i == _FORCED_ID else _OFF for i in range(_VOCAB_SIZE)])
        row_index.append(0)
    logits = torch.full((len(rows), _VOCAB_SIZE), 8.0, dtype=dtype, device=device)
    bitmask = None
    if "bitmask" in edits:
        bitmask = torch.full((len(rows), 2), -1, dtype=torch.int32, device=device)
        bitmask[:, 1:] = ~(1 << 7)  # id 39
    output = backend.process(logits, slots, _int64(row_index, device), bitmask)
    if output is not logits:
        raise PluginError(f"the proof call needs the logits that it was given, found {type(output).__name__}")
    for row, (wanted, found) in enumerate(zip(rows, logits.tolist(), strict=True)):
        for i, (want, got) in enumerate(zip(wanted, found, strict=True)):
            if got != want:
                place = f"logit {i} of row {row}" if row else f"logit {i}"
                raise PluginError(f"the proof call needs {want} as {place}, found {got}")
    if len(rows) > 1:
        slots.remove(0)
    if hasattr(backend, "append"):
        _prove_append(backend.append, slots.tables, device)


def _prove_append(append: Any, tables: RequestTables, device: torch.device) -> None:
    """Append tokens to slot 1, whose history is 0, 1 of at most 4; the other row has no slot."""
    counts = tables.counts & (ONE_OUTPUT - 1)
    counts[1, 1], counts[1, 3] = counts[1, 1] + 2 * ONE_OUTPUT, counts[1, 3] + ONE_OUTPUT
    append(tables, _int64([1, 2], device), _int64([[1, 3, 5]] * 2, device))
    for name, found, want in (
        ("history", tables.history.tolist(), [[0] * 4, [0, 1, 1, 3]]),
        ("num_tokens", tables.num_tokens.tolist(), [0, 4]),
        ("distinct ids", sorted(tables.distinct[1].tolist()), [0, 0, 1, 3]),
        ("num_distinct", tables.num_distinct.tolist(), [0, 3]),
        ("counts", tables.counts.tolist(), counts.tolist()),
    ):
        if found != want:
            raise PluginError(f"the proof call of append needs {want} as {name}, found {found}")


def _int64(values: Any, device: torch.device) -> Tensor:
    return torch.tensor(values, device=device, dtype=torch.int64)


CALLS = {"process": Process}
PROVIDER = LogitsProcessor
