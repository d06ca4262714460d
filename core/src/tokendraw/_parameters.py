"""The ranges of the sampling parameters: each check returns the value of one row, or refuses it by field and row."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from tokendraw._capabilities import FILTER_ORDERS
from tokendraw._errors import InvalidParameterError
from tokendraw._params import SamplingParams

_LARGEST_TOP_K = 2**62  # an int64 with room above; any k >= V is off


def _refuse(field: str, row: int, needed: str, found: object) -> InvalidParameterError:
    return InvalidParameterError(f"'{field}' of row {row} needs {needed}, found {found!r}.")


def _number(field: str, value: Any, row: int, needed: str, fits: Callable[[float], bool]) -> float:
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number) or not fits(number):
        raise _refuse(field, row, needed, value)
    return number


def integer(field: str, value: Any, row: int, least: int, largest: int, needed: str | None = None) -> int:
    """``value`` as an int in [least, largest].

    :raises InvalidParameterError: it is something else, a bool included.
    """
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


def _temperature(p: SamplingParams, row: int) -> float:
    needed = "a finite number >= 0"
    return (
        _number("temperature", p.temperature, row, needed, lambda t: 0.0 <= t < math.inf) + 0.0
    )  # -0.0 is 0.0


def _top_k(p: SamplingParams, row: int) -> int:
    k = integer("top_k", p.top_k, row, -1, 10**100, "an integer >= -1 (0 and -1: off)")
    return max(0, min(k, _LARGEST_TOP_K))


def _top_p(p: SamplingParams, row: int) -> float:
    return _number("top_p", p.top_p, row, "a number in (0, 1] (1: off)", lambda t: 0.0 < t <= 1.0)


def _min_p(p: SamplingParams, row: int) -> float:
    return _number("min_p", p.min_p, row, "a number in [0, 1] (0: off)", lambda t: 0.0 <= t <= 1.0)


def _seed(p: SamplingParams, row: int) -> int | None:
    if p.seed is None:
        return None
    seed = integer("seed", p.seed, row, -(2**63), 2**64 - 1, "an integer in [-2**63, 2**64) or None")
    return seed - 2**64 if seed >= 2**63 else seed  # the same 64 bits as an int64


def _logprobs(p: SamplingParams, row: int) -> int | None:
    if p.logprobs is None:
        return None
    return integer("logprobs", p.logprobs, row, -1, 2**31, "an integer >= -1 (-1: all) or None")


def _filter_order(p: SamplingParams, row: int) -> str:
    if p.filter_order not in FILTER_ORDERS:
        raise _refuse("filter_order", row, "one of " + ", ".join(FILTER_ORDERS), p.filter_order)
    return p.filter_order


CHECKS: dict[str, Callable[[SamplingParams, int], Any]] = {
    "temperature": _temperature,
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _min_p,
    "seed": _seed,
    "logprobs": _logprobs,
    "filter_order": _filter_order,
}


def widest(logprobs: Sequence[int | None]) -> int | None:
    """The width that holds every row: -1 if one wants all, None if none wants any."""
    wanted = [n for n in logprobs if n is not None]
    return None if not wanted else -1 if -1 in wanted else max(wanted)
