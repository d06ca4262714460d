"""Checks the slots, positions and tokens of a step: numbers where the host has them, else the form of their tensor."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tokendraw._torch.tensor_checks import check_integers, check_plain, is_plain
from tokendraw._torch.upload import uploaded
from tokendraw.errors.exceptions import InvalidInputError, InvalidParameterError
from tokendraw.errors.formatting import type_name
from tokendraw.parameters.metadata_checks import LARGEST_POSITION, check_positions
from tokendraw.parameters.ranges import each, integers


class HasTokenIds(Protocol):
    """The appended part of an output with several tokens a request."""

    @property
    def token_ids(self) -> Tensor:
        """[B, K + 1] integer, padded with -1."""


class Given(NamedTuple):
    """A vector or matrix of integers, on the host or on a device."""

    values: list[int] | None
    """Those of a vector that the host knows."""
    tensor: Tensor | None
    """Where they lie on the device of the slots."""


def given_rows(name: str, given: Iterable[int] | Tensor, device: torch.device) -> Given:
    """Read an integer for each row, from the host or a device.

    :raises InvalidInputError: it is a tensor of another form, or on another device.
    :raises InvalidParameterError: it is no list.
    """
    if not isinstance(given, Tensor):
        return Given(list(each(name, given, "integers")), None)
    if not is_plain(given) or given.dim() != 1 or given.dtype not in (torch.int64, torch.int32):
        check_form(name, given, 1)
    if given.is_cpu:
        return Given(given.tolist(), given if device.type == "cpu" else None)
    check_device(name, given, device)
    return Given(None, given)


def given_positions(positions: Iterable[int] | Tensor, device: torch.device) -> Given:
    """Read the position of each row, from the host or a device; values on the device stay unread.

    :raises InvalidInputError: it is a tensor of another form, or on another device.
    :raises InvalidParameterError: it is no list, or one on the host is out of range.
    """
    if isinstance(positions, Tensor) and positions.device == device:
        check_form("positions", positions, 1)
        check_positions(positions)
        return Given(None, positions)
    at = given_rows("positions", positions, device)
    integers("positions", at.values or (), 0, LARGEST_POSITION)
    return at


def tokens_of(name: str, output: HasTokenIds, needed: str, advice: str, device: torch.device) -> Tensor:
    """Take the tokens of an output.

    :param needed: what it has to be, in words.
    :param advice: what mends it, in a sentence.
    :raises InvalidInputError: it is something else, or its tensor is of another form or on another device.
    """
    tokens: Tensor | None = getattr(output, "token_ids", None)
    if tokens is None:
        raise InvalidInputError(f"{name!r} needs {needed}, found {type_name(output)}. {advice}")
    check_form(f"{name}.token_ids", tokens, 2)
    check_device(f"{name}.token_ids", tokens, device)
    return tokens


def check_form(name: str, given: object, dims: int) -> None:
    """Refuse anything but a tensor of integers with ``dims`` dimensions.

    :raises InvalidInputError: says what it is.
    """
    check_plain(name, given)
    assert isinstance(given, Tensor)
    if given.dim() != dims:
        needed = "one dimension" if dims == 1 else "two dimensions"
        raise InvalidInputError(f"'{name}' needs {needed}, found shape {list(given.shape)}.")
    check_integers(name, given)


def check_device(name: str, given: Tensor, device: torch.device) -> None:
    """Refuse a tensor on another device than the slots.

    :raises InvalidInputError: names both.
    """
    if given.device != device:
        raise InvalidInputError(f"'{name}' needs the device of the slots, {device}, found {given.device}.")


def check_slots(slots: Sequence[int], live: Container[int], num_slots: int, *, once: bool = False) -> None:
    """Refuse slots out of range, or without a request.

    :param once: also refuse one that is named twice.
    :raises InvalidParameterError: it names the row.
    """
    integers("row_index", slots, 0, num_slots - 1)
    seen = set()
    for row, slot in enumerate(slots):
        if slot not in live:
            raise InvalidParameterError(
                f"'row_index' of row {row} needs a slot with a request, found {slot}, which has none. "
                "Add the request with slots.add first."
            )
        if once and slot in seen:
            raise InvalidParameterError(
                f"'row_index' of row {row} needs each slot at most once, found {slot} again."
            )
        seen.add(slot)


def on_device(device: torch.device, **given: Given) -> dict[str, Tensor]:
    """Return the tensors, by name. Those that only the host has are copied there in one piece."""
    columns = {name: (one.values or (), torch.int64) for name, one in given.items() if one.tensor is None}
    there = uploaded(columns, device) if columns else {}
    return {name: there[name] if one.tensor is None else one.tensor for name, one in given.items()}
