"""Capacities of the slots, and a count of the free places in each history, kept without reading the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from tokendraw.errors.exceptions import InvalidParameterError
from tokendraw.parameters.fields import integer

_MAX_SIZE = 2**31 - 1
_MAX_TOKENS = 2**27 - 1  # counts are 16 times as large, in an int32


class SlotSizes(NamedTuple):
    """The capacities of the slots."""

    num_slots: int
    """S."""
    max_tokens: int
    """M."""
    vocab_size: int
    """V."""
    max_bias: int
    """NB."""
    max_stop_ids: int
    """NS."""
    max_bad_words: int
    """NW."""
    max_bad_word_len: int
    """LW."""
    max_logprob_token_ids: int
    max_dry_breakers: int
    max_thinking_ids: int
    """LT."""

    @property
    def num_words(self) -> int:
        """Words of a bit mask of the vocabulary."""
        return -(-self.vocab_size // 32)


def check_sizes(*sizes: int) -> SlotSizes:
    """Check the sizes given by a caller, in the order of :class:`SlotSizes`."""
    most = {"max_tokens": _MAX_TOKENS, "max_bad_word_len": _MAX_TOKENS, "max_thinking_ids": _MAX_TOKENS}
    by_field = zip(SlotSizes._fields, sizes, strict=True)
    slot_sizes = SlotSizes(
        *[integer(name, size, None, 1, most.get(name, _MAX_SIZE)) for name, size in by_field]
    )
    ids = slot_sizes.vocab_size  # upper limit of lists of distinct ids
    of_ids = ("max_bias", "max_stop_ids", "max_logprob_token_ids", "max_dry_breakers")
    return slot_sizes._replace(**{name: min(getattr(slot_sizes, name), ids) for name in of_ids})


class Room:
    """A lower bound of the free places in each request's history.

    The tokens of a step with slots known to the device alone may belong to any request: such a step counts as use by
    every request, in a single addition.
    """

    def __init__(self) -> None:
        self._used = 0
        self._full_at: dict[int, int] = {}
        """By slot: the value of ``_used`` at which the history is full."""
        self._first_full_at = 0

    def set(self, slot: int, left: int) -> None:
        """Set the exact number of free places of a request."""
        full_at = self._used + left
        self._first_full_at = min(self._first_full_at, full_at) if self._full_at else full_at
        self._full_at[slot] = full_at

    def drop(self, slot: int) -> None:
        """Forget a request."""
        if self._full_at.pop(slot) == self._first_full_at:
            self._first_full_at = min(self._full_at.values(), default=0)

    def take(self, slots: Sequence[int] | None, width: int) -> bool:
        """Take ``width`` places of each of these requests, or return False: a request may have fewer.

        :param slots: None: only the device knows.
        """
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

    def take_exactly(self, num_tokens: Tensor, row_index: Tensor, tokens: Tensor, sizes: SlotSizes) -> None:
        """Take a place for each token, after reading the lengths of the histories from the device, which waits.

        :param num_tokens: by slot.
        :param row_index: [B] integer: the slot of each row.
        :param tokens: [B] or [B, K] integer.
        """
        most = sizes.max_tokens
        lengths: list[int] = num_tokens.tolist()
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
