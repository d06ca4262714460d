"""The tensors of requests on their device: small parameters, histories, tables for edits of logits, and their uploads.

Nothing here waits for the device.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, chain
from math import prod
from operator import itemgetter
from struct import Struct
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from tokendraw._torch.tensors import is_capturing, memory_outside_graphs, uploaded, uploaded_vectors
from tokendraw._torch.threads import one_thread
from tokendraw.filters.installed import find_filter
from tokendraw.output import PAD_TOKEN_ID
from tokendraw.parameters.batch_facts import RowKind
from tokendraw.parameters.fields import FILTER_PREFIX, PARAMETERS, SLOT_FIELDS, integer
from tokendraw.parameters.metadata import field_dtypes
from tokendraw.parameters.params import EDITS, LARGEST_INT32, NO_EDITS, CheckedEdits, Edit

ONE_OUTPUT = 16
"""Step of ``RequestTables.counts`` for each time that an id is in the output."""
IN_PROMPT, HAS_BIAS, IS_STOP, ENDS_BAD_WORD = 1, 2, 4, 8
OCCURRENCES = ~(HAS_BIAS | IS_STOP | ENDS_BAD_WORD)
"""The bits of ``RequestTables.counts`` that are set where an id occurs in prompt or output."""


@dataclass(frozen=True, eq=False)
class RequestTables:
    """The tensors of requests read by a provider of ``process_logits``. All lie dense on one device, and never move.

    NB, NS, NW, LW, ND, LT and the words of ``allowed`` are 0 until a request may ask for such an edit. Then
    ``slots.tables`` is another object, in which those tensors are new and the others are the same.

    S are the slots, M the tokens that one holds, V the vocabulary. A slot without a request asks for nothing: its
    counts are 0 and its lists are empty. Entries behind the last are undefined, unless a field says more. Read only.

    :ivar history: [S, M] int32: ids of the prompt, then ids of the output. A number outside [0, V) is a placeholder,
        such as an image has: a token that no bad word matches.
    :ivar num_prompt: [S] int32: number of tokens in the prompt.
    :ivar num_tokens: [S] int32: number of tokens in prompt and output, at most M.
    :ivar limit: [S] int32: most tokens in prompt and output: M, or 0 in a slot without a request.
    :ivar distinct: [S, M] int32: ids in [0, V) that occur in prompt or output, each once, in any order.
    :ivar num_distinct: [S] int32: number of ids in ``distinct``.
    :ivar counts: [S, V] int32: 16 times the number of occurrences of the id in the output, plus flags: 1, the id is in
        the prompt; 2, in ``bias_ids``; 4, in ``stop_ids``; 8, the id is the last of one of ``bad_words``.
    :ivar repetition: [S] float32: repetition penalty; 1: off.
    :ivar frequency: [S] float32: frequency penalty; 0: off.
    :ivar presence: [S] float32: presence penalty; 0: off.
    :ivar penalty_last_n: [S] int32: number of tokens, the last of history and drafts, that penalties count; -1: all.
    :ivar bias_ids: [S, NB] int32: ids of ``logit_bias``, each once; -1 behind the last.
    :ivar bias: [S, NB] float32: value that is added to the logit of each id in ``bias_ids``.
    :ivar num_bias: [S] int32: number of ids in ``bias_ids``.
    :ivar allowed: [S, ceil(V / 32)] int32: bit i % 32 of word i // 32: whether id i is allowed, if ``is_restricted``.
    :ivar is_restricted: [S] bool: whether the request has ``allowed_token_ids``.
    :ivar stop_ids: [S, NS] int32: ids that ``min_tokens`` holds back, each once; -1 behind the last.
    :ivar num_stop: [S] int32: number of ids in ``stop_ids``; 0 where ``min_tokens`` is 0.
    :ivar min_tokens: [S] int32: number of tokens in the output below which ``stop_ids`` are not drawn; 0: off.
    :ivar bad_words: [S, NW, LW] int32: sequences, each with -1 before its first id: the last id is in column LW - 1.
    :ivar bad_lens: [S, NW] int32: number of ids in each sequence, from 1 to LW; 0 behind the last sequence.
    :ivar num_bad: [S] int32: number of sequences in ``bad_words``.
    :ivar dry_multiplier: [S] float32: cost of a match of ``dry_allowed_length`` tokens; 0: off.
    :ivar dry_base: [S] float32: factor for each further token, >= 1.
    :ivar dry_allowed_length: [S] int32: length of the shortest match with a cost.
    :ivar dry_max_match: [S] int32: length that longer matches count as.
    :ivar dry_last_n: [S] int32: number of tokens, the last of ``history`` and drafts, that are searched.
    :ivar dry_breakers: [S, ND] int32: ids that no match contains, each once; -1 behind the last.
    :ivar num_dry_breakers: [S] int32: number of ids in ``dry_breakers``.
    :ivar thinking_budget: [S] int32: tokens behind the newest start from which on the end is forced; -1: off.
    :ivar thinking_start: [S, LT] int32: the ids of the start in their order; -1 behind the last.
    :ivar num_thinking_start: [S] int32: number of ids in ``thinking_start``.
    :ivar thinking_end: [S, LT] int32: the ids of the end in their order; -1 behind the last.
    :ivar num_thinking_end: [S] int32: number of ids in ``thinking_end``.
    """

    history: Tensor
    num_prompt: Tensor
    num_tokens: Tensor
    limit: Tensor
    distinct: Tensor
    num_distinct: Tensor
    counts: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor
    penalty_last_n: Tensor
    bias_ids: Tensor
    bias: Tensor
    num_bias: Tensor
    allowed: Tensor
    is_restricted: Tensor
    stop_ids: Tensor
    num_stop: Tensor
    min_tokens: Tensor
    bad_words: Tensor
    bad_lens: Tensor
    num_bad: Tensor
    dry_multiplier: Tensor
    dry_base: Tensor
    dry_allowed_length: Tensor
    dry_max_match: Tensor
    dry_last_n: Tensor
    dry_breakers: Tensor
    num_dry_breakers: Tensor
    thinking_budget: Tensor
    thinking_start: Tensor
    num_thinking_start: Tensor
    thinking_end: Tensor
    num_thinking_end: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class EditFacts:
    """Edits possible for the requests in the slots, by counting them. The defaults say "anything".

    :ivar any_penalty: Whether a request has a repetition, frequency or presence penalty.
    :ivar any_penalty_last_n: Whether a request with a penalty has ``penalty_last_n``.
    :ivar any_bias: Whether a request has a ``logit_bias``.
    :ivar any_allowed: Whether a request has ``allowed_token_ids``.
    :ivar any_bad_words: Whether a request has ``bad_words``.
    :ivar any_min_tokens: Whether a request has ``min_tokens``.
    :ivar any_dry: Whether a request has ``dry_multiplier``.
    :ivar any_thinking_budget: Whether a request has a ``thinking_budget``.
    """

    any_penalty: bool = True
    any_penalty_last_n: bool = True
    any_bias: bool = True
    any_allowed: bool = True
    any_bad_words: bool = True
    any_min_tokens: bool = True
    any_dry: bool = True
    any_thinking_budget: bool = True

    @classmethod
    def of(cls, edits: Collection[Edit]) -> Self:
        """Describe requests with exactly the given edits."""
        names = {FACT_OF_EDIT[edit] for edit in edits if edit in FACT_OF_EDIT}
        return cls(**{field.name: field.name in names for field in fields(cls)})

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Names of the possible edits: all three penalties if any is possible."""
        return tuple([edit for edit in EDITS if edit in FACT_OF_EDIT and getattr(self, FACT_OF_EDIT[edit])])

    @property
    def any_edit(self) -> bool:
        """Whether a request may ask for anything at all, apart from bitmasks."""
        return self != _NO_EDIT_FACTS


FACT_OF_EDIT: dict[Edit, str] = {
    "allowed_token_ids": "any_allowed",
    "bad_words": "any_bad_words",
    "min_tokens": "any_min_tokens",
    "logit_bias": "any_bias",
    "repetition_penalty": "any_penalty",
    "frequency_penalty": "any_penalty",
    "presence_penalty": "any_penalty",
    "penalty_last_n": "any_penalty_last_n",
    "dry_multiplier": "any_dry",
    "thinking_budget": "any_thinking_budget",
}
"""Field of :class:`EditFacts` that tells of an edit, by its name; requests ask for no bitmask."""
_NO_EDIT_FACTS = EditFacts.of(())

_MAX_TOKENS = 2**27 - 1  # counts are 16 times as large, in an int32


class SlotSizes(NamedTuple):
    """The capacities of the slots: S, M, V, NB, NS, NW, LW, the most given ids, ND and LT."""

    num_slots: int
    max_tokens: int
    vocab_size: int
    max_bias: int
    max_stop_ids: int
    max_bad_words: int
    max_bad_word_len: int
    max_logprob_token_ids: int
    max_dry_breakers: int
    max_thinking_ids: int

    @property
    def num_words(self) -> int:
        return -(-self.vocab_size // 32)


def check_sizes(*sizes: int) -> SlotSizes:
    most = dict.fromkeys(("max_tokens", "max_bad_word_len", "max_thinking_ids"), _MAX_TOKENS)
    by_name = zip(SlotSizes._fields, sizes, strict=True)
    checked = [integer(name, size, None, 1, most.get(name, LARGEST_INT32)) for name, size in by_name]
    found = SlotSizes(*checked)
    of_distinct_ids = ("max_bias", "max_stop_ids", "max_logprob_token_ids", "max_dry_breakers")
    return found._replace(**{name: min(getattr(found, name), found.vocab_size) for name in of_distinct_ids})


def columns_of(edits: CheckedEdits) -> dict[str, Any]:
    """Return, among others, the small parameters of edits by name."""
    return edits._asdict() | {
        "num_bias": len(edits.bias),
        "num_stop": len(edits.stop_ids),
        "num_bad": len(edits.bad_words),
        "num_dry_breakers": len(edits.dry_breakers),
        "num_thinking_start": len(edits.thinking_start),
        "num_thinking_end": len(edits.thinking_end),
        "is_restricted": bool(edits.allowed),
    }


_STATE_AT_REST: dict[str, float] = {
    **dict.fromkeys(("num_tokens", "num_distinct", "limit"), 0),  # a step reads these together
    "num_prompt": 0,
    **{name: value for name, value in columns_of(NO_EDITS).items() if isinstance(value, (int, float))},
}
_DTYPES = {int: torch.int32, float: torch.float32, bool: torch.bool}
STATE_COLUMNS = {name: _DTYPES[type(value)] for name, value in _STATE_AT_REST.items()}
"""Dtypes of the small parameters beside the fields of the metadata, by field of :class:`RequestTables`."""
VALUES_AT_REST: dict[str, Any] = {
    **dict.fromkeys(SLOT_FIELDS, 0),
    **{parameter.name: parameter.neutral for parameter in PARAMETERS},
    **_STATE_AT_REST,
}
"""The small parameters of a slot without a request."""
_CODES = {torch.float64: "d", torch.float32: "f", torch.int64: "q", torch.int32: "i", torch.bool: "?"}
_ALIGNMENT = 16  # elements: Triton compiles another kernel for a pointer that is no multiple of 16 bytes
_WORD_BYTES = 4


class Parameters:
    """The small parameters of all slots, a row of memory each. Those of a slot are written by a single operation."""

    def __init__(self, num_slots: int, device: torch.device) -> None:
        """Allocate slots without requests, and one more."""
        width = -(-(num_slots + 1) // _ALIGNMENT) * _ALIGNMENT
        dtypes = field_dtypes(device.type) | STATE_COLUMNS
        names = sorted(dtypes, key=lambda name: -dtypes[name].itemsize)  # so that each row lies aligned
        sizes = [dtypes[name].itemsize for name in names]
        padding = -sum(sizes) % _WORD_BYTES
        self._packer = Struct(f"={''.join(_CODES[dtypes[name]] for name in names)}{padding}x")
        self._values_of = itemgetter(*names)
        self.at_rest = uploaded_vectors([self.packed(VALUES_AT_REST)], device).view(torch.uint8)
        """[P]: the column of a slot without a request. The upload refuses a device that is not here."""
        sizes += [1] * padding
        *starts, num_bytes = accumulate(sizes, lambda start, size: start + size * width, initial=0)
        self.memory = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self.rows: dict[str, Tensor] = {}
        """[S] each, by name. They lie in ``memory``, but torch counts their changes apart: they are no views."""
        for name, start, size in zip(names, starts, sizes, strict=False):
            row = self.memory[start : start + size * width].view(dtypes[name])
            self.rows[name] = row.fill_(VALUES_AT_REST[name])[:num_slots].data
        first = names.index("num_tokens")
        lengths = self.memory[starts[first] : starts[first + 3]].view(torch.int32).view(3, width)
        self.lengths = lengths[:, : num_slots + 1]
        """[3, S + 1] int32: ``num_tokens``, ``num_distinct``, and the capacity: M, or 0 without a request. Slot S
        stands for every slot out of range, and is always empty."""
        places = {
            "first": [s + byte for s, size in zip(starts, sizes, strict=True) for byte in range(size)],
            "step": [size for size in sizes for _ in range(size)],
        }
        uploads = uploaded({name: (place, torch.int64) for name, place in places.items()}, device)
        self._first, self._step = uploads["first"], uploads["step"]
        """[P] each: place of each byte of a column in ``memory``, in slot 0, and bytes from there to the next slot."""
        self.tensors = self.memory, self.at_rest, self._first, self._step

    def packed(self, values: Mapping[str, Any]) -> Tensor:
        packed = self._packer.pack(*self._values_of(values))
        return torch.frombuffer(bytearray(packed), dtype=torch.int32)

    def write(self, slot: int, column: Tensor) -> None:
        self.memory.index_copy_(0, torch.add(self._first, self._step, alpha=slot), column)

    @property
    def num_words(self) -> int:
        return self.at_rest.shape[0] // _WORD_BYTES


class ListTable(NamedTuple):
    """A tensor of a rarely used parameter, with memory from the first request on that asks for its family."""

    family: str
    """The field of :class:`EditFacts` that tells of the edit, or the name itself."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    padding: float = 0
    """Value behind the entries of a list, and of a filter that is off."""


GIVEN_IDS = "logprob_token_ids"


def _list_tables(sizes: SlotSizes) -> dict[str, ListTable]:
    slots, words, ids = sizes.num_slots, sizes.max_bad_words, torch.int32
    marks = ListTable("any_thinking_budget", (slots, sizes.max_thinking_ids), ids, -1)
    return {
        "bias_ids": ListTable("any_bias", (slots, sizes.max_bias), ids, -1),
        "bias": ListTable("any_bias", (slots, sizes.max_bias), torch.float32),
        "allowed": ListTable("any_allowed", (slots, sizes.num_words), ids),
        "bad_words": ListTable("any_bad_words", (slots, words, sizes.max_bad_word_len), ids, -1),
        "bad_lens": ListTable("any_bad_words", (slots, words), ids),
        "stop_ids": ListTable("any_min_tokens", (slots, sizes.max_stop_ids), ids, -1),
        "dry_breakers": ListTable("any_dry", (slots, sizes.max_dry_breakers), ids, -1),
        "thinking_start": marks,
        "thinking_end": marks,
        GIVEN_IDS: ListTable(GIVEN_IDS, (slots, sizes.max_logprob_token_ids), torch.int64, PAD_TOKEN_ID),
    }


@torch.inference_mode(False)  # inference tensors could not be changed outside of that mode
def _allocated(table: ListTable, device: torch.device) -> Tensor:
    if is_capturing():
        memory = memory_outside_graphs(prod(table.shape) * table.dtype.itemsize, device)
        return memory.view(table.dtype).view(table.shape)
    return torch.full(table.shape, table.padding, dtype=table.dtype, device=device)


_CONVERTED = [(name, field) for name, field in SLOT_FIELDS.items() if field.entries is not tuple]


class SlotRequest(NamedTuple):
    """The host's part of a request in a slot."""

    params: Mapping[str, Any]
    """Values by name, as stored in tensors."""
    kind: RowKind
    edits: CheckedEdits
    edit_names: tuple[Edit, ...]
    families: frozenset[str]
    """Families of its lists, see :class:`tokendraw.edits.tables.ListTable`; none where it has nothing but numbers."""


class TokenHistory(NamedTuple):
    """The tokens of a new request. Numbers outside [0, V) are placeholders: tokens without an id."""

    prompt: Tensor
    """[n] int64 on the host, each in the range of an int32; so is ``output``."""
    output: Tensor

    @property
    def num_tokens(self) -> int:
        return self.prompt.shape[0] + self.output.shape[0]


class Occurrences(NamedTuple):
    """The ids that a new request names."""

    distinct: Tensor
    """[n] int32: ids in [0, V) of prompt and output, each once."""
    counts: Tensor | None
    """[m] int32: the entry of ``RequestTables.counts`` for each of ``flagged``; None: all are ``IN_PROMPT``."""
    flagged: Tensor | None
    """[m] int32: the ids of ``distinct`` and of edits, each once; None: the former alone."""


class PackedRequest(NamedTuple):
    """A request on the device of the slots, in int32."""

    column: Tensor
    """The small parameters, packed."""
    tokens: Tensor
    """[2 * n]: ``history`` and ``distinct``, with 0 behind it."""
    num_distinct: int
    lists: dict[str, Tensor]
    """The vectors of :class:`Occurrences` and of ``SlotTensors.lists``, none of them empty, by name."""


class SlotTensors:
    """The tensors of all slots. A request goes to its slot in a single upload, and leaves no trace there."""

    @torch.inference_mode(False)  # inference tensors could not be changed outside of that mode
    def __init__(self, sizes: SlotSizes, device: torch.device) -> None:
        slots = sizes.num_slots
        self._sizes = sizes
        self._place_of_id = torch.empty(sizes.vocab_size, dtype=torch.int32, device="cpu")
        """[V]: a place of each id in the list at hand; undefined for ids that are not in that list."""
        self.parameters = Parameters(slots, device)
        """The small parameters, those of ``tables`` and ``sampling``."""
        rows = self.parameters.rows
        self.tokens = torch.zeros(2, slots, sizes.max_tokens, dtype=torch.int32, device=device)
        """[2, S, M]: ``history`` and ``distinct``, 0 behind their last entry, so that a step adds to them."""
        self.device = self.tokens.device  # which has an index, unlike 'cuda'
        self.in_prompt = torch.full((1,), IN_PROMPT, dtype=torch.int32, device=device)
        """[1]: the count of an id that is in the prompt alone."""
        self.sampling = {name: rows[name] for name in SLOT_FIELDS}
        """[S] each, by field of the metadata."""
        self.lists = _list_tables(sizes)
        """Those of filters are added when they get their memory."""
        self.missing = {table.family for table in self.lists.values()}
        """Families of ``lists`` without memory."""
        self.tensors: dict[str, Tensor] = {}
        """Those of ``lists`` that have memory. They never move."""
        self.unfilled: set[str] = set()
        """Names of ``lists`` whose memory is still to be filled with padding."""
        absent = {
            name: torch.empty(slots, *[0] * len(table.shape[1:]), dtype=table.dtype, device=self.device)
            for name, table in self.lists.items()
            if name != GIVEN_IDS
        }
        self.tables = RequestTables(
            history=self.tokens[0],
            distinct=self.tokens[1],
            counts=torch.zeros(slots, sizes.vocab_size, dtype=torch.int32, device=device),
            **{name: rows[name] for name in STATE_COLUMNS},
            **absent,
        )
        """Replaced when a family of edits gets its memory; all other tensors are shared."""

    def give_memory(self, families: Collection[str]) -> None:
        """Allocate memory for the lists of some families; if there is too little, nothing has changed.

        During the capture of a CUDA graph the memory stays unwritten, since every replay would write it again: see
        :meth:`fill`.
        """
        for name in families:
            if name.startswith(FILTER_PREFIX) and name not in self.lists:
                off = find_filter(name.removeprefix(FILTER_PREFIX)).off
                self.lists[name] = ListTable(name, self.tokens.shape[1:2], torch.float32, off)
                self.missing.add(name)
        asked = self.missing.intersection(families)
        if not asked:
            return
        lists = {name: table for name, table in self.lists.items() if table.family in asked}
        made = {name: _allocated(table, self.device) for name, table in lists.items()}
        if is_capturing():
            self.unfilled.update(made)
        self.tensors |= made
        self.missing -= asked
        of_edits = {name: tensor for name, tensor in made.items() if hasattr(self.tables, name)}
        if of_edits:
            self.tables = replace(self.tables, **of_edits)

    def fill(self) -> None:
        while self.unfilled:
            name = self.unfilled.pop()
            self.tensors[name].fill_(self.lists[name].padding)

    @property
    def num_bytes(self) -> int:
        others = (self.in_prompt, self.tokens, self.tables.counts, *self.parameters.tensors)
        return sum(tensor.nbytes for tensor in (*others, *self.tensors.values()))

    def uploaded(self, request: SlotRequest, tokens: TokenHistory) -> PackedRequest:
        num_tokens = tokens.num_tokens
        with one_thread():
            stored, in_vocabulary = self._without_placeholders(tokens)
            ids = self._occurrences(request.edits, in_vocabulary)
            num_distinct = ids.distinct.shape[0]
            pieces = [self._column(request, tokens, num_distinct)]
            if num_tokens:
                history = torch.cat(stored) if stored.output.shape[0] else stored.prompt
                pieces += (history.to(torch.int32), ids.distinct)
            if num_distinct < num_tokens:
                pieces.append(_filled(num_tokens - num_distinct, 0))
            vectors = {"counts": ids.counts, "flagged": ids.flagged}
            lists = {name: vector for name, vector in vectors.items() if vector is not None}
            if request.families:
                lists |= self._lists(request)
            words = uploaded_vectors([*pieces, *lists.values()], self.device)
        sizes = self.parameters.num_words, 2 * num_tokens, *map(len, lists.values())
        column, of_tokens, *parts = words.split_with_sizes(sizes)
        return PackedRequest(column, of_tokens, num_distinct, dict(zip(lists, parts, strict=True)))

    def write(self, slot: int, request: PackedRequest) -> None:
        column, tokens, num_distinct, lists = request
        num_tokens = len(tokens) // 2
        self.parameters.write(slot, column.view(torch.uint8))
        if num_tokens:
            self.tokens.select(1, slot).narrow(1, 0, num_tokens).copy_(tokens.view(2, num_tokens))
        counts, flagged = lists.pop("counts", None), lists.pop("flagged", None)
        if num_distinct or flagged is not None:
            self.tables.counts.select(0, slot).index_add_(
                0,
                tokens.narrow(0, num_tokens, num_distinct) if flagged is None else flagged,
                self.in_prompt.expand(num_distinct) if counts is None else counts,
            )
        for name, piece in lists.items():
            table = self.tensors[name]
            row = table[slot] if table.dim() == 2 else table[slot].view(-1)
            row[: piece.shape[0]].copy_(piece.view(table.dtype) if table.is_floating_point() else piece)

    def clean(self, slot: int, request: SlotRequest) -> None:
        # The whole row, 4 V bytes in one launch, in place of a search for the few ids that have a count.
        self.tables.counts.select(0, slot).zero_()
        self.tokens.select(1, slot).zero_()
        self.parameters.write(slot, self.parameters.at_rest)
        for name, table in self.lists.items() if request.families else ():
            if table.family in request.families:
                self.tensors[name][slot].fill_(table.padding)

    def _column(self, request: SlotRequest, tokens: TokenHistory, num_distinct: int) -> Tensor:
        params = request.params
        values: dict[str, Any] = {
            **VALUES_AT_REST,
            **params,
            **{name: field.entries([params[field.source]])[0] for name, field in _CONVERTED},
            "num_tokens": tokens.num_tokens,
            "num_distinct": num_distinct,
            "limit": self._sizes.max_tokens,
            "num_prompt": tokens.prompt.shape[0],
        }
        if request.edit_names:
            values |= columns_of(request.edits)
        return self.parameters.packed(values)

    def _occurrences(self, edits: CheckedEdits, tokens: TokenHistory) -> Occurrences:
        prompt, output = tokens
        ends = {word[-1] for word in edits.bad_words}
        flags = [HAS_BIAS] * len(edits.bias) + [IS_STOP] * len(edits.stop_ids) + [ENDS_BAD_WORD] * len(ends)
        num_prompt, num_output = prompt.shape[0], output.shape[0]
        if not num_output and not flags:
            return Occurrences(self._distinct(prompt)[0] if num_prompt else _filled(0, 0), None, None)
        ids = torch.cat((prompt, output, host_ids([*edits.bias, *edits.stop_ids, *ends])))
        distinct, is_kept = self._distinct(ids)
        places = self._place_of_id.index_select(0, ids)
        steps = _filled(num_output + len(flags), ONE_OUTPUT)
        if flags:
            steps[num_output:] = torch.frombuffer(array("i", flags), dtype=torch.int32)
        counts = _filled(ids.shape[0], 0)
        counts.index_fill_(0, places[:num_prompt].to(torch.int64), IN_PROMPT)
        counts.index_add_(0, places[num_prompt:], steps)
        counts = counts.masked_select(is_kept)
        if not flags:
            return Occurrences(distinct, counts, None)
        return Occurrences(distinct[(counts & OCCURRENCES) != 0], counts, distinct)

    def _without_placeholders(self, tokens: TokenHistory) -> tuple[TokenHistory, TokenHistory]:
        """Return the tokens as stored, -1 for a number that is no int32, and the tokens in [0, V)."""
        last = self._sizes.vocab_size - 1
        if are_within(tokens.prompt, 0, last) and are_within(tokens.output, 0, last):
            return tokens, tokens
        stored = TokenHistory(*[torch.where((ids >= -1) & (ids <= LARGEST_INT32), ids, -1) for ids in tokens])
        return stored, TokenHistory(*[ids[(ids >= 0) & (ids <= last)] for ids in tokens])

    def _distinct(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return each id once as int32, and whether a place [n] is the one of its id in ``_place_of_id``."""
        places = torch.arange(ids.shape[0], dtype=torch.int32, device="cpu")
        self._place_of_id.scatter_(0, ids, places)
        is_kept = self._place_of_id.index_select(0, ids) == places
        return ids.masked_select(is_kept).to(torch.int32), is_kept

    def _lists(self, request: SlotRequest) -> dict[str, Tensor]:
        """Return the lists with entries, in words of 32 bits each, by the names of ``SlotTensors.lists``."""
        edits, width = request.edits, self._sizes.max_bad_word_len
        lists = {FILTER_PREFIX + name: array("f", (value,)) for name, value in request.params["filters"]}
        lists[GIVEN_IDS] = array("i", request.params[GIVEN_IDS])
        if request.edit_names:
            right_aligned = [(*[-1] * (width - len(word)), *word) for word in edits.bad_words]
            lists |= {
                "bias_ids": array("i", edits.bias),
                "bias": array("f", edits.bias.values()),
                "stop_ids": array("i", edits.stop_ids),
                "bad_words": array("i", chain.from_iterable(right_aligned)),
                "bad_lens": array("i", map(len, edits.bad_words)),
                "dry_breakers": array("i", edits.dry_breakers),
                "thinking_start": array("i", edits.thinking_start),
                "thinking_end": array("i", edits.thinking_end),
            }
        used = {name: entries for name, entries in lists.items() if entries}
        pieces = {name: torch.frombuffer(entries, dtype=torch.int32) for name, entries in used.items()}
        if edits.allowed:
            pieces["allowed"] = _bit_mask(host_ids(edits.allowed), self._sizes.num_words)
        return pieces


def _filled(size: int, value: int) -> Tensor:
    return torch.full((size,), value, dtype=torch.int32, device="cpu")


def _bit_mask(ids: Tensor, num_words: int) -> Tensor:
    """Return words of 32 bits, with bit i % 32 of word i // 32 set for each id i of ``ids``."""
    is_allowed = torch.zeros(32 * num_words, dtype=torch.int64, device="cpu").index_fill_(0, ids, 1)
    return (is_allowed.view(-1, 32) << torch.arange(32, device="cpu")).sum(1).to(torch.int32)


def are_within(ids: Tensor, least: int, largest: int) -> bool:
    if not ids.shape[0]:
        return True
    first, last = ids.aminmax()
    return least <= first.item() and last.item() <= largest


_NO_IDS = torch.empty(0, dtype=torch.int64, device="cpu")


def host_ids(values: Sequence[int]) -> Tensor:
    return torch.frombuffer(array("q", values), dtype=torch.int64) if values else _NO_IDS
