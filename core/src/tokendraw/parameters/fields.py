"""The parameters of a request with a tensor in a batch, declared once, and the checks of numbers from a caller.

A check returns the value, or refuses it by field and row. Imports no torch.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from tokendraw.backends.description.capabilities import Filter
from tokendraw.errors.exceptions import InvalidParameterError
from tokendraw.errors.formatting import format_value, type_name

_T = TypeVar("_T")
FieldKind: TypeAlias = Literal["real", "integer", "flag"]
Columns: TypeAlias = Mapping[str, Sequence[Any]]
"""Parameters of a batch by name, in the order of :data:`COLUMNS`: an entry a request each."""


class Parameter(NamedTuple):
    """A number in :class:`tokendraw.SamplingParams`, and a tensor in :class:`tokendraw.SamplingMetadata`."""

    name: str
    kind: FieldKind
    least: float
    largest: float
    max_stored: float
    """Largest value in a tensor: any larger one has the same meaning."""
    needed: str
    """Range in words."""
    neutral: float
    """Value in a slot without a request: off."""
    is_optional: bool = False
    """Whether None is a value."""
    filter: Filter | None = None
    """The filter that any value but the neutral one asks for."""
    example: float = 0
    """A filter's active value in a made-up batch."""
    quick: float = 0
    """A filter's value in a row whose token is thrown away: fast for any sampler."""

    def check(self, value: Any, row: int | str | None) -> Any:
        """Return a value of a request as a float or an int of Python.

        :raises InvalidParameterError: the value is out of range; names the parameter and the row.
        """
        if value is None and self.is_optional:
            return None
        read = real if self.kind == "real" else integer
        return read(self.name, value, row, self.least, self.largest, self.needed)


LARGEST_FLOAT32 = 3.4028234663852886e38
_MAX_FLOAT = sys.float_info.max
MAX_TOP_K = 2**62  # an int64 with room above; any k >= V is off
MAX_LOGPROBS = 2**31 - 1  # an int32; any N >= V is V

PARAMETERS = (
    Parameter("temperature", "real", 0.0, _MAX_FLOAT, _MAX_FLOAT, "a finite number >= 0", 1.0),
    Parameter(
        *("top_k", "integer", -1, math.inf, MAX_TOP_K, "an integer >= -1 (0 and -1: off)", 0),
        filter="top_k",
        example=50,
        quick=1,  # one token at most, and a sampler that needs a k in every row still draws
    ),
    Parameter(
        *("top_p", "real", math.ulp(0.0), 1.0, 1.0, "a number in (0, 1] (1: off)", 1.0),
        filter="top_p",
        example=0.9,
        quick=1.0,
    ),
    Parameter(
        *("min_p", "real", 0.0, 1.0, 1.0, "a number in [0, 1] (0: off)", 0.0),
        filter="min_p",
        example=0.05,
        quick=0.0,
    ),
    Parameter(
        *("typical_p", "real", math.ulp(0.0), 1.0, 1.0, "a number in (0, 1] (1: off)", 1.0),
        filter="typical_p",
        example=0.9,
        quick=1.0,
    ),
    Parameter(
        *("xtc_probability", "real", 0.0, 1.0, 1.0, "a number in [0, 1] (0: off)", 0.0),
        filter="xtc",
        example=0.5,
        quick=0.0,
    ),
    Parameter("xtc_threshold", "real", math.ulp(0.0), 0.5, 0.5, "a number in (0, 0.5]", 0.1),
    Parameter(
        *("seed", "integer", -(2**63), 2**64 - 1, math.inf, "an integer in [-2**63, 2**64) or None", 0),
        is_optional=True,
    ),
    Parameter(
        *("logprobs", "integer", -1, math.inf, MAX_LOGPROBS, "an integer >= -1 (-1: all) or None", 0),
        is_optional=True,
    ),
)
FILTER_PARAMETERS = tuple(parameter for parameter in PARAMETERS if parameter.filter is not None)
"""The parameters that ask for a filter, in the order of ``FILTERS``."""
FACT_OF_COLUMN: dict[str, str] = {
    **{parameter.name: f"any_{parameter.filter}" for parameter in FILTER_PARAMETERS},
    "xtc_threshold": "any_xtc",
    "joint": "any_joint",
    "temperature_last": "any_temperature_last",
}
"""Field of :class:`tokendraw.BatchFacts` that rules out the use of a tensor of filters or orders."""
COLUMNS = (*(parameter.name for parameter in PARAMETERS), "filter_order", "logprob_token_ids", "filters")
"""Fields of :class:`tokendraw.SamplingParams` for the draw; the last two hold a list of each request."""
FILTER_PREFIX = "filters."
"""Of the name of a filter from moments, among names of tensors with an entry a slot."""
SLOT_FIELDS: dict[str, FieldKind] = {
    **{parameter.name: parameter.kind for parameter in PARAMETERS[:-1]},
    "seeded": "flag",
    "joint": "flag",
    "temperature_last": "flag",
    "logprobs": "integer",
}
"""Fields of the metadata with an entry a slot."""


def each(name: str, values: Iterable[_T], needed: str, row: int | str | None = None) -> Iterator[_T]:
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
