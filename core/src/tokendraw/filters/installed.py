"""Finds the installed filters by their entry points, with a state and a reason for each. Imports no torch.

A filter is imported when ``tokendraw list`` shows it or a request first names it. A filter that cannot be used affects
no other. The filters of a process are those that were installed, and not switched off, when a request first named one;
a name that is unknown is looked for again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import importlib_metadata

from tokendraw.backends.description.capabilities import MOMENTS, Moment
from tokendraw.backends.discovery import guard, torch_state
from tokendraw.backends.discovery.entry_points import Declaration, declarations, fault_of
from tokendraw.backends.discovery.guard import guarded, package_of
from tokendraw.backends.discovery.hooks import FILTER_GROUP
from tokendraw.backends.discovery.settings import read_settings
from tokendraw.backends.resolution.admission import disabled_reason, reserved_reason
from tokendraw.backends.resolution.advice import disable_setting
from tokendraw.backends.resolution.candidate import Choice, State
from tokendraw.errors.exceptions import InvalidParameterError, PluginError
from tokendraw.errors.formatting import all_of, format_value, nearest_or_all, one_of, printable, type_name
from tokendraw.filters.base import Filter

_OWN_DISTRIBUTION = "tokendraw"
_NAME = re.compile(r"[a-z][a-z0-9_]{,63}")
_NAME_RULE = "at most 64 lowercase letters, digits and underscores, a letter first"
_VARIABLES = ("TOKENDRAW_CONFIG", "TOKENDRAW_DISABLE", "TOKENDRAW_NO_PLUGINS")


@dataclass(frozen=True, kw_only=True)
class InstalledFilter:
    """A filter declared by an entry point of the group ``tokendraw.filters``.

    :ivar name: Name of the entry point, the key in ``SamplingParams.filters``; fit to print.
    :ivar state: ``available``, ``disabled`` or ``broken``.
    :ivar reason: Reason why the filter cannot be used; None where it is available.
    :ivar distribution: Distribution that brings the filter.
    :ivar version: Version of that distribution; "" if unknown.
    :ivar entry_point: ``package.module:class``.
    :ivar moments: Names of the moments that the filter reads.
    :ivar summary: Summary of the class, or the first line of its docstring.
    """

    name: str
    state: State
    reason: str | None = None
    distribution: str = ""
    version: str = ""
    entry_point: str = ""
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
    rule = _filters(*_sources()).get(name) if isinstance(name, str) else None
    if rule is None and isinstance(name, str):
        _filters.cache_clear()  # it may have been installed meanwhile
        rule = _filters(*_sources()).get(name)
    if rule is None:
        raise InvalidParameterError(_refusal(name, owner))
    return rule


def required_moments(names: Iterable[str]) -> tuple[Moment, ...]:
    """Return the moments that some filters read, in the order of ``MOMENTS``."""
    required = {moment for name in names for moment in find_filter(name).moments}
    return tuple(moment for moment in MOMENTS if moment in required)


def _sources() -> tuple[tuple[str | None, ...], tuple[str, ...]]:
    """Return what decides which filters there are: settings, and where distributions lie."""
    return tuple(os.environ.get(variable) for variable in _VARIABLES), tuple(sys.path)


@functools.lru_cache(maxsize=4)
def _filters(variables: object, path: object) -> dict[str, Filter]:
    """Load the usable filters, by name."""
    return {record.name: rule for record, rule in _look() if rule is not None}


def _refusal(name: object, owner: str) -> str:
    """Say why a request cannot name a filter."""
    records = installed_filters()
    for record in records:
        if record.name == name and record.state is not State.AVAILABLE:
            return f"'filters'{owner} names {record.name!r}, which is {record.state}: {record.reason}. Leave it out."
    if all(record.distribution != _OWN_DISTRIBUTION for record in records):
        return (
            f"'filters'{owner} needs names of installed filters, found {format_value(name)}, and no metadata of the "
            "distribution tokendraw, which declares its filters: a frozen program has to bundle its dist-info."
        )
    names = [record.name for record in records if record.state is State.AVAILABLE]
    hint = nearest_or_all(name, names)
    return (
        f"'filters'{owner} needs names of installed filters, found {format_value(name)}, {hint}. Correct it."
    )


def _look() -> list[tuple[InstalledFilter, Filter | None]]:
    """Find and load the filters, each in its own guard; None in place of one that cannot be used."""
    choice, found = read_settings().choice(), list(declarations(FILTER_GROUP))
    own_names = {declaration.name for declaration in found if declaration.distribution == _OWN_DISTRIBUTION}
    records = [_record(declaration, choice, own_names) for declaration in found]
    claims = [record.name for record in records if record.state is State.FOUND]
    loaded = []
    for record in sorted(records, key=lambda record: (record.name, record.distribution)):
        rule = None
        if record.state is State.FOUND and claims.count(record.name) > 1:
            owners = [r.distribution for r in records if r.name == record.name and r.state is State.FOUND]
            reason = f"the name {record.name!r} is claimed by {all_of(sorted(owners))}; uninstall all but one"
            record = replace(record, state=State.BROKEN, reason=reason)  # noqa: PLW2901
        elif record.state is State.FOUND:
            advice = f"Set {disable_setting([record.name], choice)} to do without it."
            is_ours = record.distribution == _OWN_DISTRIBUTION
            with contextlib.nullcontext() if is_ours else guard.watched(record.name, advice):
                record, rule = _load(record)  # noqa: PLW2901
        loaded.append((record, rule))
    return loaded


def _record(declaration: Declaration, choice: Choice, own_names: Collection[str]) -> InstalledFilter:
    """Decide from names alone whether a filter may be imported; tokendraw's own names are left to tokendraw."""
    record = InstalledFilter(
        name=printable(declaration.name) or "''",
        state=State.FOUND,
        distribution=printable(declaration.distribution),
        version=printable(declaration.version),
        entry_point=printable(declaration.value),
    )
    is_ours = record.distribution == _OWN_DISTRIBUTION
    if record.name in own_names and not is_ours:
        broken = reserved_reason(record.name, _OWN_DISTRIBUTION, record.distribution)
        return replace(record, state=State.BROKEN, reason=broken)
    if reason := disabled_reason(record.name, choice, first_party=is_ours):
        return replace(record, state=State.DISABLED, reason=reason)
    fault = fault_of(declaration, lambda name: _NAME.fullmatch(name) is not None, _NAME_RULE)
    return record if fault is None else replace(record, state=State.BROKEN, reason=fault)


def _load(record: InstalledFilter) -> tuple[InstalledFilter, Filter | None]:
    """Import a filter, and check what it declares."""
    value = record.entry_point
    entry_point = importlib_metadata.EntryPoint(record.name, value, FILTER_GROUP)
    try:
        with torch_state.preserved_at_import(value.partition(":")[0].strip(), record.name):
            kind = guarded(f"loading {value!r}", entry_point.load, value.partition(".")[0].partition(":")[0])
        rule = guarded(f"making {value!r}", lambda: _checked(kind, record), package_of(kind))
    except PluginError as error:
        return replace(record, state=State.BROKEN, reason=str(error)), None
    summary = printable(str(rule.summary or kind.__doc__ or "").strip().partition("\n")[0])
    return replace(record, state=State.AVAILABLE, moments=rule.moments, summary=summary), rule


def _checked(kind: Any, record: InstalledFilter) -> Filter:
    """Make a filter of its class, and refuse one whose declaration does not fit.

    :raises PluginError: the reason in words.
    """
    value = record.entry_point
    if not (isinstance(kind, type) and issubclass(kind, Filter)):
        raise PluginError(
            f"{value!r} needs to be a subclass of tokendraw.filters.Filter, found {_kind(kind)}"
        )
    rule = kind()
    if getattr(rule, "name", None) != record.name:
        found = format_value(getattr(rule, "name", None))
        raise PluginError(f"{value!r} needs the name of its entry point, {record.name!r}, found {found}")
    if not (isinstance(rule.moments, tuple) and all(name in MOMENTS for name in rule.moments)):
        raise PluginError(
            f"'moments' of {value!r} needs a tuple of {one_of(map(repr, MOMENTS))}, found {format_value(rule.moments)}"
        )
    if isinstance(rule.off, bool) or not isinstance(rule.off, (int, float)):
        raise PluginError(f"'off' of {value!r} needs a number, found {format_value(rule.off)}")
    if kind.floor is Filter.floor:
        raise PluginError(f"{value!r} needs the method floor, found none")
    return rule


def _kind(value: object) -> str:
    return f"the class {printable(value.__name__)}" if isinstance(value, type) else type_name(value)
