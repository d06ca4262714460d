"""The ranges of the sampling parameters: a check returns the value of one request, or refuses it by field and row."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from tokendraw._exchange.capabilities import FILTER_ORDERS
from tokendraw._exchange.params import SamplingParams
from tokendraw._messages.errors import InvalidParameterError
from tokendraw._messages.words import shown, type_name

T = TypeVar("T")

_LARGEST_TOP_K = 2**62  # an int64 with room above; any k >= V is off
_LARGEST_LOGPROBS = 2**31 - 1  # an int32; any N >= V is V


class Checked(NamedTuple):
    """The parameters of one request, each in its range and as a tensor holds it."""

    temperature: float
    top_k: int
    """0: off."""
    top_p: float
    min_p: float
    seed: int | None
    """The 64 bits as a signed number."""
    logprobs: int | None
    filter_order: str
    kind: tuple[bool, bool, int, bool, bool, str, int | None]
    """Greedy, seeded, top_k, whether there is a top_p, a min_p, the order, logprobs: equal for rows of one kind."""


def checked(params: SamplingParams, row: int | None = None) -> Checked:
    """Check the parameters of one request, once: they are frozen.

    :param row: in its batch, for the message.
    :raises InvalidParameterError: it names the field and the row.
    """
    found = getattr(params, "_checked", None)
    if isinstance(found, Checked):  # of the class itself it is a descriptor
        return found
    if not isinstance(params, SamplingParams):
        raise InvalidParameterError(
            f"'params'{_of(row)} needs a tokendraw.SamplingParams, found {type_name(params)}. "
            "Make one a request: SamplingParams(temperature=..., top_k=...)."
        )
    p = params
    values = (
        _temperature(p, row),
        _top_k(p, row),
        _top_p(p, row),
        _min_p(p, row),
        _seed(p, row),
        _logprobs(p, row),
    )
    temperature, top_k, top_p, min_p, seed, logprobs = values
    order = _filter_order(p, row)
    kind = (temperature == 0.0, seed is not None, top_k, top_p < 1.0, min_p > 0.0, order, logprobs)
    found = Checked(*values, order, kind)
    object.__setattr__(params, "_checked", found)
    return found


def all_checked(params: Iterable[SamplingParams]) -> list[Checked]:
    """Check the parameters of a batch, one entry a request.

    :raises InvalidParameterError: it names the field and the row; or they are no batch.
    """
    if isinstance(params, SamplingParams):
        raise InvalidParameterError(
            "'params' needs one SamplingParams a request, found a single SamplingParams. Pass [params]."
        )
    return [checked(p, row) for row, p in enumerate(each("params", params, "SamplingParams"))]


def each(name: str, values: Iterable[T], needed: str, row: int | None = None) -> Iterator[T]:
    """Go through ``values``.

    :raises InvalidParameterError: it cannot.
    """
    try:
        return iter(values)
    except TypeError:
        raise InvalidParameterError(
            f"'{name}'{_of(row)} needs a list of {needed}, found {type_name(values)}. Pass a list."
        ) from None


def integer(
    field: str,
    value: Any,
    row: int | None,
    least: int,
    largest: float,
    needed: str | None = None,
) -> int:
    """``value`` as an int in [least, largest].

    :param row: in its batch, for the message; None: it is in none.
    :raises InvalidParameterError: it is something else, a bool included.
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
        raise _refuse(field, row, needed, value)
    return number


def integers(
    field: str,
    values: Iterable[Any],
    least: int,
    largest: int,
    needed: str | None = None,
    *,
    row: int | None = None,
) -> list[int]:
    """A list of ints in [least, largest].

    :param row: whose they all are, for the message; None: each is that of a row.
    :raises InvalidParameterError: one is something else; or they are no list.
    """
    found = list(each(field, values, "integers", row))
    if are_integers(found, least, largest):
        return found
    return [
        integer(field, value, i if row is None else row, least, largest, needed)
        for i, value in enumerate(found)
    ]


def are_integers(values: list[Any], least: int, largest: int) -> bool:
    """Whether all are ints of Python in [least, largest]; other integers are left to :func:`integer`."""
    return not values or ({*map(type, values)} == {int} and least <= min(values) and max(values) <= largest)


def check_logprobs(logprobs: int | None, vocab_size: int | None, limit: int) -> None:
    """Refuse ``logprobs`` above the limit of a server. -1 asks for all V, or beyond any limit where V is unknown.

    :raises InvalidParameterError: with both numbers.
    """
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


def widest(logprobs: Sequence[int | None]) -> int | None:
    """The width that holds every row: -1 if one wants all, None if none wants any."""
    wanted = [n for n in logprobs if n is not None]
    return None if not wanted else -1 if -1 in wanted else max(wanted)


def _of(row: int | None) -> str:
    return "" if row is None else f" of row {row}"


def _refuse(field: str, row: int | None, needed: str, found: object) -> InvalidParameterError:
    return InvalidParameterError(f"'{field}'{_of(row)} needs {needed}, found {shown(found)}.")


def _number(field: str, value: Any, row: int | None, needed: str, fits: Callable[[float], bool]) -> float:
    if type(value) is float and fits(value):  # NaN fits nothing
        return value
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: a tensor of several elements
        number = math.nan
    if math.isnan(number) or not fits(number):
        raise _refuse(field, row, needed, value)
    return number


def _temperature(p: SamplingParams, row: int | None) -> float:
    needed = "a finite number >= 0"
    return (
        _number("temperature", p.temperature, row, needed, lambda t: 0.0 <= t < math.inf) + 0.0
    )  # -0.0 is 0.0


def _top_k(p: SamplingParams, row: int | None) -> int:
    k = integer("top_k", p.top_k, row, -1, math.inf, "an integer >= -1 (0 and -1: off)")
    return max(0, min(k, _LARGEST_TOP_K))


def _top_p(p: SamplingParams, row: int | None) -> float:
    return _number("top_p", p.top_p, row, "a number in (0, 1] (1: off)", lambda t: 0.0 < t <= 1.0)


def _min_p(p: SamplingParams, row: int | None) -> float:
    return _number("min_p", p.min_p, row, "a number in [0, 1] (0: off)", lambda t: 0.0 <= t <= 1.0)


def _seed(p: SamplingParams, row: int | None) -> int | None:
    if p.seed is None:
        return None
    seed = integer("seed", p.seed, row, -(2**63), 2**64 - 1, "an integer in [-2**63, 2**64) or None")
    return seed - 2**64 if seed >= 2**63 else seed  # the same 64 bits as an int64


def _logprobs(p: SamplingParams, row: int | None) -> int | None:
    if p.logprobs is None:
        return None
    n = integer("logprobs", p.logprobs, row, -1, math.inf, "an integer >= -1 (-1: all) or None")
    return min(n, _LARGEST_LOGPROBS)


def _filter_order(p: SamplingParams, row: int | None) -> str:
    if not isinstance(p.filter_order, str) or p.filter_order not in FILTER_ORDERS:
        raise _refuse("filter_order", row, "one of " + ", ".join(FILTER_ORDERS), p.filter_order)
    return p.filter_order
