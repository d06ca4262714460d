"""Edits of logits of the V2 runner's requests: penalties, biases, allowed ids, bad words, least lengths.

vLLM edits a float32 copy of the whole batch. tokendraw edits a float32 copy of the rows that ask for edits alone, with
the same values but for the last bit; the model's logits are not changed. vLLM counts the tokens of a request densely, V
entries that every step reads. ``RequestSlots`` know the ids that occur, so an edit takes work for these alone: the
requests with edits are mirrored there. vLLM's states stay what vLLM edits with, if tokendraw gives up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

import tokendraw
from tokendraw import Drafts, InvalidParameterError, PluginError, RequestSlots, SamplingParams
from tokendraw.plugin import ProcessNeed
from tokendraw_vllm import _parts
from tokendraw_vllm._engine import is_whole
from tokendraw_vllm._parts import NamesOfFirst

Result = TypeVar("Result")

NEED = ProcessNeed(sync_free=True)
_STATE_BYTES = 256
"""Bytes of a request's small parameters, about."""
ALL_LISTS = SamplingParams(
    logit_bias={0: 1.0}, allowed_token_ids=[0], bad_words=[[0]], min_tokens=1, stop_token_ids=[0]
)
"""A request with every list that a request of vLLM may have."""
_MAX_BIAS, _MAX_STOP_IDS, _MAX_BAD_WORDS, _MAX_BAD_WORD_LEN = 1024, 128, 128, 32


def edit_states() -> tuple[type, ...]:
    """Return vLLM's own logits processors, whose edits tokendraw serves too."""
    from vllm.v1.worker.gpu.sample.bad_words import BadWordsState
    from vllm.v1.worker.gpu.sample.logit_bias import LogitBiasState
    from vllm.v1.worker.gpu.sample.penalties import PenaltiesState

    return LogitBiasState, PenaltiesState, BadWordsState


def edits_of(sampling_params: Any) -> SamplingParams | None:
    """Return the edits of a request of vLLM as tokendraw's parameters.

    :returns: None where they mean something else: beside a grammar vLLM allows a stop id before ``min_tokens`` where
        nothing else is left.
    """
    given = sampling_params
    stop_ids = sorted(given.all_stop_token_ids) if given.min_tokens else []
    if stop_ids and getattr(given, "structured_outputs", None) is not None:
        return None
    return SamplingParams(
        repetition_penalty=given.repetition_penalty,
        frequency_penalty=given.frequency_penalty,
        presence_penalty=given.presence_penalty,
        logit_bias=given.logit_bias or None,
        allowed_token_ids=given.allowed_token_ids or None,
        bad_words=given.bad_words_token_ids or None,
        min_tokens=given.min_tokens if stop_ids else 0,
        stop_token_ids=stop_ids or None,
    )


def load_processor(
    device: torch.device,
    vocab_size: int,
    sampler: str,
    max_drafts: int = 0,
    *,
    names: NamesOfFirst = None,
) -> Any:
    """Load tokendraw's processor of logits and compile its kernels: a provider of ``process_logits``.

    :param sampler: name of the plugin that draws: a reference in plain PyTorch edits beside no other on a GPU.
    """
    processor = tokendraw.load("process_logits", _parts.chosen_names(names), device=device, need=NEED)
    if processor.name != sampler:
        _parts.check_faster(processor.name, "processor", device)
    _warm_up(processor, vocab_size, max_drafts, device)
    return processor


def _warm_up(processor: Any, vocab_size: int, max_drafts: int, device: torch.device) -> None:
    """Edit a row with penalties, which have a kernel of their own, and a row with all lists; append a token."""
    requests = request_slots(2, 8, vocab_size, device=device)
    logits = torch.zeros(2, vocab_size, dtype=torch.float32, device=device)
    slot, draft = torch.ones(2, 1, dtype=torch.int64, device=device)
    offsets = torch.arange(2, device=device) * 2
    drafts = (
        Drafts(draft_token_ids=draft, cu_num_logits=offsets, max_drafts=max_drafts) if max_drafts else None
    )
    for params in (SamplingParams(presence_penalty=1.0), ALL_LISTS):
        requests.add(1, params, prompt_token_ids=[0])
        processor.process(logits[:1], requests, slot, None, None)
        if drafts is not None:
            processor.process(logits, requests, slot, None, drafts)
        requests.append(slot, slot)
        requests.remove(1)


def request_bytes(max_tokens: int, vocab_size: int) -> int:
    lists = 8 * _MAX_BIAS + 4 * _MAX_STOP_IDS + 4 * _MAX_BAD_WORDS * (_MAX_BAD_WORD_LEN + 1) + vocab_size // 8
    return 8 * max_tokens + 4 * vocab_size + lists + _STATE_BYTES


request_slots = functools.partial(
    RequestSlots,
    max_bias=_MAX_BIAS,
    max_stop_ids=_MAX_STOP_IDS,
    max_bad_words=_MAX_BAD_WORDS,
    max_bad_word_len=_MAX_BAD_WORD_LEN,
)
MAX_MEMORY_BYTES = 2**30
"""Limit of the memory of all requests with edits."""


def have_notes(states: Sequence[Any]) -> None:
    """Have states of vLLM's withhold their parts of the flag for edits and filters, and note them in ``asked``."""
    kinds = [_noting(type(state)) for state in states]  # first: what may raise leaves all states as they are
    for state, kind in zip(states, kinds, strict=True):
        state.__class__ = kind


def _noting(kind: Any) -> type:
    if not kind.__dictoffset__:
        raise PluginError(f"{kind.__name__!r} needs a place for further attributes, found none")

    class Noting(kind):  # type: ignore[misc]
        asked = False

        def add_request(self, *given: Any, **named: Any) -> bool:
            self.asked = bool(super().add_request(*given, **named))
            return False

    return Noting


def staged_tokens(requests: Any, slot: int) -> np.ndarray | None:
    """Return the tokens of the request that came last, which vLLM is about to write to the device; None: another's."""
    staged = requests.all_token_ids
    if staged._staged_write_indices[-1:] != [slot]:
        return None
    return np.asarray(staged._staged_write_contents[-int(requests.prefill_len.np[slot]) :], dtype=np.int64)


class EditedRows(NamedTuple):
    """The rows of a batch whose requests edit their logits."""

    rows: slice | Tensor
    """The rows in the batch: a slice where they lie side by side, else [n] int64 on the device."""
    places: np.ndarray
    """[n]: the rows in the batch, on the host."""
    requests: np.ndarray
    """[n]: slots of vLLM, on the host; ``slots`` are the same on the device."""
    slots: Tensor
    own: Tensor
    """[n] int64: slots of tokendraw, on the device."""
    of_all: Tensor
    """[requests] int64: slots of tokendraw, that of a request without edits an empty one, on the device."""

    def of(self, values: Tensor) -> Tensor:
        """Return the entries, or rows, of a tensor [rows, ...] of the batch: a view where they lie side by side."""
        return values[self.rows] if isinstance(self.rows, slice) else values.index_select(0, self.rows)

    def put(self, target: Tensor, values: Tensor) -> None:
        if isinstance(self.rows, slice):
            target[self.rows].copy_(values)
        else:
            target.index_copy_(0, self.rows, values)


class Edits:
    """The editor of each request of a vLLM sampler, vLLM or tokendraw, and the slots of tokendraw's requests."""

    def __init__(self, sampler: Any, device: torch.device) -> None:
        """Hold a new sampler of vLLM, which edits all logits until :meth:`open`."""
        self._sampler, self._of_vllm, self._device = sampler, sampler.req_states, device
        states = sampler.logits_processors if is_whole(_parts.EDITING) else ()
        self.states = [state for state in states if type(state) in edit_states()]
        self.by_vllm = np.zeros(sampler.sampling_states.max_num_reqs, dtype=bool)
        """Requests whose logits vLLM edits by anything but temperature and filters."""
        self._processor: Any = None
        """None: vLLM edits all."""
        self.requests: Any = None
        """``RequestSlots``, the last one always empty."""
        self._slots: dict[int, int] = {}
        """Slot of tokendraw by slot of vLLM."""
        self._num_tokens = np.zeros(len(self.by_vllm), dtype=np.int64)
        """Tokens of a request in tokendraw's slots, by slot of vLLM."""

    def open(self, processor: Any) -> None:
        """Edit the logits of requests that come from now on, where possible.

        The memory of all requests is allocated at once, so that vLLM measures the rest.
        """
        if len(self.states) < len(edit_states()):
            return
        sizes, max_tokens = self._sampler.sampling_states, self._of_vllm.max_model_len
        with _parts.vllm_stays_if_it_raises(_parts.EDITING):
            most = MAX_MEMORY_BYTES // request_bytes(max_tokens, sizes.vocab_size)
            count = max(1, min(sizes.max_num_reqs, most))
            requests = request_slots(count + 1, max_tokens, sizes.vocab_size, device=self._device)
            requests.add(0, ALL_LISTS)
            requests.remove(0)
            self._free, self._empty = list(range(count)), count
            self._steps = torch.arange(self._sampler.num_speculative_tokens, device=self._device)
            self._no_token = torch.full((1,), -1, device=self._device, dtype=torch.int64)
            self.requests, self._processor = requests, processor

    def add_request(
        self, slot: int, sampling_params: Any, add: Callable[[], None], can_draw: Callable[[], bool]
    ) -> None:
        """Take the edits of a request, or leave them to vLLM, while vLLM's sampler adds the request.

        vLLM keeps one flag for all edits together, from which the parts that tokendraw may serve are withheld.
        """
        add()
        flags, has_edits = self._sampler.needs_logits_processing, any(state.asked for state in self.states)
        self._discard(slot)
        is_taken = has_edits and can_draw() and self._take(slot, sampling_params)
        self.by_vllm[slot] = flags[slot] or (has_edits and not is_taken)
        flags[slot] |= has_edits

    def _take(self, slot: int, sampling_params: Any) -> bool:
        ids = None if self._processor is None else staged_tokens(self._of_vllm, slot)
        if ids is None:
            return False
        # vLLM's sampler is not told when a request ends
        for ended in self._slots.keys() - self._of_vllm.index_to_req_id.keys():
            self._discard(ended)
        edits = edits_of(sampling_params)
        return edits is not None and self.add(slot, edits, ids, int(self._of_vllm.prompt_len.np[slot]))

    def add(self, slot: int, params: SamplingParams, ids: np.ndarray, num_prompt: int) -> bool:
        """Copy a request from its slot of vLLM into a slot of tokendraw.

        :param ids: its tokens, those of the prompt first.
        :returns: False where vLLM has to edit it: no slot is free, or tokendraw takes no such value.
        """
        if not self._free:
            return False
        try:
            self.requests.add(self._free[-1], params, ids[:num_prompt], ids[num_prompt:])
        except InvalidParameterError:
            return False
        self._slots[slot] = self._free.pop()
        self._num_tokens[slot] = len(ids)
        return True

    def _discard(self, slot: int) -> None:
        own = self._slots.pop(slot, None)
        if own is not None:
            self.requests.remove(own)
            self._free.append(own)

    def rows(self, requests: np.ndarray) -> EditedRows | None:
        """Return the edited rows of a batch of requests; None without any."""
        places = [place for place, slot in enumerate(requests.tolist()) if slot in self._slots]
        if not places:
            return None
        count, edited = len(places), requests[places]
        is_dense = places[-1] - places[0] + 1 == count
        of_all = [self._slots.get(slot, self._empty) for slot in requests.tolist()]
        on_host = torch.tensor(
            [*places, *edited.tolist(), *(of_all[place] for place in places), *of_all],
            pin_memory=self._device.type == "cuda",
            dtype=torch.int64,
            device="cpu",
        )
        uploaded = on_host.to(self._device, non_blocking=True)
        rows, slots, own, of_all_requests = uploaded.split_with_sizes([count, count, count, len(of_all)])
        span = slice(places[0], places[0] + count) if is_dense else rows
        return EditedRows(span, np.array(places), edited, slots, own, of_all_requests)

    def follow(
        self, edited: EditedRows | None, input_ids: Tensor, positions: Tensor, lengths: np.ndarray
    ) -> bool:
        """Append the tokens that the model was fed with to the histories of edited requests, as far as they are new.

        A step without drafts feeds a decoding request with the token drawn last, and a request in its prompt with
        tokens that are there already.

        :param lengths: [rows]: number of tokens that the model has seen, of each row of the batch.
        :returns: whether vLLM edits a request from now on that tokendraw edited.
        """
        if (
            edited is None or self._sampler.num_speculative_tokens > 1
        ):  # any step may have appended several tokens
            return self.catch_up(edited)
        lost = self._attempt(lambda: self._append_fed(edited, input_ids, positions, lengths))
        if lost:
            _parts.log_kept(
                "steps of a request were drawn elsewhere, so its tokens are unknown", part=_parts.EDITING
            )
            self.by_vllm[lost] = True
        return lost is None or bool(lost)

    def _append_fed(
        self, edited: EditedRows, input_ids: Tensor, positions: Tensor, lengths: np.ndarray
    ) -> list[int]:
        """Return the slots of vLLM whose tokens are unknown, since steps were missed; they are forgotten."""
        seen, known = lengths[edited.places], self._num_tokens[edited.requests]
        is_new = seen == known + 1
        lost: list[int] = edited.requests[seen > known + 1].tolist()
        if is_new.any():
            tokens = edited.of(input_ids)
            if not is_new.all():
                lengths_there = self.requests.tables.num_tokens.index_select(0, edited.own)
                tokens = torch.where(edited.of(positions) == lengths_there, tokens, -1)
            self._append(edited.own, tokens)
            self._num_tokens[edited.requests[is_new]] += 1
        for slot in lost:  # last: if an append raises, vLLM edits every request that is here
            self._discard(slot)
        return lost

    def catch_up(self, edited: EditedRows | None) -> bool:
        """Append the tokens of earlier steps as :meth:`follow` does, from vLLM's own history."""
        return edited is not None and self._attempt(lambda: self._append_history(edited)) is None

    def _append_history(self, edited: EditedRows) -> bool:
        """Append vLLM's new tokens since the last call, as many as the device alone knows."""
        history = self._of_vllm.all_token_ids.gpu
        place = self.requests.tables.num_tokens.index_select(0, edited.own).unsqueeze(1) + self._steps
        is_new = place < self._of_vllm.total_len.gpu.index_select(0, edited.slots).unsqueeze(1)
        tokens = history[edited.slots.unsqueeze(1), place.clamp_(max=history.shape[1] - 1)]
        self._append(edited.own, torch.where(is_new, tokens, self._no_token))
        return True

    def _append(self, own: Tensor, tokens: Tensor) -> None:
        append = self.requests.appender
        if append is not None:  # without the count of free places, which may wait for the device
            append(self.requests.tables, own, tokens)
        elif tokens.dim() == 1:
            self.requests.append(own, tokens)
        else:
            self.requests.append_verified(own, SimpleNamespace(token_ids=tokens))

    def apply(
        self, logits: Tensor, edited: EditedRows, drafts: Callable[[], Drafts] | None = None
    ) -> Tensor | None:
        """Return the edited logits [n, V] of edited rows, in float32 as vLLM's; None after a failure: then vLLM edits.

        :param drafts: the rows are those of a verification of these drafts, and all are returned.
        """

        def process() -> Tensor:
            rows, own, drafted = edited.of(logits), edited.own, None
            if drafts is not None:
                rows, own, drafted = logits, edited.of_all, drafts()
            copy = torch.empty(rows.shape, dtype=torch.float32, device=rows.device).copy_(rows)
            processed: Tensor = self._processor.process(copy, self.requests, own, None, drafted)
            return processed

        return self._attempt(process)

    def _attempt(self, call: Callable[[], Result]) -> Result | None:
        """Return a call's result; None if it raises, and vLLM edits every request from then on."""
        try:
            return call()
        except Exception as error:
            _parts.give_up(_parts.EDITING, self._processor.name, error)
            self.by_vllm[list(self._slots)] = True
            self._slots.clear()
            self.requests = self._processor = None
            return None
