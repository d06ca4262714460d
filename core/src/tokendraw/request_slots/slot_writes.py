"""Writes a request to its slot in a single upload, and cleans the slot afterwards, without waiting."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw._torch.upload import uploaded
from tokendraw.parameters.request_columns import parameter_columns
from tokendraw.request_slots.capacity import SlotSizes
from tokendraw.request_slots.memory import SlotTensors
from tokendraw.request_slots.requests import SlotRequest, TokenHistory
from tokendraw.request_slots.tables import (
    ENDS_BAD_WORD,
    HAS_BIAS,
    IN_PROMPT,
    IS_STOP,
    ONE_OUTPUT,
    column_of,
    layout_on,
)


class PackedRequest(NamedTuple):
    """The device's part of a request, as words of 32 bits."""

    words: array[int]
    sizes: dict[str, int]
    """Words of each piece, in order: the columns of the parameters, and every list with entries."""

    def uploaded(self, device: torch.device) -> dict[str, Tensor]:
        """Copy the request to a device in a single asynchronous upload."""
        words = uploaded({"words": (self.words, torch.int32)}, device)["words"]
        return dict(zip(self.sizes, torch.split(words, [*self.sizes.values()]), strict=True))


def pack_request(
    request: SlotRequest, tokens: TokenHistory, sizes: SlotSizes, device: torch.device
) -> PackedRequest:
    """Lay out a request for a single upload."""
    params, edits = request.params, request.edits
    ends = [word[-1] for word in edits.bad_words]
    flags = dict.fromkeys(tokens.prompt, IN_PROMPT)
    for token, times in Counter(tokens.output).items():
        flags[token] = flags.get(token, 0) + ONE_OUTPUT * times
    distinct = [token for token in flags if 0 <= token < sizes.vocab_size]  # placeholders are no ids
    flags = {token: flags[token] for token in distinct}
    for ids, flag in ((edits.bias, HAS_BIAS), (edits.stop_ids, IS_STOP), (ends, ENDS_BAD_WORD)):
        for token in ids:
            flags[token] = flags.get(token, 0) | flag
    fields = parameter_columns({name: [value] for name, value in params.items()}, device, used_only=False)
    values: dict[str, float] = {
        **{name: value for name, ((value,), _) in fields.items()},
        "num_tokens": tokens.num_tokens,
        "num_distinct": len(distinct),
        "limit": sizes.max_tokens,
        "num_prompt": len(tokens.prompt),
        "num_bias": len(edits.bias),
        "num_stop": len(edits.stop_ids),
        "min_tokens": edits.min_tokens,
        "num_bad": len(edits.bad_words),
        "is_restricted": bool(edits.allowed),
        "repetition": edits.repetition,
        "frequency": edits.frequency,
        "presence": edits.presence,
    }
    right_aligned = [(*[-1] * (sizes.max_bad_word_len - len(word)), *word) for word in edits.bad_words]
    layout = layout_on(device.type)
    words, pieces = array("i", layout.packed(values)), dict(layout.sizes)
    lists: dict[str, Iterable[int]] = {
        "history": (*tokens.prompt, *tokens.output),
        "distinct": distinct,
        "flagged": flags,
        "flags": flags.values(),
        "bias_ids": edits.bias,
        "bias": array("i", array("f", edits.bias.values()).tobytes()),
        "stop_ids": edits.stop_ids,
        "bad_words": chain.from_iterable(right_aligned),
        "bad_lens": map(len, edits.bad_words),
        "allowed": _bit_mask(edits.allowed, sizes.num_words) if edits.allowed else (),
    }
    for name, entries in lists.items():
        start = len(words)
        words += array("i", entries)
        if len(words) > start:
            pieces[name] = len(words) - start
    return PackedRequest(words, pieces)


def _bit_mask(ids: tuple[int, ...], num_words: int) -> array[int]:
    """Return words of 32 bits, with bit i % 32 of word i // 32 set for each id i of ``ids``."""
    mask = bytearray(4 * num_words)
    for token in ids:
        mask[token >> 3] |= 1 << (token & 7)  # the lowest byte of a word comes first
    return array("i", bytes(mask))


def write_request(state: SlotTensors, slot: int, pieces: Mapping[str, Tensor]) -> None:
    """Write a request to a clean slot.

    :param pieces: result of :meth:`PackedRequest.uploaded`.
    """
    tables, rest = state.tables, dict(pieces)
    for name, block in state.blocks.items():
        block[:, slot].copy_(column_of(rest.pop(name), name))
    if "flagged" in rest:
        ids, flags = rest.pop("flagged"), rest.pop("flags")
        tables.counts[slot].scatter_(0, ids.to(torch.int64), flags)
    for name, piece in rest.items():
        table: Tensor = getattr(tables, name)
        row = table[slot] if table.dim() == 2 else table[slot].view(-1)
        row[: len(piece)].copy_(piece if piece.dtype == table.dtype else piece.view(table.dtype))


def clean_slot(state: SlotTensors, slot: int, request: SlotRequest) -> None:
    """Remove all traces of a request from its slot, found by the request's lists of ids."""
    tables, edits = state.tables, request.edits
    traces = [tables.distinct[slot]]  # all of it: behind the ids it holds 0, whose count is to be 0 as well
    if edits.bias:
        traces.append(tables.bias_ids[slot, : len(edits.bias)])
    if edits.stop_ids:
        traces.append(tables.stop_ids[slot, : len(edits.stop_ids)])
    if edits.bad_words:
        traces.append(tables.bad_words[slot, : len(edits.bad_words), -1])
    ids = traces[0] if len(traces) == 1 else torch.cat(traces)
    tables.counts[slot].index_fill_(0, ids.to(torch.int64), 0)
    state.tokens[:, slot].zero_()
    for name, block in state.blocks.items():
        block[:, slot].copy_(state.at_rest[name])
    families = request.families
    for name, table in state.lists.items() if families else ():
        if table.family in families:
            getattr(tables, name)[slot].fill_(table.padding)
