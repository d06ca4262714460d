"""The parameters of a request with a tensor in a batch, declared once, and the checks of numbers from a caller.

A check returns the value, or refuses it by field and row. Imports no torch.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from tokendraw.backends.description import FILTER_ORDERS, Filter
from tokendraw.errors import InvalidParameterError, format_value, type_name

_T = TypeVar("_T")
ValueType: TypeAlias = Literal["real", "integer", "flag"]
Columns: TypeAlias = Mapping[str, Sequence[Any]]
"""Parameters of a batch by name, in the order of :data:`COLUMNS`: an entry a request each."""
_Convert: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]


class Parameter(NamedTuple):
    """A number in :class:`tokendraw.SamplingParams`, and a tensor in :class:`tokendraw.SamplingMetadata`."""

    name: str
    value_type: ValueType
    least: float
    largest: float
    needed: str
    """Range in words."""
    neutral: float
    """Value in a slot without a request: off."""
    is_common: bool = False
    """Whether engines have it too. A batch has a tensor of it even if all rows have the neutral value."""
    is_optional: bool = False
    as_is: tuple[float, float] = (-math.inf, math.inf)
    """The least and the largest value that a tensor holds as it is."""
    stored: Callable[[Any], Any] = lambda value: value
    """Makes any other value the one of its meaning that a tensor holds."""
    filter: Filter | None = None
    """The filter that any value but the neutral one asks for."""
    setting_of: Filter | None = None
    """The filter that reads the value, but that another parameter asks for."""
    example: float = 0
    """An active value in a made-up batch."""
    quick: float | None = 0
    """Value in a row whose token is thrown away: fast for any sampler. None: that of the row."""

    @property
    def fact(self) -> str:
        """Field or property of :class:`tokendraw.BatchFacts` that says whether a row may have the filter; "": none."""
        asked = self.filter or self.setting_of
        return f"any_{asked}" if asked else ""

    def read(self, value: Any, row: int | str | None) -> Any:
        if value is None and self.is_optional:
            return None
        check = real if self.value_type == "real" else integer
        checked = check(self.name, value, row, self.least, self.largest, self.needed)
        lowest, highest = self.as_is
        return checked if lowest <= checked <= highest else self.stored(checked)

    def read_column(self, values: Sequence[Any]) -> Sequence[Any] | None:
        """Return the values of a batch as :meth:`read` does, in a few passes in C; None: one needs its own check."""
        given = [value for value in values if value is not None] if self.is_optional else values
        if not given:
            return values
        types = {*map(type, given)}
        if not (types <= {float, int} if self.value_type == "real" else types == {int}):
            return None
        least, largest = min(given), max(given)
        if not (self.least <= least and largest <= self.largest):
            return None
        if self.value_type == "real" and math.isnan(
            sum(given)
        ):  # a NaN gets past the comparisons of min and max
            return None
        lowest, highest = self.as_is
        if lowest <= least and largest <= highest:
            return values
        return [v if v is None or lowest <= v <= highest else self.stored(v) for v in values]


_MAX_FLOAT = sys.float_info.max
LARGEST_FLOAT32 = 3.4028234663852886e38
_MAX_TOP_K = 2**62  # an int64 with room above; any k >= V is off
_MAX_LOGPROBS = 2**31 - 1  # an int32; any N >= V is V
_Range: TypeAlias = tuple[ValueType, float, float, str, float]
_OFF_AT_0: _Range = ("real", 0.0, 1.0, "a number in [0, 1] (0: off)", 0.0)
_OFF_AT_1: _Range = ("real", math.ulp(0.0), 1.0, "a number in (0, 1] (1: off)", 1.0)

PARAMETERS = (
    Parameter(
        *("temperature", "real", 0.0, _MAX_FLOAT, "a finite number >= 0", 1.0),
        is_common=True,
        quick=1.0,
        as_is=(math.ulp(0.0), _MAX_FLOAT),
        stored=abs,  # -0.0 is 0.0
    ),
    Parameter(
        *("top_k", "integer", -1, math.inf, "an integer >= -1 (0 and -1: off)", 0),
        is_common=True,
        as_is=(0, _MAX_TOP_K),
        stored=lambda k: 0 if k < 0 else _MAX_TOP_K,
        filter="top_k",
        example=50,
        quick=1,  # one token at most, and a sampler that needs a k in every row still draws
    ),
    Parameter("top_p", *_OFF_AT_1, is_common=True, filter="top_p", example=0.9, quick=1.0),
    Parameter("min_p", *_OFF_AT_0, is_common=True, filter="min_p", example=0.05),
    Parameter("typical_p", *_OFF_AT_1, filter="typical_p", example=0.9, quick=1.0),
    Parameter("xtc_probability", *_OFF_AT_0, filter="xtc", example=0.5),
    Parameter(
        *("xtc_threshold", "real", math.ulp(0.0), 0.5, "a number in (0, 0.5]", 0.1),
        setting_of="xtc",
        example=0.2,
        quick=None,
    ),
    Parameter(
        *("seed", "integer", -(2**63), 2**64 - 1, "an integer in [-2**63, 2**64) or None", 0),
        is_common=True,
        is_optional=True,
        as_is=(-(2**63), 2**63 - 1),
        stored=lambda seed: seed - 2**64,
    ),
    Parameter(
        *("logprobs", "integer", -1, math.inf, "an integer >= -1 (-1: all) or None", 0),
        is_common=True,
        is_optional=True,
        as_is=(-1, _MAX_LOGPROBS),
        stored=lambda _: _MAX_LOGPROBS,
    ),
)
FILTER_PARAMETERS = tuple(parameter for parameter in PARAMETERS if parameter.filter is not None)
"""The parameters that ask for a filter, in the order of ``FILTERS``."""
COLUMNS = (*(parameter.name for parameter in PARAMETERS), "filter_order", "logprob_token_ids", "filters")
"""Fields of :class:`tokendraw.SamplingParams` for the draw; the last two hold a list of each request."""
ORDERS = tuple(order for order in FILTER_ORDERS if order != "top_k_first")
"""The filter orders with a tensor that marks their rows; all other rows have the default one."""
FILTER_PREFIX = "filters."
"""Of the name of a filter from moments, among names of tensors with an entry a slot."""


class SlotField(NamedTuple):
    """A tensor in :class:`tokendraw.SamplingMetadata` with an entry a slot."""

    value_type: ValueType
    source: str
    """Field of :class:`tokendraw.SamplingParams`."""
    fact: str
    """Field or property of :class:`tokendraw.BatchFacts` that rules out the use of the tensor; "": none."""
    quick: float | None = 0
    """Entry of a row whose token is thrown away; None: that of the row."""
    entries: _Convert = tuple
    """Makes its entries of stored values of the source."""


def _marks(order: str) -> _Convert:
    return lambda orders: [each == order for each in orders]


SLOT_FIELDS: dict[str, SlotField] = {
    **{p.name: SlotField(p.value_type, p.name, p.fact, p.quick) for p in PARAMETERS if not p.is_optional},
    "seed": SlotField("integer", "seed", "any_seeded", None, lambda seeds: [seed or 0 for seed in seeds]),
    "seeded": SlotField(
        "flag", "seed", "any_seeded", False, lambda seeds: [seed is not None for seed in seeds]
    ),
    **{order: SlotField("flag", "filter_order", f"any_{order}", False, _marks(order)) for order in ORDERS},
    "logprobs": SlotField(
        "integer", "logprobs", "max_logprobs", 0, lambda numbers: [n or 0 for n in numbers]
    ),
}
"""The tensors of the parameters, by name."""
FACT_OF_COLUMN: dict[str, str] = {
    name: field.fact
    for name, field in SLOT_FIELDS.items()
    if field.fact and field.source not in ("seed", "logprobs")
}
"""Facts that rule out the use of a tensor of filters or orders, by its name."""


def each(name: str, values: Iterable[_T], needed: str, row: int | str | None = None) -> Iterator[_T]:
    try:
        return iter(values)
    except TypeError:
        raise InvalidParameterError(
            f"'{name}'{of_row(row)} needs a list of {needed}, found {type_name(values)}. Pass a list."
        ) from None


def integer(
    field: str, value: Any, row: int | str | None, least: float, largest: float, needed: str | None = None
) -> int:
    """Return ``value`` as an int in [least, largest].

    :param row: in its batch, or its place in words, for the message; None: it is in none.
    """
    if type(value) is int and least <= value <= largest:
        return value
    if needed is None:
        needed = f"an integer in [{least}, {largest}]" if largest < 2**62 else f"an integer >= {least}"
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

    :param row: whose they all are, for the message, "" where there is no owner; None: each is that of a row.
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
    """Return ``value`` as a float in [least, largest]."""
    if type(value) is float and least <= value <= largest:
        return value
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: a tensor of several elements
        number = math.nan
    if not least <= number <= largest:
        raise out_of_range(field, row, needed, value)
    return number


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
    return InvalidParameterError(f"'{field}'{of_row(row)} needs {needed}, found {format_value(found)}.")


def of_row(row: int | str | None) -> str:
    """Write `` of row 3``, or a given place; nothing for None."""
    if isinstance(row, str):
        return f" of {row}" if row else ""
    return "" if row is None else f" of row {row}"
