"""Packs a request into words for a single upload."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw._torch.upload import uploaded
from tokendraw.request_slots.parameters import layout_on
from tokendraw.request_slots.request import Request, TokenHistory
from tokendraw.request_slots.sizes import Sizes
from tokendraw.request_slots.tables import (
    ENDS_BAD_WORD,
    HAS_BIAS,
    IN_PROMPT,
    IS_STOP,
    ONE_OUTPUT,
)


class PackedRequest(NamedTuple):
    """The device's part of a request, as words of 32 bits."""

    words: array[int]
    sizes: dict[str, int]
    """Words of each piece, in their order: the columns of the parameters, and lists that are not empty."""

    def uploaded(self, device: torch.device) -> dict[str, Tensor]:
        """Copy the request to a device in a single asynchronous upload.

        :raises InvalidInputError: a CUDA graph is being captured.
        """
        there = uploaded({"words": (self.words, torch.int32)}, device)["words"]
        return dict(zip(self.sizes, torch.split(there, [*self.sizes.values()]), strict=True))


def packed_request(
    request: Request, tokens: TokenHistory, sizes: Sizes, device: torch.device
) -> PackedRequest:
    """Lay out a request for a single upload."""
    own, edits = request.params, request.edits
    ends = [word[-1] for word in edits.bad_words]
    flags = dict.fromkeys(tokens.prompt, IN_PROMPT)
    for token, times in Counter(tokens.output).items():
        flags[token] = flags.get(token, 0) + ONE_OUTPUT * times
    distinct = [token for token in flags if 0 <= token < sizes.vocab_size]  # placeholders are no ids
    flags = {token: flags[token] for token in distinct}
    for ids, flag in ((edits.bias, HAS_BIAS), (edits.stop_ids, IS_STOP), (ends, ENDS_BAD_WORD)):
        for token in ids:
            flags[token] = flags.get(token, 0) | flag
    values: dict[str, float] = {
        "temperature": own.temperature,
        "top_p": own.top_p,
        "min_p": own.min_p,
        "top_k": own.top_k,
        "seed": own.seed or 0,
        "logprobs": own.logprobs or 0,
        "seeded": own.seed is not None,
        "joint": own.filter_order == "joint",
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
        "bad_words": _right_aligned(edits.bad_words, sizes.max_bad_word_len),
        "bad_lens": map(len, edits.bad_words),
        "allowed": _bit_mask(edits.allowed, sizes.num_words) if edits.allowed else (),
    }
    for name, given in lists.items():
        before = len(words)
        words += array("i", given)
        if len(words) > before:
            pieces[name] = len(words) - before
    return PackedRequest(words, pieces)


def _right_aligned(words: tuple[tuple[int, ...], ...], width: int) -> list[int]:
    return [token for word in words for token in (*[-1] * (width - len(word)), *word)]


def _bit_mask(ids: tuple[int, ...], num_words: int) -> array[int]:
    """Return words of 32 bits, with bit i % 32 of word i // 32 set for each id i of ``ids``."""
    mask = bytearray(4 * num_words)
    for token in ids:
        mask[token >> 3] |= 1 << (token & 7)  # the lowest byte of a word comes first
    return array("i", bytes(mask))
