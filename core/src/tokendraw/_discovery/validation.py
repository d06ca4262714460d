"""What a plugin says of itself, held against the plugin API before anybody relies on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tokendraw._exchange.capabilities import (
    DRAFT_KINDS,
    FILTER_ORDERS,
    GUMBEL_DTYPES,
    INPUT_DTYPES,
    LOGPROBS_MODES,
    VERIFY_MODES,
    Capabilities,
)
from tokendraw._exchange.plugin_info import LARGEST_PRIORITY, PluginInfo, Upstream
from tokendraw._messages.errors import PluginError
from tokendraw._messages.words import LONGEST_TEXT, is_printable, one_of, printable, shown

_Fits: TypeAlias = Callable[[Any], bool]

_LARGEST_NUMBER = 2**63 - 1
_MOST_ITEMS = 100  # of a tuple, and operations
_LONGEST_WORD = 100  # characters of a name, an architecture, a version or a range of versions


def check_identity(info: object, name: str) -> PluginInfo:
    """``info`` itself, if it is the description of the plugin that users select as ``name``.

    :raises PluginError: it is not; the message is a reason in words.
    """
    if not isinstance(info, PluginInfo):
        raise PluginError(
            f"tokendraw_describe needs to return a tokendraw.plugin.PluginInfo, found {_kind(info)}"
        )
    if type(info.name) is not str or info.name != name:
        raise PluginError(
            f"PluginInfo.name needs to be the entry point's name {name!r}, found {shown(info.name)}"
        )
    for field in ("api_version", "priority"):
        number = getattr(info, field)
        if type(number) is not int or abs(number) > LARGEST_PRIORITY:
            raise PluginError(
                f"PluginInfo.{field} needs an integer from {-LARGEST_PRIORITY} to {LARGEST_PRIORITY}, "
                f"found {shown(number)}"
            )
    return info


def checked(info: PluginInfo) -> PluginInfo:
    """Copy a description whose identity is sound, if the rest is; what the plugin does to its own later is no matter.

    The rest has to make sense only if the API version is ours.

    :raises PluginError: the message is a reason in words.
    """
    for field in ("summary", "verified", "kernels"):
        text = getattr(info, field)
        if not is_printable(text):
            raise PluginError(
                f"PluginInfo.{field} needs one printable line of at most {LONGEST_TEXT} characters, found {shown(text)}"
            )
    operations = info.operations
    if not isinstance(operations, Mapping) or not 0 < len(operations) <= _MOST_ITEMS:
        raise PluginError(
            f"PluginInfo.operations needs 1 to {_MOST_ITEMS} operations, found {shown(operations)}"
        )
    return PluginInfo(
        name=info.name,
        api_version=info.api_version,
        priority=info.priority,
        operations={name: _capabilities(name, offered) for name, offered in operations.items()},
        upstream=None if info.upstream is None else _upstream(info.upstream),
        summary=info.summary,
        verified=info.verified,
        kernels=info.kernels,
    )


def _capabilities(operation: object, offered: object) -> Capabilities:
    if not is_printable(operation, _LONGEST_WORD) or not isinstance(offered, Capabilities):
        found = _kind(offered) if is_printable(operation, _LONGEST_WORD) else shown(operation)
        raise PluginError(f"PluginInfo.operations needs Capabilities by name, found {found}")
    values = {field: getattr(offered, field) for field in FIELDS}
    for field, (needed, fits) in FIELDS.items():
        if not fits(values[field]):
            raise PluginError(
                f"Capabilities.{field} of the operation {operation!r} needs {needed}, found {shown(values[field])}"
            )
    return Capabilities(**values)


def _upstream(upstream: object) -> Upstream:
    if not isinstance(upstream, Upstream):
        raise PluginError(
            f"PluginInfo.upstream needs a tokendraw.plugin.Upstream or None, found {_kind(upstream)}"
        )
    distribution, versions, tested = upstream.distribution, upstream.versions, upstream.tested
    if not is_printable(distribution, _LONGEST_WORD) or not _parses(_distribution, distribution):
        raise PluginError(f"Upstream.distribution needs a distribution's name, found {shown(distribution)}")
    if not is_printable(versions, _LONGEST_WORD) or not _parses(SpecifierSet, versions):
        raise PluginError(f"Upstream.versions needs a PEP 440 range, found {shown(versions)}")
    if not _are_words(tested) or not all(_parses(Version, version) for version in tested):
        raise PluginError(f"Upstream.tested needs a tuple of PEP 440 versions, found {shown(tested)}")
    return Upstream(distribution, versions, tested)


def _distribution(name: str) -> str:
    return canonicalize_name(name, validate=True)


def _parses(kind: Callable[[str], object], text: str) -> bool:
    try:
        kind(text)
    except ValueError:  # as of packaging, and of a number with more digits than Python converts
        return False
    return True


def _kind(value: object) -> str:
    return "None" if value is None else printable(type(value).__name__)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST_NUMBER


def _is_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) <= _MOST_ITEMS


def _are_words(value: Any) -> bool:
    # One bare string is the usual slip: ("cuda") is no tuple.
    return _is_tuple(value) and all(is_printable(word, _LONGEST_WORD) for word in value)


def _is_version(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(_is_count(number) for number in value)


def _is_range(value: Any) -> bool:
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    return _is_version(value[0]) and (value[1] is None or _is_version(value[1]))


def _are_filters(value: Any) -> bool:
    known = [(name, how) for name in ("top_k", "top_p", "min_p") for how in ("per_row", "scalar")]
    return _is_tuple(value) and all(pair in known for pair in value)


def _optional(needed: str, fits: _Fits) -> tuple[str, _Fits]:
    return f"{needed} or None", lambda value: value is None or fits(value)


def _one_from(known: tuple[str, ...]) -> tuple[str, _Fits]:
    return one_of(map(repr, known)), lambda value: value in known


def _some_from(known: tuple[str, ...]) -> tuple[str, _Fits]:
    # A misspelt word would never match a need, in silence, so the vocabularies are closed.
    needed = f"a tuple of {one_of(map(repr, known))}"
    return needed, lambda value: _are_words(value) and set(value) <= set(known)


_COUNT = "an integer from 0 to 2**63 - 1"
_FLAG: tuple[str, _Fits] = ("True or False", _is_bool)

FIELDS: Mapping[str, tuple[str, _Fits]] = {
    "device_types": _optional("a tuple of short strings", _are_words),
    "compute_capability": _optional("((major, minor), (major, minor) or None)", _is_range),
    "rocm_archs": _optional("a tuple of short strings", _are_words),
    "min_sm_count": (_COUNT, _is_count),
    "dtypes": _some_from(INPUT_DTYPES),
    "logprobs_modes": _some_from(LOGPROBS_MODES),
    "filters": ("a tuple of ('top_k', 'top_p' or 'min_p', 'per_row' or 'scalar')", _are_filters),
    "filter_orders": _some_from(FILTER_ORDERS),
    "tie_rule": _one_from(("value", "exact_k")),
    "seeding": _one_from(("none", "launch", "counter")),
    "greedy": _FLAG,
    "gumbel_dtypes": _some_from(GUMBEL_DTYPES),
    "valid_flag": _FLAG,
    "graph_safe": _FLAG,
    "sync_free": _FLAG,
    "batch_invariant": _FLAG,
    "max_top_k": _optional(_COUNT, _is_count),
    "max_vocab_size": _optional(_COUNT, _is_count),
    "verify_modes": _some_from(VERIFY_MODES),
    "draft_kinds": _some_from(DRAFT_KINDS),
    "ragged_drafts": _FLAG,
    "placeholder_drafts": _FLAG,
}
"""Each field of ``Capabilities``: what it needs, in words, and whether a value is that."""
