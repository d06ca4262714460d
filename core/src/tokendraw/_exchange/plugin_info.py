"""The description that a plugin gives of itself, as data, and the rule that its name follows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tokendraw._exchange.capabilities import HostCapabilities

API_VERSION = 1
"""The plugin API that this core speaks. A plugin that names another one is ``incompatible``."""


NAME_RULE = "at most 64 lowercase letters and digits, a letter first, with single hyphens between them"
"""Rule of a plugin's name, which stands in comma-separated lists, in shells and in tables."""
LARGEST_PRIORITY = 1_000_000
"""Bound of a priority on both sides of 0, and of an API version."""
MOST_ITEMS = 100
"""Bound of the items of a tuple, and of operations."""

_NAME = re.compile(r"(?=.{1,64}\Z)[a-z][a-z0-9]*(-[a-z0-9]+)*")


def is_name(text: str) -> bool:
    """Whether users can select a plugin by this name, as :data:`NAME_RULE` says."""
    return _NAME.fullmatch(text) is not None


@dataclass(frozen=True)
class Release:
    """A row of what a plugin knows of its upstream by version: it holds from ``since`` up to the next such row.

    Rows about one operation, or about all, ascend and begin with the release ``0``, so that every version has one.
    """

    since: str
    """The first release that it is about, such as ``0.6.16.post3``, with the pre-releases and builds of that."""
    says: str
    """Says what these releases do, behind a version: ``packs layout v1``. It is the reason of a refusal."""
    operation: str | None = None
    """The operation that it is about; None: all of them."""
    refused: bool = False
    """Whether these releases are not used."""
    change: str = ""
    """Says what a user has to do who comes to these releases: ``packed weights have to be packed again``."""


@dataclass(frozen=True)
class Upstream:
    """The library that a plugin drives, found by its distribution's metadata, never by importing it."""

    distribution: str
    """Name of the distribution, such as ``flashinfer-python``."""
    versions: str
    """PEP 440 specifier of the versions that work, such as ``>=0.6.7,<0.8``."""
    tested: tuple[str, ...] = ()
    """Versions that the plugin's authors have run its tests with."""
    releases: tuple[Release, ...] = ()
    """Table of what is known by version. Without any row, all versions in the range are used."""
    found: Mapping[str, str] = field(default_factory=dict)
    """Findings in the files of the installed version, in the words of a :class:`Release`, by operation. They beat the
    version's number."""


@dataclass(frozen=True, kw_only=True)
class PluginInfo:
    """The description that a plugin gives of itself, as data.

    It is the same on every machine that has the same files installed: a plugin may look at those of its upstream, and
    at nothing else. Texts are one printable line each: 100 characters at most for a name, a version or an architecture,
    500 for the others. A tuple holds 100 items at most.
    """

    name: str
    """The name that users select; the entry point carries the same: lowercase letters, digits and single hyphens."""
    api_version: int
    priority: int
    """Higher is preferred. native is 0, specialised kernels are 10 to 90; from -1000000 to 1000000."""
    operations: Mapping[str, HostCapabilities]
    """Capabilities by the name of an operation, of the type that the operation names."""
    upstream: Upstream | None = None
    summary: str = ""
    """Describes it in one line, for ``tokendraw list``."""
    verified: str = ""
    """Hardware on which its authors have run it, for ``tokendraw show``."""
    kernels: str = ""
    """Origin of its kernels on this machine, for ``tokendraw show``: prebuilt, or what compiles them."""
