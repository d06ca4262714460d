"""Loads what distributions bring by entry points beside plugins: filters and operations, each in its own guard.

One that cannot be used affects no other. Imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import importlib_metadata
from packaging.utils import canonicalize_name

from tokendraw.backends.discovery import guard
from tokendraw.backends.discovery.entry_points import Declaration, declarations, fault_of
from tokendraw.backends.discovery.guard import guarded, package_of
from tokendraw.backends.discovery.settings import read_settings
from tokendraw.backends.resolution.admission import disabled_reason, reserved_reason
from tokendraw.backends.resolution.advice import disable_setting
from tokendraw.backends.resolution.candidate import Choice, State
from tokendraw.errors.exceptions import PluginError
from tokendraw.errors.formatting import all_of, printable

_T = TypeVar("_T")

_NAME = re.compile(r"[a-z][a-z0-9_]{,63}")
_NAME_RULE = "at most 64 lowercase letters, digits and underscores, a letter first"
_VARIABLES = ("TOKENDRAW_CONFIG", "TOKENDRAW_DISABLE", "TOKENDRAW_NO_PLUGINS")


@dataclass(frozen=True, kw_only=True)
class Extension:
    """What an entry point of one of tokendraw's groups declares.

    :ivar name: Name of the entry point, fit to print.
    :ivar state: ``available``, ``disabled`` or ``broken``.
    :ivar reason: Reason why it cannot be used; None where it is available.
    :ivar distribution: Distribution that brings it.
    :ivar version: Version of that distribution; "" if unknown.
    :ivar entry_point: ``package.module:object``.
    """

    name: str
    state: State
    reason: str | None = None
    distribution: str = ""
    version: str = ""
    entry_point: str = ""


def sources() -> tuple[tuple[str | None, ...], tuple[str, ...]]:
    """Return what decides which extensions there are: settings, and where distributions lie."""
    return tuple(os.environ.get(variable) for variable in _VARIABLES), tuple(sys.path)


def find_extensions(
    group: str, checked: Callable[[Any, str, str], _T], owners: Mapping[str, str]
) -> list[tuple[Extension, _T | None]]:
    """Find and load what a group declares, sorted by name; None in place of what cannot be used.

    :param checked: makes the value of the imported object, the name and the entry point; raises a PluginError.
    :param owners: the one distribution that may claim a name.
    """
    choice, found = read_settings().choice(), list(declarations(group))
    records = [_record(declaration, choice, owners) for declaration in found]
    claims = [record.name for record in records if record.state is State.FOUND]
    loaded: list[tuple[Extension, _T | None]] = []
    for record in sorted(records, key=lambda record: (record.name, record.distribution)):
        if record.state is not State.FOUND:
            loaded.append((record, None))
        elif claims.count(record.name) > 1:
            rivals = [r.distribution for r in records if r.name == record.name and r.state is State.FOUND]
            reason = f"the name {record.name!r} is claimed by {all_of(sorted(rivals))}; uninstall all but one"
            loaded.append((replace(record, state=State.BROKEN, reason=reason), None))
        else:
            advice = f"Set {disable_setting([record.name], choice)} to do without it."
            with contextlib.nullcontext() if record.name in owners else guard.watched(record.name, advice):
                loaded.append(_load(group, record, checked))
    return loaded


def _record(declaration: Declaration, choice: Choice, owners: Mapping[str, str]) -> Extension:
    """Decide from names alone whether an object may be imported."""
    record = Extension(
        name=printable(declaration.name) or "''",
        state=State.FOUND,
        distribution=printable(declaration.distribution),
        version=printable(declaration.version),
        entry_point=printable(declaration.value),
    )
    owner = owners.get(record.name)
    is_ours = owner is not None and canonicalize_name(record.distribution) == owner
    if owner is not None and not is_ours:
        broken = reserved_reason(record.name, owner, record.distribution)
        return replace(record, state=State.BROKEN, reason=broken)
    if reason := disabled_reason(record.name, choice, first_party=is_ours):
        return replace(record, state=State.DISABLED, reason=reason)
    fault = fault_of(declaration, lambda name: _NAME.fullmatch(name) is not None, _NAME_RULE)
    return record if fault is None else replace(record, state=State.BROKEN, reason=fault)


def _load(
    group: str, record: Extension, checked: Callable[[Any, str, str], _T]
) -> tuple[Extension, _T | None]:
    name, value = record.name, record.entry_point
    entry_point = importlib_metadata.EntryPoint(name, value, group)
    try:
        loaded = guarded(f"loading {value!r}", entry_point.load, value.partition(".")[0].partition(":")[0])
        extension = guarded(f"making {value!r}", lambda: checked(loaded, name, value), package_of(loaded))
    except PluginError as error:
        return replace(record, state=State.BROKEN, reason=str(error)), None
    return replace(record, state=State.AVAILABLE), extension
