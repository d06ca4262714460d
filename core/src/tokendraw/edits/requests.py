"""The host's part of requests in slots: their checks and counts, the tokens of their steps, and the room for these.

Nothing here waits for the device, but :meth:`Room.take_exactly`.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from tokendraw._torch.tensors import check_integers, check_vector
from tokendraw.edits.tables import (
    FACT_OF_EDIT,
    GIVEN_IDS,
    OCCURRENCES,
    ONE_OUTPUT,
    EditFacts,
    SlotRequest,
    SlotSizes,
    TokenHistory,
    host_ids,
)
from tokendraw.errors import InvalidParameterError, type_name
from tokendraw.parameters.batch_facts import BatchFacts, RowKind, row_kinds
from tokendraw.parameters.fields import FILTER_PREFIX, each, integers
from tokendraw.parameters.params import (
    EDITS,
    LARGEST_INT32,
    NO_EDITS,
    Edit,
    SamplingParams,
    check_edits,
    stored_values,
)


def check_request(slot: int, params: SamplingParams, sizes: SlotSizes) -> SlotRequest:
    owner = f"slot {slot}"
    if not isinstance(params, SamplingParams):
        raise InvalidParameterError(
            f"'params' of {owner} needs a tokendraw.SamplingParams, found {type_name(params)}. "
            "Make one: SamplingParams(temperature=..., top_k=...)."
        )
    values = stored_values(params, owner, sizes.vocab_size)
    (kind,) = row_kinds({name: [value] for name, value in values.items()})
    families = [FILTER_PREFIX + name for name, _ in values["filters"]]
    if values[GIVEN_IDS]:
        _check_count(owner, sizes, GIVEN_IDS, "max_logprob_token_ids", len(values[GIVEN_IDS]))
        families.append(GIVEN_IDS)
    edits, names = NO_EDITS, NO_EDITS.names
    if params.may_edit:
        edits = check_edits(params, owner, sizes.vocab_size)
        names = edits.names
        longest = max(map(len, edits.bad_words), default=0)
        marks = max(len(edits.thinking_start), len(edits.thinking_end))
        _check_count(owner, sizes, "logit_bias", "max_bias", len(edits.bias), "entries")
        _check_count(owner, sizes, "stop_token_ids", "max_stop_ids", len(edits.stop_ids))
        _check_count(owner, sizes, "dry_sequence_breakers", "max_dry_breakers", len(edits.dry_breakers))
        _check_count(owner, sizes, "thinking_budget", "max_thinking_ids", marks, "ids in a sequence")
        _check_count(owner, sizes, "bad_words", "max_bad_words", len(edits.bad_words), "sequences")
        _check_count(owner, sizes, "bad_words", "max_bad_word_len", longest, "ids in a sequence")
        families += [FACT_OF_EDIT[name] for name in names]
    return SlotRequest(values, kind, edits, names, frozenset(families))


def _check_count(owner: str, sizes: SlotSizes, field: str, limit: str, count: int, unit: str = "ids") -> None:
    capacity = getattr(sizes, limit)
    if count > capacity:
        raise InvalidParameterError(
            f"'{field}' of {owner} needs at most '{limit}', {capacity}, {unit}, found {count}. "
            f"Ask for fewer, or make RequestSlots with a larger {limit}."
        )


def check_history(
    slot: int, prompt: Iterable[int] | Tensor, output: Iterable[int] | Tensor, sizes: SlotSizes
) -> TokenHistory:
    owner, most = f"slot {slot}", sizes.max_tokens
    before = read_tokens("prompt_token_ids", prompt, owner)
    tokens = TokenHistory(before, read_tokens("output_token_ids", output, owner))
    if tokens.num_tokens > most:
        found = f"{tokens.prompt.shape[0]}"
        if tokens.output.shape[0]:
            found += f" and {tokens.output.shape[0]} of 'output_token_ids'"
        raise InvalidParameterError(
            f"'prompt_token_ids' of {owner} needs at most 'max_tokens', {most}, ids, found {found}. "
            "Shorten the prompt, or make RequestSlots with a larger max_tokens."
        )
    return tokens


class Population:
    """The requests in the slots, counted by kind and edits."""

    def __init__(self) -> None:
        self.requests: dict[int, SlotRequest] = {}
        self._kinds: Counter[RowKind] = Counter()
        self._edits: Counter[Edit] = Counter()
        self._facts: BatchFacts | None = None
        self._most_given_ids: int | None = None
        self.edits: tuple[Edit, ...] = ()
        self.edit_facts = EditFacts.of(self.edits)

    @property
    def facts(self) -> BatchFacts:
        """Facts about a batch of any of the requests; the same object while they have the same kinds."""
        if self._facts is None:
            self._facts = BatchFacts.of_kinds(self._kinds.keys())
        return self._facts

    @property
    def most_given_ids(self) -> int:
        if self._most_given_ids is None:
            counts = (len(request.params[GIVEN_IDS]) for request in self.requests.values())
            self._most_given_ids = max(counts, default=0)
        return self._most_given_ids

    def add(self, slot: int, request: SlotRequest) -> None:
        self.requests[slot] = request
        self._count(request, 1)

    def remove(self, slot: int) -> None:
        self._count(self.requests.pop(slot), -1)

    def _count(self, request: SlotRequest, by: int) -> None:
        before = len(self._kinds)
        self._kinds[request.kind] += by
        if not self._kinds[request.kind]:
            del self._kinds[request.kind]
        if len(self._kinds) != before:
            self._facts = None
        if GIVEN_IDS in request.families:
            self._most_given_ids = None
        if not request.edit_names:
            return
        for edit in request.edit_names:
            self._edits[edit] += by
        edits = tuple([edit for edit in EDITS if self._edits[edit]])
        if edits != self.edits:
            self.edits, self.edit_facts = edits, EditFacts.of(edits)


def read_tokens(name: str, tokens: Any, owner: str) -> Tensor:
    """Return the tokens of a history as [n] int64; an int that is no int32 has no id either way."""
    if isinstance(tokens, Tensor):
        check_vector(name, tokens)
        check_integers(name, tokens)
        return tokens.to("cpu", torch.int64)
    values = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if not isinstance(values, (list, tuple)):
        values = list(each(name, values, "integers", owner))
    if {*map(type, values)} <= {int}:
        with contextlib.suppress(OverflowError):
            return host_ids(values)
    numbers = integers(name, values, -math.inf, math.inf, "integers", row=owner)
    return host_ids([max(-1, min(number, LARGEST_INT32 + 1)) for number in numbers])


# The tokens of a step.


class Histories:
    """Appends tokens to ``history`` and ``distinct`` of the slots, and counts their ids."""

    @torch.inference_mode(False)  # inference tensors could not be changed outside of that mode
    def __init__(self, tokens: Tensor, lengths: Tensor, counts: Tensor) -> None:
        """Hold the tensors.

        :param tokens: [2, S, M] int32: ``history`` and ``distinct``.
        :param lengths: [3, S + 1] int32: ``num_tokens``, ``num_distinct`` and the capacity.
        """
        self._tokens = tokens
        self._counts = counts
        self._lengths = lengths[:2, :-1].unsqueeze(2)
        self._limit = lengths[2, :-1].unsqueeze(1)
        self._most = torch.full((2, 1, 1), LARGEST_INT32, dtype=torch.int64, device=tokens.device)
        """[2, 1, 1]: the largest token of a history, placeholders included, and the largest id."""
        self._most[1].fill_(counts.shape[1] - 1)
        self._least = torch.zeros_like(self._most)

    def append(self, row_index: Tensor, token_ids: Tensor) -> None:
        """Append the tokens of rows.

        A token without an id, V or more, takes its place in the history and is counted by no id. Left out are negative
        numbers, rows whose slot has no request, and tokens beyond M.

        :param row_index: [B] integer, each slot at most once.
        :param token_ids: [B] or [B, K] integer.
        """
        (_, num_slots, max_tokens), lengths = self._tokens.shape, self._lengths
        columns = (token_ids.unsqueeze(1) if token_ids.dim() == 1 else token_ids).to(torch.int64)
        is_single = columns.shape[1] == 1
        slot = row_index.to(torch.int64).clamp(-1, num_slots)  # -1 is the last one too, that of no request
        tokens = columns.new_full((num_slots + 1, columns.shape[1]), -1).index_put_((slot,), columns)
        tokens = tokens[:num_slots]
        # From here on each slot works on its own row. Of the history and of ids:
        values = tokens.clamp(self._least, self._most)
        changes = values == tokens
        ends = lengths[0] if is_single else changes[0].cumsum(1).add_(lengths[0] - 1)
        changes.logical_and_(ends < self._limit)

        ids, are_new = values[1], changes[1]
        occurrences = self._counts.gather(1, ids).bitwise_and_(OCCURRENCES)
        self._counts.scatter_add_(1, ids, are_new.to(torch.int32).mul_(ONE_OUTPUT))  # new or not
        torch.lt(occurrences, are_new, out=are_new)  # an id, and 0
        if not is_single:  # of several equal ids of a request the first alone is new
            same = (ids.unsqueeze(2) == ids.unsqueeze(1)) & are_new.unsqueeze(1)
            are_new.logical_and_(same.tril_(-1).any(2).logical_not_())

        places = lengths if is_single else changes.cumsum(2).add_(lengths - 1).clamp_(min=0)
        # 0 is added where nothing is kept, so wherever there is memory.
        places = places.to(torch.int64).clamp_(max=max_tokens - 1)
        self._tokens.scatter_add_(2, places, (changes * values).to(torch.int32))
        lengths.add_(changes if is_single else changes.sum(2, keepdim=True, dtype=torch.int32))


class Room:
    """A lower bound of the free places in each request's history.

    A step with slots known to the device alone counts as use by every request, in a single addition.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._used = 0
        self._full_at: dict[int, int] = {}
        """By slot: the value of ``_used`` at which the history is full."""
        self._first_full_at = 0

    def add(self, slot: int, num_tokens: int) -> None:
        full_at = self._used + self._max_tokens - num_tokens
        self._first_full_at = min(self._first_full_at, full_at) if self._full_at else full_at
        self._full_at[slot] = full_at

    def remove(self, slot: int) -> None:
        if self._full_at.pop(slot) == self._first_full_at:
            self._first_full_at = min(self._full_at.values(), default=0)

    def take(self, slots: Sequence[int] | None, width: int) -> bool:
        """Take ``width`` places of each request (None: only the device knows), or return False: one may have fewer."""
        if not self._full_at:
            return True
        if slots is None:
            if self._used + width > self._first_full_at:
                return False
            self._used += width
            return True
        left = [self._full_at[slot] - width for slot in slots]
        if min(left, default=self._used) < self._used:
            return False
        self._full_at.update(zip(slots, left, strict=True))
        self._first_full_at = min(self._first_full_at, min(left, default=self._first_full_at))
        return True

    def take_exactly(self, num_tokens: Tensor, row_index: Tensor, tokens: Tensor) -> None:
        """Take a place for each token, after reading the lengths of the histories from the device, which waits."""
        most, lengths = self._max_tokens, num_tokens.tolist()
        added: list[int] = (tokens >= 0).unsqueeze(-1).flatten(1).sum(1).tolist()
        rows = [*zip(row_index.tolist(), added, strict=True)]
        for row, (slot, more) in enumerate(rows):
            if slot in self._full_at and lengths[slot] + more > most:
                raise InvalidParameterError(
                    f"'token_ids' of row {row} needs room for {more} in slot {slot}, found {lengths[slot]} tokens of "
                    f"'max_tokens', {most}. Remove the request, or make RequestSlots with a larger max_tokens."
                )
        tokens_of_slot = dict(rows)
        for slot in self._full_at:
            self._full_at[slot] = self._used + most - lengths[slot] - tokens_of_slot.get(slot, 0)
        self._first_full_at = min(self._full_at.values())
