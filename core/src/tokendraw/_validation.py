"""What a plugin says of itself, held against the plugin API before anybody relies on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from tokendraw._capabilities import (
    DRAFT_KINDS,
    FILTER_ORDERS,
    GUMBEL_DTYPES,
    INPUT_DTYPES,
    LOGPROBS_MODES,
    VERIFY_MODES,
    Capabilities,
)
from tokendraw._errors import PluginError
from tokendraw._plugin import PluginInfo, Upstream
from tokendraw._words import one_of

_Fits: TypeAlias = Callable[[Any], bool]


def check_identity(info: object, name: str) -> PluginInfo:
    """``info`` itself, if it is the description of the plugin that users select as ``name``.

    :raises PluginError: it is not; the message is a reason in words.
    """
    if not isinstance(info, PluginInfo):
        raise PluginError(f"tokendraw_describe needs to return a tokendraw.PluginInfo, found {_kind(info)}")
    if info.name != name:
        raise PluginError(f"PluginInfo.name needs to be the entry point's name {name!r}, found {info.name!r}")
    for field in ("api_version", "priority"):
        if type(getattr(info, field)) is not int:
            raise PluginError(f"PluginInfo.{field} needs an integer, found {getattr(info, field)!r}")
    return info


def check_content(info: PluginInfo) -> None:
    """Check the rest of a description, which has to make sense only if the API version is ours.

    :raises PluginError: the message is a reason in words.
    """
    if not isinstance(info.operations, Mapping) or not info.operations:
        raise PluginError(f"PluginInfo.operations needs at least one operation, found {info.operations!r}")
    for operation, capabilities in info.operations.items():
        if not isinstance(operation, str) or not isinstance(capabilities, Capabilities):
            raise PluginError(
                f"PluginInfo.operations needs Capabilities by name, found {_kind(capabilities)}"
            )
        for field, (needed, fits) in FIELDS.items():
            found = getattr(capabilities, field)
            if not fits(found):
                raise PluginError(
                    f"Capabilities.{field} of the operation {operation!r} needs {needed}, found {found!r}"
                )
    if info.upstream is not None:
        _check_upstream(info.upstream)


def _check_upstream(upstream: object) -> None:
    if not isinstance(upstream, Upstream):
        raise PluginError(f"PluginInfo.upstream needs a tokendraw.Upstream or None, found {_kind(upstream)}")
    if not isinstance(upstream.distribution, str) or not upstream.distribution:
        raise PluginError(
            f"Upstream.distribution needs a distribution's name, found {upstream.distribution!r}"
        )
    if not isinstance(upstream.versions, str) or not _parses(SpecifierSet, upstream.versions):
        raise PluginError(f"Upstream.versions needs a PEP 440 range, found {upstream.versions!r}")
    if not _are_words(upstream.tested) or not all(_parses(Version, v) for v in upstream.tested):
        raise PluginError(f"Upstream.tested needs a tuple of PEP 440 versions, found {upstream.tested!r}")


def _parses(kind: type[SpecifierSet] | type[Version], text: str) -> bool:
    try:
        kind(text)
    except (InvalidSpecifier, InvalidVersion):
        return False
    return True


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_words(value: Any) -> bool:
    # One bare string is the usual slip: ("cuda") is no tuple.
    return isinstance(value, tuple) and all(isinstance(word, str) for word in value)


def _is_version(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(_is_count(number) for number in value)


def _is_range(value: Any) -> bool:
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    return _is_version(value[0]) and (value[1] is None or _is_version(value[1]))


def _are_filters(value: Any) -> bool:
    known = [(name, how) for name in ("top_k", "top_p", "min_p") for how in ("per_row", "scalar")]
    return isinstance(value, tuple) and all(pair in known for pair in value)


def _optional(needed: str, fits: _Fits) -> tuple[str, _Fits]:
    return f"{needed} or None", lambda value: value is None or fits(value)


def _one_from(known: tuple[str, ...]) -> tuple[str, _Fits]:
    return one_of(map(repr, known)), lambda value: value in known


def _some_from(known: tuple[str, ...]) -> tuple[str, _Fits]:
    # A misspelt word would never match a need, in silence, so the vocabularies are closed.
    needed = f"a tuple of {one_of(map(repr, known))}"
    return needed, lambda value: _are_words(value) and set(value) <= set(known)


_FLAG: tuple[str, _Fits] = ("True or False", _is_bool)

FIELDS: Mapping[str, tuple[str, _Fits]] = {
    "device_types": _optional("a tuple of strings", _are_words),
    "compute_capability": _optional("((major, minor), (major, minor) or None)", _is_range),
    "rocm_archs": _optional("a tuple of strings", _are_words),
    "min_sm_count": ("an integer >= 0", _is_count),
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
    "max_top_k": _optional("an integer >= 0", _is_count),
    "max_vocab_size": _optional("an integer >= 0", _is_count),
    "verify_modes": _some_from(VERIFY_MODES),
    "draft_kinds": _some_from(DRAFT_KINDS),
    "ragged_drafts": _FLAG,
    "placeholder_drafts": _FLAG,
}
"""Each field of ``Capabilities``: what it needs, in words, and whether a value is that."""
