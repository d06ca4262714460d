"""The requests of an engine: a row of every parameter tensor each, written when a request comes or goes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tokendraw._torch.importing import made_untraced, untraced
from tokendraw._torch.tensors import (
    INTEGERS,
    check_device_of,
    check_integers,
    check_plain,
    check_vector,
    device_of,
    is_capturing,
    is_plain,
    uploaded,
)
from tokendraw.edits.requests import Histories, Population, Room, check_history, check_request
from tokendraw.edits.tables import GIVEN_IDS, EditFacts, RequestTables, SlotSizes, SlotTensors, check_sizes
from tokendraw.errors import InvalidInputError, InvalidParameterError, type_name
from tokendraw.parameters.batch_facts import BatchFacts
from tokendraw.parameters.fields import FILTER_PREFIX, each, integer, integers
from tokendraw.parameters.metadata import MAX_POSITION, SamplingMetadata, missing_positions
from tokendraw.parameters.params import LARGEST_INT32, Edit, SamplingParams


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
    if not isinstance(values, Tensor):
        return RowInput(list(each(name, values, "integers")), None)
    if not is_plain(values) or values.dim() != 1 or values.dtype not in INTEGERS:
        check_vector(name, values)
        check_integers(name, values)
    if values.is_cpu:
        return RowInput(values.tolist(), values if device.type == "cpu" else None)
    check_device_of(name, values.device, "the slots", device)
    return RowInput(None, values)


def check_slots(slots: Sequence[int], live: Set[int], num_slots: int, *, once: bool = False) -> None:
    """Refuse slots out of range, or without a request."""
    integers("row_index", slots, 0, num_slots - 1)
    if live >= {*slots} and not (once and len({*slots}) < len(slots)):
        return
    for row, slot in enumerate(slots):
        if slot not in live:
            raise InvalidParameterError(
                f"'row_index' of row {row} needs a slot with a request, found {slot}, which has none. "
                "Add the request with slots.add first."
            )
        if once and slot in slots[:row]:
            raise InvalidParameterError(
                f"'row_index' of row {row} needs each slot at most once, found {slot} again."
            )


def upload_inputs(device: torch.device, **inputs: RowInput) -> dict[str, Tensor]:
    """Return the tensors, by name, after a single upload of all inputs on the host."""
    columns = {name: (rows.values or (), torch.int64) for name, rows in inputs.items() if rows.tensor is None}
    uploads = uploaded(columns, device) if columns else {}
    return {name: uploads[name] if rows.tensor is None else rows.tensor for name, rows in inputs.items()}


class MetadataCache:
    """Makes metadata of changing rows; while the facts stay equal, checks and the memo of samplers are shared."""

    def __init__(self, state: SlotTensors) -> None:
        self._state = state
        self._facts: BatchFacts | None = None
        self._values: dict[Hashable, dict[str, Any]] = {}
        """Attributes of metadata under these facts, by the shapes and dtypes of row_index and positions."""

    def of(
        self, population: Population, row_index: Tensor, positions: Tensor | None = None
    ) -> SamplingMetadata:
        facts, width = population.facts, population.most_given_ids
        if facts is not self._facts:
            self._values.clear()
            self._facts = facts
        of_positions = None if positions is None else (positions.shape, positions.dtype)
        key = row_index.shape, row_index.dtype, of_positions, width
        values = self._values.get(key)
        if values is not None:
            metadata = object.__new__(SamplingMetadata)
            vars(metadata).update(values, row_index=row_index, positions=positions)
            return metadata
        tensors: dict[str, Any] = dict(self._state.sampling)
        if facts.filters:
            tensors["filters"] = {name: self._state.tensors[FILTER_PREFIX + name] for name in facts.filters}
        if width:
            tensors[GIVEN_IDS] = self._state.tensors[GIVEN_IDS][:, :width]
        if positions is None:
            for slot, request in population.requests.items():
                if request.params["seed"] is not None:
                    raise missing_positions(f" of slot {slot}")
            del tensors["seed"], tensors["seeded"]
        if facts.max_logprobs is None:
            del tensors["logprobs"]
        metadata = SamplingMetadata(**tensors, row_index=row_index, positions=positions, facts=facts)
        self._values[key] = vars(metadata) | {"row_index": None, "positions": None}
        return metadata


@made_untraced
class RequestSlots:
    """Parameters and histories of an engine's requests, on the device, for the engine's life.

    A request has a slot from :meth:`add` to :meth:`remove`. A tensor that has memory never moves: a CUDA graph may read
    it. One thread uses an object, and its calls launch on the device's current stream.

    Memory: 8 bytes for each slot and token, 4 bytes for each slot and id of the vocabulary, and about 200 bytes for
    each slot. Lists get theirs when the first request asks for one, or a CUDA graph is captured: see :attr:`tables`.

    :param num_slots: S, the most requests at a time.
    :param max_tokens: M, the most tokens of a request, prompt and output together; at most 2**27 - 1.
    :param vocab_size: V.
    :param device: device of the logits; None: the CPU.
    :param max_bias: the most entries of ``logit_bias``; the other limits are of a request's lists likewise.
    :param max_stop_ids: of ``stop_token_ids`` beside ``min_tokens``.
    :param max_bad_words: of ``bad_words``.
    :param max_bad_word_len: of the ids of a bad word.
    :param max_logprob_token_ids: of ``logprob_token_ids``.
    :param max_dry_breakers: of ``dry_sequence_breakers`` beside ``dry_multiplier``.
    :param max_thinking_ids: of the ids of the start, and of the end, in a ``thinking_budget``.
    :raises InvalidParameterError: a ValueError: a number is out of range, or torch finds no such device.
    """

    def __init__(
        self,
        num_slots: int,
        max_tokens: int,
        vocab_size: int,
        *,
        device: torch.device | str | None = None,
        max_bias: int = 1024,
        max_stop_ids: int = 128,
        max_bad_words: int = 128,
        max_bad_word_len: int = 32,
        max_logprob_token_ids: int = 128,
        max_dry_breakers: int = 1024,
        max_thinking_ids: int = 16,
    ) -> None:
        given = locals()
        self._sizes = check_sizes(*[given[name] for name in SlotSizes._fields])
        state = self._state = SlotTensors(self._sizes, device_of(device))
        self._histories = Histories(state.tokens, state.parameters.lengths, state.tables.counts)
        self._population = Population()
        self._room = Room(self._sizes.max_tokens)
        self._metadata = MetadataCache(self._state)
        self.appender: Callable[[RequestTables, Tensor, Tensor], None] | None = None
        """Appends the tokens of a step in place of torch: ``append`` of the processor that last edited logits here."""
        self.captured_edits = EditFacts()
        """Edits that CUDA graphs record when they are captured: anything, unless an engine names those that a graph of
        its own is to serve. It replays that graph only while :attr:`facts` name no others."""

    @property
    def num_slots(self) -> int:
        """S."""
        return self._sizes.num_slots

    @property
    def max_tokens(self) -> int:
        """M: the most tokens of a request."""
        return self._sizes.max_tokens

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._sizes.vocab_size

    @property
    def device(self) -> torch.device:
        """Device of all tensors."""
        return self._state.device

    @property
    def tables(self) -> RequestTables:
        """Tensors for computing edits of logits.

        What has memory never moves. Those of bias, allowed ids, stop ids, bad words, breakers and thinking budgets have
        none, and no width, until the first request that asks for such an edit is added, or a CUDA graph is captured:
        this is then another object.
        """
        missing = self._state.missing
        if missing and is_capturing():  # requests that the graph serves later may ask for them
            self._state.give_memory([name for name in missing if getattr(self.captured_edits, name, False)])
        return self._state.tables

    @property
    def facts(self) -> EditFacts:
        """Edits possible for the requests in the slots, known without reading the device.

        While a CUDA graph is being captured, :attr:`captured_edits`: later requests are edited by it too.
        """
        return self.captured_edits if is_capturing() else self._population.edit_facts

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Names of the edits possible for the requests in the slots.

        While a CUDA graph is being captured, those of :attr:`captured_edits`.
        """
        return self.captured_edits.edits if is_capturing() else self._population.edits

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors on the device now."""
        return self._state.num_bytes

    @untraced
    def add(
        self,
        slot: int,
        params: SamplingParams,
        prompt_token_ids: Iterable[int] | Tensor = (),
        output_token_ids: Iterable[int] | Tensor = (),
    ) -> None:
        """Put a request into an empty slot, in one copy and without waiting for the device.

        A request that comes back after a preemption brings its output, and is edited as if it had never been gone. A
        number outside [0, V), as a placeholder of an image has, is a token without an id: no edit counts or matches it,
        but it has a place, and in the output ``min_tokens`` counts it. After an error nothing has changed.

        :param slot: from 0 to S - 1.
        :param prompt_token_ids: [n] integers; a tensor is read fastest. One on a device is waited for.
        :param output_token_ids: the same, behind the prompt; both are at most M.
        :raises InvalidParameterError: a ValueError that names the field, the slot and the value.
        :raises InvalidInputError: a ValueError: a tensor of another form, or a CUDA graph is being captured.
        :raises torch.OutOfMemoryError: there is no memory for :attr:`tables` of a new kind.
        """
        slot, sizes = self._slot(slot), self._sizes
        if slot in self._population.requests:
            raise InvalidParameterError(
                f"'slot' needs one without a request, found {slot}, which has one. Remove that first, with "
                f"slots.remove({slot})."
            )
        request = check_request(slot, params, sizes)
        tokens = check_history(slot, prompt_token_ids, output_token_ids, sizes)
        packed = self._state.uploaded(request, tokens)
        self._state.give_memory(request.families)
        self._state.fill()
        self._state.write(slot, packed)
        self._population.add(slot, request)
        self._room.add(slot, tokens.num_tokens)

    @untraced
    def remove(self, slot: int) -> None:
        """Remove a request from its slot, with all traces.

        :raises InvalidParameterError: a ValueError: there is no such slot, or no request in it; nothing has changed.
        """
        slot = self._slot(slot)
        if slot not in self._population.requests:
            raise InvalidParameterError(f"'slot' needs one with a request, found {slot}, which has none.")
        self._state.clean(slot, self._population.requests[slot])
        self._population.remove(slot)
        self._room.remove(slot)

    @untraced
    def append(self, row_index: Iterable[int] | Tensor, token_ids: Iterable[int] | Tensor) -> None:
        """Append a token to the output of each given request. Waits for nothing, and can be captured.

        On another device than the CPU no value is looked at: rows whose slot is out of range or has no request are left
        out. The host counts what it sees; only where a request may be full by that count it reads how long each is, and
        waits. A captured call counts nothing: tokens beyond M are then left out. After an error nothing has changed.

        :param row_index: [rows] integer: the slot of each row, each at most once.
        :param token_ids: [rows] integer; V or more: a token without an id, as in :meth:`add`; -1: no token.
        :raises InvalidParameterError: a ValueError that names the row: a slot or token out of range, or a full request.
        :raises InvalidInputError: a ValueError: a tensor of another form or device.
        """
        tokens = row_input("token_ids", token_ids, self.device)
        integers("token_ids", tokens.values or (), -1, LARGEST_INT32)
        rows = row_input("row_index", row_index, self.device)
        tensors = upload_inputs(self.device, row_index=rows, token_ids=tokens)
        self._append(rows.values, tensors["row_index"], tensors["token_ids"])

    @untraced
    def append_verified(self, row_index: Iterable[int] | Tensor, verify_output: HasTokenIds) -> None:
        """Append the tokens emitted by a verification to the outputs of its requests, as :meth:`append` does.

        :param row_index: [B] integer: the slot of each request, each at most once.
        :param verify_output: its ``token_ids`` [B, K + 1] are on the device of the slots.
        """
        tokens: Tensor | None = getattr(verify_output, "token_ids", None)
        if tokens is None:
            raise InvalidInputError(
                f"'verify_output' needs a tokendraw.VerifyOutput, found {type_name(verify_output)}. "
                "Pass what sampler.verify returned."
            )
        name = "verify_output.token_ids"
        check_plain(name, tokens)
        if tokens.dim() != 2:
            raise InvalidInputError(f"'{name}' needs two dimensions, found shape {list(tokens.shape)}.")
        check_integers(name, tokens)
        check_device_of(name, tokens.device, "the slots", self.device)
        rows = row_input("row_index", row_index, self.device)
        self._append(rows.values, upload_inputs(self.device, row_index=rows)["row_index"], tokens)

    @untraced
    def metadata(
        self, row_index: Iterable[int] | Tensor, positions: Iterable[int] | Tensor | None = None
    ) -> SamplingMetadata:
        """Describe rows of logits by the parameters of their requests, copying only arguments on the host.

        It speaks of the requests that are in the slots now: make a new one after :meth:`add`, and where a CUDA graph is
        to serve other kinds of requests later, give that one other facts with :func:`dataclasses.replace`.

        :param row_index: [rows] integer: the slot of each row. For a verification one entry a request will do.
        :param positions: [rows] integer, as for :meth:`SamplingMetadata.from_params`; needed if a request has a seed.
        :raises InvalidParameterError: a ValueError that names the row: a slot or position on the host is out of range.
        :raises InvalidInputError: a ValueError: a tensor of another form or device.
        """
        rows = row_input("row_index", row_index, self.device)
        if rows.values is not None and not self._population.requests.keys() >= {*rows.values}:
            check_slots(rows.values, self._population.requests.keys(), self.num_slots)
        inputs = {"row_index": rows}
        if positions is not None:
            inputs["positions"] = row_input("positions", positions, self.device)
            integers("positions", inputs["positions"].values or (), 0, MAX_POSITION)
        return self._metadata.of(self._population, **upload_inputs(self.device, **inputs))

    def _append(self, slots: list[int] | None, row_index: Tensor, tokens: Tensor) -> None:
        """Append tokens [B] or [B, K], if the histories have space for them."""
        if len(row_index) != len(tokens):
            raise InvalidInputError(
                f"'row_index' needs one slot for each row of tokens, {len(tokens)}, found {len(row_index)}."
            )
        if slots is not None:
            check_slots(slots, self._population.requests.keys(), self.num_slots, once=True)
        if not is_capturing() and not self._room.take(slots, tokens.shape[1] if tokens.dim() == 2 else 1):
            self._room.take_exactly(self._state.tables.num_tokens, row_index, tokens)
        if self.appender is None:
            self._histories.append(row_index, tokens)
        else:
            self.appender(self._state.tables, row_index, tokens)

    def _slot(self, slot: int) -> int:
        return integer("slot", slot, None, 0, self.num_slots - 1)
