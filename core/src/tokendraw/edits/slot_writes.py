"""Writes a request to its slot in a single upload, and cleans the slot afterwards, without waiting."""

from __future__ import annotations

from array import array
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokendraw._torch.tensors import uploaded_vectors
from tokendraw._torch.threads import one_thread
from tokendraw.edits.requests import SlotRequest, TokenHistory, are_within, host_ids
from tokendraw.edits.tables import (
    ENDS_BAD_WORD,
    GIVEN_IDS,
    HAS_BIAS,
    IN_PROMPT,
    IS_STOP,
    OCCURRENCES,
    ONE_OUTPUT,
    VALUES_AT_REST,
    SlotSizes,
    SlotTensors,
    columns_of,
)
from tokendraw.parameters.edits import LARGEST_INT32, CheckedEdits
from tokendraw.parameters.fields import FILTER_PREFIX

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
    """Lengths of the vectors of :class:`Occurrences` and of ``SlotTensors.lists``, none of them empty, by name."""


class SlotWriter:
    """Uploads requests, each at once, writes them to their slots, and removes them again."""

    @torch.inference_mode(False)  # inference tensors could not be changed outside of that mode
    def __init__(self, sizes: SlotSizes, state: SlotTensors) -> None:
        """Allocate scratch on the host: 4 bytes for each id of the vocabulary."""
        self._sizes, self._state = sizes, state
        self._place_of_id = torch.empty(sizes.vocab_size, dtype=torch.int32, device="cpu")
        """[V]: a place of each id in the list at hand; undefined for ids that are not in that list."""

    def uploaded(self, request: SlotRequest, tokens: TokenHistory) -> PackedRequest:
        num_tokens, device = tokens.num_tokens, self._state.device
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
            words = uploaded_vectors([*pieces, *lists.values()], device)
        return PackedRequest(
            words, num_tokens, num_distinct, {name: piece.shape[0] for name, piece in lists.items()}
        )

    def write(self, slot: int, request: PackedRequest) -> None:
        state, num_tokens, num_distinct = self._state, request.num_tokens, request.num_distinct
        sizes = [state.parameters.num_words, 2 * num_tokens, *request.lists.values()]
        column, tokens, *pieces = request.words.split_with_sizes(sizes)
        state.parameters.write(slot, column.view(torch.uint8))
        lists = dict(zip(request.lists, pieces, strict=True))
        if num_tokens:
            written = state.tokens.select(1, slot).narrow(1, 0, num_tokens)
            written.copy_(tokens.view(2, num_tokens))
        counts, flagged = lists.pop("counts", None), lists.pop("flagged", None)
        if num_distinct or flagged is not None:
            state.tables.counts.select(0, slot).index_add_(
                0,
                tokens.narrow(0, num_tokens, num_distinct) if flagged is None else flagged,
                state.in_prompt.expand(num_distinct) if counts is None else counts,
            )
        for name, piece in lists.items():
            table = state.tensors[name]
            row = table[slot] if table.dim() == 2 else table[slot].view(-1)
            row[: piece.shape[0]].copy_(piece.view(table.dtype) if table.is_floating_point() else piece)

    def clean(self, slot: int, request: SlotRequest) -> None:
        """Remove all traces of a request from its slot, found by the request's lists of ids."""
        state, tables, edits = self._state, self._state.tables, request.edits
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
        for name, table in state.lists.items() if request.families else ():
            if table.family in request.families:
                state.tensors[name][slot].fill_(table.padding)

    def _column(self, request: SlotRequest, tokens: TokenHistory, num_distinct: int) -> Tensor:
        params = request.params
        values: dict[str, Any] = {
            **VALUES_AT_REST,
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
        }
        if request.edit_names:
            values |= columns_of(request.edits)
        return self._state.parameters.packed(values)

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
        pieces = {
            name: torch.frombuffer(entries, dtype=torch.int32) for name, entries in lists.items() if entries
        }
        if edits.allowed:
            pieces["allowed"] = _bit_mask(host_ids(edits.allowed), self._sizes.num_words)
        return pieces


def _filled(size: int, value: int) -> Tensor:
    return torch.full((size,), value, dtype=torch.int32, device="cpu")


def _bit_mask(ids: Tensor, num_words: int) -> Tensor:
    """Return words of 32 bits, with bit i % 32 of word i // 32 set for each id i of ``ids``."""
    is_allowed = torch.zeros(32 * num_words, dtype=torch.uint8, device="cpu").index_fill_(0, ids, 1)
    return (
        is_allowed.view(torch.int64).mul_(_PACKED_BITS).view(torch.uint8)[7::8].contiguous().view(torch.int32)
    )
