"""Writes a request to its slot in a single upload, and cleans the slot afterwards, without waiting."""

from __future__ import annotations

from array import array
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw._torch.tensors import uploaded_words
from tokendraw._torch.threads import one_thread
from tokendraw.parameters.edits import CheckedEdits
from tokendraw.parameters.history_edits import MAX_ID
from tokendraw.request_slots.capacity import SlotSizes
from tokendraw.request_slots.memory import SlotTensors
from tokendraw.request_slots.requests import SlotRequest, TokenHistory
from tokendraw.request_slots.tables import (
    ENDS_BAD_WORD,
    HAS_BIAS,
    IN_PROMPT,
    IS_STOP,
    OCCURRENCES,
    ONE_OUTPUT,
    layout_on,
)
from tokendraw.request_slots.token_ids import are_within, host_ids

_PACKED_BITS = 0x0102040810204080
"""Factor for 8 bytes of 0 or 1 as an int64: bit i of the product's last byte is byte i."""


class Occurrences(NamedTuple):
    """The ids that a new request names."""

    distinct: Tensor
    """[n] int32: ids in [0, V) of prompt and output, each once."""
    counts: Tensor | None
    """[m] int32: the entry of ``RequestTables.counts`` for each of ``flagged``; None: all are ``IN_PROMPT``."""
    flagged: Tensor | None
    """[m] int32: the ids of ``distinct`` and of edits, each once; None: the former alone."""


class PackedRequest(NamedTuple):
    """A request on the device of the slots."""

    words: Tensor
    """int32: the small parameters, ``history``, ``distinct`` with 0 behind it, and ``lists``."""
    num_tokens: int
    """Length of ``history``, and of ``distinct`` with what is behind it."""
    num_distinct: int
    lists: dict[str, int]
    """Lengths of the vectors of :class:`Occurrences` and of the lists of edits, none of them empty, by name."""


class RequestPacker:
    """Uploads requests, each at once."""

    @torch.inference_mode(False)  # inference tensors could not be changed outside of that mode
    def __init__(self, sizes: SlotSizes, device: torch.device) -> None:
        """Allocate scratch on the host: 4 bytes for each id of the vocabulary.

        :param device: the device of the slots.
        """
        self._sizes, self._device = sizes, device
        self._layout = layout_on(device.type)
        self._place_of_id = torch.empty(sizes.vocab_size, dtype=torch.int32, device="cpu")
        """[V]: a place of each id in the list at hand; undefined for ids that are not in that list."""

    def uploaded(self, request: SlotRequest, tokens: TokenHistory) -> PackedRequest:
        """Lay out a request, and upload it.

        :raises InvalidInputError: a CUDA graph is being captured.
        """
        num_tokens = tokens.num_tokens
        if not num_tokens and not request.edit_names:
            column = self._layout.packed(self._parameters(request, tokens, 0))
            return PackedRequest(uploaded_words([column], self._device), 0, 0, {})
        with one_thread():
            stored, in_vocabulary = self._without_placeholders(tokens)
            ids = self._occurrences(request.edits, in_vocabulary)
            num_distinct = ids.distinct.shape[0]
            pieces = [self._layout.packed(self._parameters(request, tokens, num_distinct))]
            if num_tokens:
                history = torch.cat(stored) if stored.output.shape[0] else stored.prompt
                pieces += (history.to(torch.int32), ids.distinct)
            if num_distinct < num_tokens:
                pieces.append(_filled(num_tokens - num_distinct, 0))
            vectors = {"counts": ids.counts, "flagged": ids.flagged}
            lists = {name: vector for name, vector in vectors.items() if vector is not None}
            if request.edit_names:
                lists |= _edit_lists(request.edits, self._sizes)
            words = uploaded_words([*pieces, *lists.values()], self._device)
        return PackedRequest(
            words, num_tokens, num_distinct, {name: piece.shape[0] for name, piece in lists.items()}
        )

    def _parameters(self, request: SlotRequest, tokens: TokenHistory, num_distinct: int) -> dict[str, float]:
        """Return the small parameters by name."""
        params, edits = request.params, request.edits
        return {
            **params,
            "seed": params["seed"] or 0,
            "seeded": params["seed"] is not None,
            "joint": params["filter_order"] == "joint",
            "temperature_last": params["filter_order"] == "temperature_last",
            "logprobs": params["logprobs"] or 0,
            "num_tokens": tokens.num_tokens,
            "num_distinct": num_distinct,
            "limit": self._sizes.max_tokens,
            "num_prompt": tokens.prompt.shape[0],
            "num_bias": len(edits.bias),
            "num_stop": len(edits.stop_ids),
            "min_tokens": edits.min_tokens,
            "num_bad": len(edits.bad_words),
            "is_restricted": "allowed_token_ids" in request.edit_names,
            "repetition": edits.repetition,
            "frequency": edits.frequency,
            "presence": edits.presence,
            "penalty_last_n": edits.last_n,
            "dry_multiplier": edits.dry.multiplier,
            "dry_base": edits.dry.base,
            "dry_allowed_length": edits.dry.allowed_length,
            "dry_max_match": edits.dry.max_match,
            "dry_last_n": edits.dry.last_n,
            "num_dry_breakers": len(edits.dry.breakers),
            "thinking_budget": edits.thinking.num_tokens,
            "num_thinking_start": len(edits.thinking.start),
            "num_thinking_end": len(edits.thinking.end),
        }

    def _occurrences(self, edits: CheckedEdits, tokens: TokenHistory) -> Occurrences:
        """Collect the ids, in any order."""
        prompt, output = tokens
        ends = {word[-1] for word in edits.bad_words}
        flags = [HAS_BIAS] * len(edits.bias) + [IS_STOP] * len(edits.stop_ids) + [ENDS_BAD_WORD] * len(ends)
        num_prompt, num_output = prompt.shape[0], output.shape[0]
        if not num_output and not flags:
            return Occurrences(self._distinct(prompt)[0], None, None)
        ids = torch.cat((prompt, output, host_ids([*edits.bias, *edits.stop_ids, *ends])))
        distinct, is_kept = self._distinct(ids)
        places = self._place_of_id.index_select(0, ids)
        counts = _filled(ids.shape[0], 0)
        counts.index_fill_(0, places[:num_prompt].to(torch.int64), IN_PROMPT)
        counts.index_add_(0, places[num_prompt:], _steps(num_output, flags))
        counts = counts.masked_select(is_kept)
        if not flags:
            return Occurrences(distinct, counts, None)
        return Occurrences(distinct[(counts & OCCURRENCES) != 0], counts, distinct)

    def _without_placeholders(self, tokens: TokenHistory) -> tuple[TokenHistory, TokenHistory]:
        """Return the tokens as stored, -1 for a number that is no int32, and the tokens in [0, V)."""
        last = self._sizes.vocab_size - 1
        if are_within(tokens.prompt, 0, last) and are_within(tokens.output, 0, last):
            return tokens, tokens
        stored = TokenHistory(*[torch.where((ids >= -1) & (ids <= MAX_ID), ids, -1) for ids in tokens])
        return stored, TokenHistory(*[ids[(ids >= 0) & (ids <= last)] for ids in tokens])

    def _distinct(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return each id once as int32, and whether a place [n] is the one of its id in ``_place_of_id``."""
        places = torch.arange(ids.shape[0], dtype=torch.int32, device="cpu")
        self._place_of_id.scatter_(0, ids, places)
        is_kept = self._place_of_id.index_select(0, ids) == places
        return ids.masked_select(is_kept).to(torch.int32), is_kept


def _filled(size: int, value: int) -> Tensor:
    return torch.full((size,), value, dtype=torch.int32, device="cpu")


def _steps(num_outputs: int, flags: list[int]) -> Tensor:
    """Return what each token of the output, and each id of an edit, adds to its count."""
    steps = _filled(num_outputs + len(flags), ONE_OUTPUT)
    if flags:
        steps[num_outputs:] = torch.frombuffer(array("i", flags), dtype=torch.int32)
    return steps


def _edit_lists(edits: CheckedEdits, sizes: SlotSizes) -> dict[str, Tensor]:
    """Return the lists of edits with entries, by field of ``RequestTables``."""
    right_aligned = [(*[-1] * (sizes.max_bad_word_len - len(word)), *word) for word in edits.bad_words]
    lists = {
        "bias_ids": array("i", edits.bias),
        "bias": array("f", edits.bias.values()),
        "stop_ids": array("i", edits.stop_ids),
        "bad_words": array("i", chain.from_iterable(right_aligned)),
        "bad_lens": array("i", map(len, edits.bad_words)),
        "dry_breakers": array("i", edits.dry.breakers),
        "thinking_start": array("i", edits.thinking.start),
        "thinking_end": array("i", edits.thinking.end),
    }
    pieces = {
        name: torch.frombuffer(entries, dtype=torch.int32) for name, entries in lists.items() if entries
    }
    if len(edits.allowed):
        pieces["allowed"] = _bit_mask(edits.allowed, sizes.num_words)
    return pieces


def _bit_mask(ids: Tensor, num_words: int) -> Tensor:
    """Return words of 32 bits, with bit i % 32 of word i // 32 set for each id i of ``ids``."""
    is_allowed = torch.zeros(32 * num_words, dtype=torch.uint8, device="cpu").index_fill_(0, ids, 1)
    return (
        is_allowed.view(torch.int64).mul_(_PACKED_BITS).view(torch.uint8)[7::8].contiguous().view(torch.int32)
    )


def write_request(state: SlotTensors, slot: int, request: PackedRequest) -> None:
    """Write a request to a clean slot."""
    tables, num_tokens, num_distinct = state.tables, request.num_tokens, request.num_distinct
    if not num_tokens and not request.lists:
        state.parameters.write(slot, request.words.view(torch.uint8))
        return
    sizes = [state.parameters.num_words, 2 * num_tokens, *request.lists.values()]
    column, tokens, *pieces = request.words.split_with_sizes(sizes)
    state.parameters.write(slot, column.view(torch.uint8))
    lists = dict(zip(request.lists, pieces, strict=True))
    if num_tokens:
        written = state.tokens.select(1, slot).narrow(1, 0, num_tokens)
        written.copy_(tokens.view(2, num_tokens))
    counts, flagged = lists.pop("counts", None), lists.pop("flagged", None)
    if num_distinct or flagged is not None:
        tables.counts.select(0, slot).index_add_(
            0,
            tokens.narrow(0, num_tokens, num_distinct) if flagged is None else flagged,
            state.in_prompt.expand(num_distinct) if counts is None else counts,
        )
    for name, piece in lists.items():
        table: Tensor = getattr(tables, name)
        row = table[slot] if table.dim() == 2 else table[slot].view(-1)
        row[: piece.shape[0]].copy_(piece if piece.dtype == table.dtype else piece.view(table.dtype))


def clean_slot(state: SlotTensors, slot: int, request: SlotRequest) -> None:
    """Remove all traces of a request from its slot, found by the request's lists of ids."""
    tables, edits = state.tables, request.edits
    # All of the distinct ids: behind them stands 0, whose count is to be 0 as well.
    traces = [tables.distinct.select(0, slot)]
    if edits.bias:
        traces.append(tables.bias_ids[slot, : len(edits.bias)])
    if edits.stop_ids:
        traces.append(tables.stop_ids[slot, : len(edits.stop_ids)])
    if edits.bad_words:
        traces.append(tables.bad_words[slot, : len(edits.bad_words), -1])
    ids = traces[0] if len(traces) == 1 else torch.cat(traces)
    tables.counts.select(0, slot).index_fill_(0, ids.to(torch.int64), 0)
    state.tokens.select(1, slot).zero_()
    state.parameters.write(slot, state.parameters.at_rest)
    families = request.families
    for name, table in state.lists.items() if families else ():
        if table.family in families:
            getattr(tables, name)[slot].fill_(table.padding)
