"""Checks a plugin's description against the plugin API before its first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from tokendraw.backends.description.capabilities import MAX_WORD_CHARS, HostCapabilities
from tokendraw.backends.description.declared import rules_of
from tokendraw.backends.description.operation import Operation
from tokendraw.backends.description.plugin_info import MAX_ITEMS, MAX_PRIORITY, PluginInfo, Upstream
from tokendraw.backends.discovery.upstream_validation import check_upstream
from tokendraw.errors.exceptions import PluginError
from tokendraw.errors.formatting import MAX_TEXT_CHARS, format_value, is_printable, one_of, printable

Find: TypeAlias = Callable[[str], Operation | None]
"""Looks up an operation by its name; None: this core does not know it."""


def check_identity(info: object, name: str) -> PluginInfo:
    """Return ``info`` if it is the description of the plugin selected by users as ``name``.

    :raises PluginError: it is not; the message is a reason in words.
    """
    if not isinstance(info, PluginInfo):
        raise PluginError(
            f"tokendraw_describe needs to return a tokendraw.plugin.PluginInfo, found {_kind(info)}"
        )
    if type(info.name) is not str or info.name != name:
        raise PluginError(
            f"PluginInfo.name needs to be the entry point's name {name!r}, found {format_value(info.name)}"
        )
    for field in ("api_version", "priority"):
        number = getattr(info, field)
        if type(number) is not int or abs(number) > MAX_PRIORITY:
            raise PluginError(
                f"PluginInfo.{field} needs an integer from {-MAX_PRIORITY} to {MAX_PRIORITY}, "
                f"found {format_value(number)}"
            )
    return info


def check_description(info: PluginInfo, find: Find) -> PluginInfo:
    """Check and copy a description of sound identity; later changes by the plugin do not reach the copy.

    The rest has to make sense only if the API version is ours.

    :param find: looks up the operations that plugins may offer.
    :raises PluginError: the message is a reason in words.
    """
    for field in ("summary", "verified", "kernels"):
        text = getattr(info, field)
        if not is_printable(text):
            raise PluginError(
                f"PluginInfo.{field} needs one printable line of at most {MAX_TEXT_CHARS} characters, "
                f"found {format_value(text)}"
            )
    operations = info.operations
    if not isinstance(operations, Mapping) or not 0 < len(operations) <= MAX_ITEMS:
        raise PluginError(
            f"PluginInfo.operations needs 1 to {MAX_ITEMS} operations, found {format_value(operations)}"
        )
    return PluginInfo(
        name=info.name,
        api_version=info.api_version,
        priority=info.priority,
        operations={name: _capabilities(name, offered, find) for name, offered in operations.items()},
        upstream=_upstream(info.upstream),
        summary=info.summary,
        verified=info.verified,
        kernels=info.kernels,
    )


def _capabilities(name: object, offered: object, find: Find) -> HostCapabilities:
    """Copy the capabilities of an operation; of an operation unknown to this core, the host's part alone."""
    if not is_printable(name, MAX_WORD_CHARS) or not isinstance(offered, HostCapabilities):
        found = _kind(offered) if is_printable(name, MAX_WORD_CHARS) else format_value(name)
        raise PluginError(f"PluginInfo.operations needs Capabilities by name, found {found}")
    operation = find(str(name))
    declared = operation.capabilities if operation else HostCapabilities
    if not isinstance(offered, declared):
        raise PluginError(
            f"PluginInfo.operations needs {declared.__name__} for the operation {name!r}, found {_kind(offered)}"
        )
    values = {}
    for field, rule in rules_of(declared).items():
        value = values[field] = getattr(offered, field)
        too_long = isinstance(value, tuple) and len(value) > MAX_ITEMS
        if too_long or not rule.fits(value):
            needed = one_of(rule.needed)
            raise PluginError(
                f"{declared.__name__}.{field} of the operation {name!r} needs {needed}, found {format_value(value)}"
            )
    return declared(**values)


def _upstream(upstream: object) -> Upstream | None:
    if upstream is not None and not isinstance(upstream, Upstream):
        raise PluginError(
            f"PluginInfo.upstream needs a tokendraw.plugin.Upstream or None, found {_kind(upstream)}"
        )
    return None if upstream is None else check_upstream(upstream)


def _kind(value: object) -> str:
    return "None" if value is None else printable(type(value).__name__)
