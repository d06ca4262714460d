"""Checks a request for a slot, reads its token ids, and counts the requests in the slots by kind and edits."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokendraw._torch.tensors import INTEGERS, check_integers, check_vector, is_plain
from tokendraw.edits.tables import FACT_OF_EDIT, GIVEN_IDS, EditFacts, SlotSizes
from tokendraw.errors import InvalidParameterError, type_name
from tokendraw.parameters.batch_facts import BatchFacts, RowKind, row_kinds
from tokendraw.parameters.edits import EDITS, LARGEST_INT32, NO_EDITS, CheckedEdits, Edit, check_edits
from tokendraw.parameters.fields import FILTER_PREFIX, each, integers
from tokendraw.parameters.params import SamplingParams, stored_values


class SlotRequest(NamedTuple):
    """The host's part of a request in a slot."""

    params: Mapping[str, Any]
    """Values by name, as stored in tensors."""
    kind: RowKind
    edits: CheckedEdits
    edit_names: tuple[Edit, ...]
    families: frozenset[str]
    """Families of its lists, see :class:`tokendraw.edits.tables.ListTable`; none where it has nothing but numbers."""


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


class TokenHistory(NamedTuple):
    """The tokens of a new request. Numbers outside [0, V) are placeholders: tokens without an id."""

    prompt: Tensor
    """[n] int64 on the host, each in the range of an int32; so is ``output``."""
    output: Tensor

    @property
    def num_tokens(self) -> int:
        return self.prompt.shape[0] + self.output.shape[0]


def check_history(
    slot: int, prompt: Iterable[int] | Tensor, output: Iterable[int] | Tensor, sizes: SlotSizes
) -> TokenHistory:
    owner, most = f"slot {slot}", sizes.max_tokens
    tokens = TokenHistory(
        read_tokens("prompt_token_ids", prompt, owner), read_tokens("output_token_ids", output, owner)
    )
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


NO_IDS = torch.empty(0, dtype=torch.int64, device="cpu")


def read_tokens(name: str, tokens: Iterable[int] | Tensor, owner: str) -> Tensor:
    """Return the tokens of a history as [n] int64."""
    if isinstance(tokens, Tensor):
        check_vector(name, tokens)
        check_integers(name, tokens)
        return tokens.to("cpu", torch.int64)
    if type(tokens) is tuple and not tokens:
        return NO_IDS
    values = _sequence(name, tokens, owner)
    ids = _integers(values)
    if ids is not None:
        return ids
    numbers = integers(name, values, -math.inf, math.inf, "integers", row=owner)
    return host_ids([max(-1, min(number, LARGEST_INT32 + 1)) for number in numbers])


def are_within(ids: Tensor, least: int, largest: int) -> bool:
    if not ids.shape[0]:
        return True
    first, last = ids.aminmax()
    return least <= first.item() and last.item() <= largest


def host_ids(values: Sequence[int]) -> Tensor:
    return torch.frombuffer(array("q", values), dtype=torch.int64) if values else NO_IDS


def _sequence(name: str, values: Iterable[Any], owner: str) -> Sequence[Any]:
    if isinstance(values, (list, tuple, Tensor)) or hasattr(values, "__array_interface__"):
        return values  # type: ignore[return-value]
    return list(each(name, values, "integers", owner))


def _integers(values: Sequence[Any] | Tensor) -> Tensor | None:
    """Return integers as [n] int64, or None: a value is of another type, or too large."""
    try:
        if not isinstance(values, (list, tuple)):
            if not isinstance(values, Tensor):  # an array, of its own dtype
                values = torch.tensor(values, dtype=None, device="cpu")
            is_vector = is_plain(values) and values.dim() == 1 and values.dtype in INTEGERS
            return values.to("cpu", torch.int64) if is_vector else None
        return host_ids(values) if {*map(type, values)} <= {int} else None
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
