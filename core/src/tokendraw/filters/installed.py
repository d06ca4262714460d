"""The base class of filters from moments, and the installed ones, with a state and a reason each. Imports no torch.

A filter is imported when ``tokendraw list`` shows it or a request first names it. A filter that cannot be used affects
no other. A process has the filters that were installed when a request first named one; an unknown name is sought anew.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tokendraw.backends.description import MOMENTS, Moment
from tokendraw.backends.discovery.discover import find_extensions, sources
from tokendraw.backends.discovery.entry_points import FILTER_GROUP, declarations
from tokendraw.backends.resolution.candidate import Extension, State
from tokendraw.errors import (
    InvalidParameterError,
    PluginError,
    format_value,
    nearest_or_all,
    one_of,
    printable,
    type_name,
)

if TYPE_CHECKING:
    from torch import Tensor

_OWN_DISTRIBUTION = "tokendraw"


@dataclass(frozen=True, slots=True)
class RowMoments:
    """Moments of ``y = (x - max x) / T`` over the finite logits of each row, with ``p = exp(y) / sum exp(y)``.

    Each is a tensor [rows] float32 on the device of the logits; None where no filter of the batch reads the moment. In
    rows with +inf, or with nothing above -inf, the values are unspecified and floors have no effect.

    :ivar count: Number n of finite logits.
    :ivar mean: Mean of y.
    :ivar std: Standard deviation of y over the population: the squares are divided by n.
    :ivar log_mass: log sum exp(y), so that ``log p = y - log_mass``.
    :ivar entropy: -sum p log p, in nats.
    :ivar collision: sum p^2, the probability that two draws agree.
    """

    count: Tensor = None  # type: ignore[assignment]  # a filter reads only the moments that it names
    mean: Tensor = None  # type: ignore[assignment]
    std: Tensor = None  # type: ignore[assignment]
    log_mass: Tensor = None  # type: ignore[assignment]
    entropy: Tensor = None  # type: ignore[assignment]
    collision: Tensor = None  # type: ignore[assignment]


class Filter:
    """A truncation rule that keeps the tokens with ``y >= floor``; subclass it, and register the class.

    The entry point of the class in the group ``tokendraw.filters`` has the filter's name; the class is called once.

    :ivar name: Key in ``SamplingParams.filters``.
    :ivar moments: Names of the moments that :meth:`floor` reads, of ``tokendraw.plugin.MOMENTS``.
    :ivar summary: Line for ``tokendraw list``; "": the first line of the docstring, which ``python -OO`` drops.
    :ivar off: Value that keeps every token: a row with it, or with NaN, does not ask for the filter.
    """

    name: ClassVar[str]
    moments: ClassVar[tuple[Moment, ...]] = ()
    summary: ClassVar[str] = ""
    off: ClassVar[float] = 0.0

    def check(self, value: Any) -> None:
        """Refuse a bad value of a request; by default anything but a finite number.

        :raises InvalidParameterError: a ValueError that names the filter, what the value needs to be, and what it is.
        """
        self.check_range(value, -math.inf, math.inf, "a finite number")

    def check_range(self, value: Any, least: float, largest: float, needed: str) -> None:
        """Refuse anything but a finite number in [``least``, ``largest``].

        :param needed: the range in words, for the message.
        :raises InvalidParameterError: a ValueError that names the filter, the range and the value.
        """
        try:
            number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: a tensor of several elements
            number = math.nan
        if not (least <= number <= largest and math.isfinite(number)):
            raise InvalidParameterError(f"'{self.name}' needs {needed}, found {format_value(value)}.")

    def floor(self, moments: RowMoments, value: Tensor) -> Tensor:
        """Compute the least kept y of each row, by torch operations on [rows] that wait for nothing.

        NaN and -inf keep every token. Above 0 counts as 0, so that the largest token always stays. A sampler may pass
        some of the rows at a time, from several threads: the floor depends on the arguments alone, and changes none.

        :param value: [rows] float32: the filter's value in each row; ``off`` in rows that do not ask for it.
        :returns: [rows] float32.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class InstalledFilter(Extension):
    """A filter declared by an entry point of the group ``tokendraw.filters``.

    The name is the key in ``SamplingParams.filters``, the entry point is ``package.module:class``.

    :ivar moments: Names of the moments that the filter reads.
    :ivar summary: Summary of the class, or the first line of its docstring.
    """

    moments: tuple[Moment, ...] = ()
    summary: str = ""


def installed_filters() -> tuple[InstalledFilter, ...]:
    """Import and list every filter that is installed, sorted by name. No filter can make this raise.

    :raises SettingsError: a ``TOKENDRAW_*`` variable or the configuration file is malformed.
    """
    return tuple(record for record, _ in _look())


def find_filter(name: str, owner: str = "") -> Filter:
    """Return the filter of this name.

    :param owner: of the name, such as `` of row 3``, for the message.
    :raises InvalidParameterError: a ValueError: no such filter can be used; names the nearest one, or the reason.
    """
    rule = _filters(*sources()).get(name) if isinstance(name, str) else None
    if rule is None and isinstance(name, str):
        _filters.cache_clear()  # it may have been installed meanwhile
        rule = _filters(*sources()).get(name)
    if rule is not None:
        return rule
    records = installed_filters()
    for record in records:
        if record.name == name and record.state is not State.AVAILABLE:
            words = f"names {record.name!r}, which is {record.state}: {record.reason}. Leave it out."
            raise InvalidParameterError(f"'filters'{owner} {words}")
    names = [record.name for record in records if record.state is State.AVAILABLE]
    hint = f"{nearest_or_all(name, names)}. Correct it."
    if all(record.distribution != _OWN_DISTRIBUTION for record in records):
        hint = (
            "and no metadata of the distribution tokendraw, which declares its filters: a frozen program has to bundle "
            "its dist-info."
        )
    words = f"'filters'{owner} needs names of installed filters, found {format_value(name)}, {hint}"
    raise InvalidParameterError(words)


def required_moments(names: Iterable[str]) -> tuple[Moment, ...]:
    """Return the moments that some filters read, in the order of ``MOMENTS``."""
    required = {moment for name in names for moment in find_filter(name).moments}
    return tuple(moment for moment in MOMENTS if moment in required)


@functools.lru_cache(maxsize=4)
def _filters(variables: object, path: object) -> dict[str, Filter]:
    return {record.name: rule for record, rule in _look() if rule is not None}


def _look() -> list[tuple[InstalledFilter, Filter | None]]:
    """Find and load the filters; tokendraw's own names are left to tokendraw."""
    ours = {d.name: d.distribution for d in declarations(FILTER_GROUP) if d.distribution == _OWN_DISTRIBUTION}
    loaded = []
    for extension, rule in find_extensions(FILTER_GROUP, _checked, ours):
        read: dict[str, Any] = {}
        if rule is not None:
            summary = str(rule.summary or type(rule).__doc__ or "").strip().partition("\n")[0]
            read = {"moments": rule.moments, "summary": printable(summary)}
        loaded.append((InstalledFilter(**vars(extension), **read), rule))
    return loaded


def _checked(declared: Any, name: str, value: str) -> Filter:
    if not (isinstance(declared, type) and issubclass(declared, Filter)):
        found = (
            f"the class {printable(declared.__name__)}" if isinstance(declared, type) else type_name(declared)
        )
        raise PluginError(f"{value!r} needs to be a subclass of tokendraw.filters.Filter, found {found}")
    rule = declared()
    if getattr(rule, "name", None) != name:
        found = format_value(getattr(rule, "name", None))
        raise PluginError(f"{value!r} needs the name of its entry point, {name!r}, found {found}")
    if not (isinstance(rule.moments, tuple) and all(name in MOMENTS for name in rule.moments)):
        raise PluginError(
            f"'moments' of {value!r} needs a tuple of {one_of(map(repr, MOMENTS))}, found {format_value(rule.moments)}"
        )
    if isinstance(rule.off, bool) or not isinstance(rule.off, (int, float)):
        raise PluginError(f"'off' of {value!r} needs a number, found {format_value(rule.off)}")
    if declared.floor is Filter.floor:
        raise PluginError(f"{value!r} needs the method floor, found none")
    return rule
