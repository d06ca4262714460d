"""Checks a request that comes to a slot, and lays it out as the columns that go to the device in one copy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from tokendraw._exchange.edits import CheckedEdits, checked_edits
from tokendraw._exchange.facts import RowKind, row_kind
from tokendraw._exchange.params import CheckedParams, SamplingParams, checked
from tokendraw._exchange.ranges import integers
from tokendraw._exchange.request_slots.allocation import Sizes, block_dtypes
from tokendraw._exchange.request_slots.tables import ENDS_BAD_WORD, HAS_BIAS, IN_PROMPT, IS_STOP
from tokendraw._messages.errors import InvalidParameterError
from tokendraw._messages.words import type_name
from tokendraw._torch.tensor_checks import check_integers, check_vector
from tokendraw._torch.upload import Column


@dataclass(frozen=True, eq=False)
class Request:
    """The part of a request in a slot that the host keeps."""

    params: CheckedParams
    edits: CheckedEdits
    kind: RowKind

    @property
    def asks(self) -> tuple[bool, ...]:
        """Whether it asks for each kind of edit, in the order of :class:`tokendraw.plugin.EditFacts`."""
        edits = self.edits
        penalty = (edits.repetition, edits.frequency, edits.presence) != (1.0, 0.0, 0.0)
        lists = edits.bias, edits.allowed, edits.bad_words, edits.stop_ids
        return penalty, *map(bool, lists)


def checked_request(slot: int, params: SamplingParams, sizes: Sizes) -> Request:
    """Check the parameters of a request.

    :raises InvalidParameterError: it names the field and the slot.
    """
    place = f"slot {slot}"
    if not isinstance(params, SamplingParams):
        raise InvalidParameterError(
            f"'params' of {place} needs a tokendraw.SamplingParams, found {type_name(params)}. "
            "Make one: SamplingParams(temperature=..., top_k=...)."
        )
    own, edits = checked(params, place), checked_edits(params, place, sizes.vocab_size)
    longest = max(map(len, edits.bad_words), default=0)
    for field, what, found, limit, room in (
        ("logit_bias", "entries", len(edits.bias), "max_bias", sizes.max_bias),
        ("stop_token_ids", "ids", len(edits.stop_ids), "max_stop_ids", sizes.max_stop_ids),
        ("bad_words", "sequences", len(edits.bad_words), "max_bad_words", sizes.max_bad_words),
        ("bad_words", "ids in a sequence", longest, "max_bad_word_len", sizes.max_bad_word_len),
    ):
        if found > room:
            raise InvalidParameterError(
                f"'{field}' of {place} needs at most '{limit}', {room}, {what}, found {found}. "
                f"Ask for fewer, or make RequestSlots with a larger {limit}."
            )
    return Request(own, edits, row_kind(own))


def checked_prompt(slot: int, prompt: Iterable[int] | Tensor, sizes: Sizes) -> list[int]:
    """Return the ids of a prompt.

    :raises InvalidParameterError: one is out of range, or they are too many; names the slot.
    :raises InvalidInputError: it is a tensor of another form.
    """
    name, place, most = "prompt_token_ids", f"slot {slot}", sizes.max_tokens
    if isinstance(prompt, Tensor):
        check_vector(name, prompt)
        check_integers(name, prompt)
        prompt = prompt.tolist()
    ids = integers(name, prompt, 0, sizes.vocab_size - 1, f"token ids in [0, {sizes.vocab_size})", row=place)
    if len(ids) > most:
        raise InvalidParameterError(
            f"'{name}' of {place} needs at most 'max_tokens', {most}, ids, found {len(ids)}. "
            "Shorten the prompt, or make RequestSlots with a larger max_tokens."
        )
    return ids


def request_columns(
    slot: int, request: Request, prompt: list[int], sizes: Sizes, device: torch.device
) -> dict[str, Column]:
    """Return the columns of a request: one for each block, and those of its lists that are not empty."""
    own, edits = request.params, request.edits
    flags = dict.fromkeys(prompt, IN_PROMPT)
    num_distinct = len(flags)
    for ids, flag in (
        (edits.bias, HAS_BIAS),
        (edits.stop_ids, IS_STOP),
        ([word[-1] for word in edits.bad_words], ENDS_BAD_WORD),
    ):
        for token in ids:
            flags[token] = flags.get(token, 0) | flag
    numbers = (
        len(prompt),
        len(prompt),
        num_distinct,
        len(edits.bias),
        len(edits.stop_ids),
        edits.min_tokens,
        len(edits.bad_words),
    )
    values = {
        "reals": (own.temperature, own.top_p, own.min_p),
        "integers": (own.top_k, own.seed or 0, own.logprobs or 0),
        "flags": (own.seed is not None, own.filter_order == "joint", bool(edits.allowed), True),
        "numbers": numbers,
        "penalties": (edits.repetition, edits.frequency, edits.presence),
    }
    columns: dict[str, Column] = {name: (values[name], dtype) for name, dtype in block_dtypes(device).items()}
    first = slot * sizes.vocab_size
    lists: dict[str, Column] = {
        "history": (prompt, torch.int32),
        "distinct": ([*flags][:num_distinct], torch.int32),
        "flagged": ([first + token for token in flags], torch.int64),
        "flags of ids": ([*flags.values()], torch.int32),
        "bias_ids": ([*edits.bias], torch.int32),
        "bias": ([*edits.bias.values()], torch.float32),
        "stop_ids": (edits.stop_ids, torch.int32),
        "bad_words": (_right_aligned(edits.bad_words, sizes.max_bad_word_len), torch.int32),
        "bad_lens": ([*map(len, edits.bad_words)], torch.int32),
        "allowed": (_bit_mask(edits.allowed, sizes.num_words) if edits.allowed else (), torch.int32),
    }
    return columns | {name: column for name, column in lists.items() if len(column[0])}


def _right_aligned(words: tuple[tuple[int, ...], ...], width: int) -> list[int]:
    return [token for word in words for token in (*[-1] * (width - len(word)), *word)]


def _bit_mask(ids: tuple[int, ...], num_words: int) -> memoryview:
    """Return words of 32 bits, in which bit i % 32 of word i // 32 is set where id i is among them."""
    mask = bytearray(4 * num_words)
    for token in ids:
        mask[token >> 3] |= 1 << (token & 7)  # the lowest byte of a word comes first
    return memoryview(mask).cast("i")
