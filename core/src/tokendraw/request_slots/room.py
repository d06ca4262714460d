"""Counts the free places in each history, so that the host finds a full history without reading the device."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tokendraw.errors.exceptions import InvalidParameterError
from tokendraw.request_slots.sizes import Sizes


class Room:
    """A lower bound of the free places in each request's history.

    A step whose slots only the device knows may have given its tokens to any request: it raises what all of them have
    used, by one addition.
    """

    def __init__(self) -> None:
        self._used = 0
        self._full_at: dict[int, int] = {}
        """By slot: the use at which the request is full."""
        self._first_full_at = 0

    def set(self, slot: int, left: int) -> None:
        """Say how many tokens a request may get, exactly."""
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

    def take_exactly(self, num_tokens: Tensor, row_index: Tensor, tokens: Tensor, sizes: Sizes) -> None:
        """Use room of as many tokens as each request gets. Reads how long they are, and waits for that.

        :param num_tokens: by slot.
        :param row_index: [B] integer: the slot of each row.
        :param tokens: [B] or [B, K] integer.
        :raises InvalidParameterError: one is too long for what it gets; names the row.
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
        gets = dict(rows)
        for slot in self._full_at:
            self._full_at[slot] = self._used + most - lengths[slot] - gets.get(slot, 0)
        self._first_full_at = min(self._full_at.values())
