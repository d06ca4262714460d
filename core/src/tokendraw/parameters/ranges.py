"""Checks numbers from a caller: returns the value, or refuses it by field and row. Imports no torch."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from tokendraw.errors.exceptions import InvalidParameterError
from tokendraw.errors.formatting import format_value, type_name

T = TypeVar("T")
LARGEST_FLOAT32 = 3.4028234663852886e38


def each(name: str, values: Iterable[T], needed: str, row: int | str | None = None) -> Iterator[T]:
    """Iterate over ``values``."""
    try:
        return iter(values)
    except TypeError:
        raise InvalidParameterError(
            f"'{name}'{of_row(row)} needs a list of {needed}, found {type_name(values)}. Pass a list."
        ) from None


def integer(
    field: str,
    value: Any,
    row: int | str | None,
    least: float,
    largest: float,
    needed: str | None = None,
) -> int:
    """Return ``value`` as an int in [least, largest].

    :param row: in its batch, or its place in words, for the message; None: it is in none.
    """
    if type(value) is int and least <= value <= largest:
        return value
    needed = needed or (
        f"an integer in [{least}, {largest}]" if largest < 2**62 else f"an integer >= {least}"
    )
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= largest:
        raise out_of_range(field, row, needed, value)
    return number


def integers(
    field: str,
    values: Iterable[Any],
    least: float,
    largest: float,
    needed: str | None = None,
    *,
    row: int | str | None = None,
) -> list[int]:
    """Return ``values`` as a list of ints in [least, largest].

    :param row: whose they all are, for the message, "" where there is nobody; None: each is that of a row.
    """
    found = list(each(field, values, "integers", row))
    if are_integers(found, least, largest):
        return found
    return [
        integer(field, value, i if row is None else row, least, largest, needed)
        for i, value in enumerate(found)
    ]


def are_integers(values: Sequence[Any], least: float, largest: float) -> bool:
    """Whether all values are ints of Python in [least, largest]; :func:`integer` checks any other integer type."""
    return not values or ({*map(type, values)} == {int} and least <= min(values) and max(values) <= largest)


def real(field: str, value: Any, row: int | str | None, least: float, largest: float, needed: str) -> float:
    """Return ``value`` as a float in [least, largest].

    :param row: in its batch, or its place in words, for the message; None: it is in none.
    """
    if type(value) is float and least <= value <= largest:
        return value
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: a tensor of several elements
        number = math.nan
    if not least <= number <= largest:
        raise out_of_range(field, row, needed, value)
    return number


def are_reals(values: Sequence[Any], least: float, largest: float) -> bool:
    """Whether all values are floats or ints of Python in [least, largest]; :func:`real` checks any other type."""
    return not values or (
        {*map(type, values)} <= {float, int}
        and least <= min(values)
        and max(values) <= largest
        and not math.isnan(sum(values))  # a NaN gets past the comparisons of min and max
    )


def check_flag(field: str, value: object) -> None:
    """Refuse anything but True and False."""
    if type(value) is not bool:
        raise out_of_range(field, None, "True or False", value)


def check_logprobs(logprobs: int | None, vocab_size: int | None, limit: int) -> None:
    """Refuse ``logprobs`` above the limit of a server. -1 asks for all V, or beyond any limit where V is unknown."""
    if logprobs is None or 0 <= logprobs <= limit:
        return
    if logprobs >= 0:
        found = str(logprobs)
    elif vocab_size is None:
        found = "-1, all tokens of a vocabulary of unknown size"
    elif vocab_size <= limit:
        return
    else:
        found = f"-1, all {vocab_size} tokens of the vocabulary"
    raise InvalidParameterError(
        f"'logprobs' needs at most 'max_logprobs', {limit}, found {found}. Ask for fewer, or raise max_logprobs."
    )


def out_of_range(field: str, row: int | str | None, needed: str, found: object) -> InvalidParameterError:
    """Make the error for a value out of range."""
    return InvalidParameterError(f"'{field}'{of_row(row)} needs {needed}, found {format_value(found)}.")


def of_row(row: int | str | None) -> str:
    """Write `` of row 3``, or a given place; nothing for None."""
    if isinstance(row, str):
        return f" of {row}" if row else ""
    return "" if row is None else f" of row {row}"
