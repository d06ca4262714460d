"""A plugin's description of itself, as data, and the rule for plugin names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tokendraw.backends.description.capabilities import HostCapabilities

API_VERSION = 1
"""The newest plugin API that this core speaks. A plugin that names a later one is ``incompatible``."""
OLDEST_API_VERSION = 1
"""The oldest one, that of plugins made for the last two minor versions. Earlier plugins are ``incompatible`` too."""


NAME_RULE = "at most 64 lowercase letters and digits, a letter first, with single hyphens between them"
"""Rule of a plugin's name, which stands in comma-separated lists, in shells and in tables."""
MAX_PRIORITY = 1_000_000
"""Bound of a priority on both sides of 0, and of an API version."""

_NAME = re.compile(r"(?=.{1,64}\Z)[a-z][a-z0-9]*(-[a-z0-9]+)*")


def is_name(text: str) -> bool:
    """Whether users can select a plugin by this name, as :data:`NAME_RULE` says."""
    return _NAME.fullmatch(text) is not None


@dataclass(frozen=True)
class Release:
    """A range of upstream releases with a note for users: from ``since`` up to the next row.

    Rows about one operation, or about all, ascend and begin with the release ``0``, so that every version has one.

    :ivar since: First release that the row is about, such as ``0.6.16.post3``, with the pre-releases and builds of that
        release.
    :ivar says: Behaviour of these releases, to follow a version number: ``packs layout v1``. Also the reason of a
        refusal.
    :ivar operation: Operation that the row is about; None: all operations.
    :ivar refused: Whether these releases are not used.
    :ivar change: Instruction to a user who moves to these releases: ``packed weights have to be packed again``.
    """

    since: str
    says: str
    operation: str | None = None
    refused: bool = False
    change: str = ""


@dataclass(frozen=True)
class Upstream:
    """The library driven by a plugin, looked up in the metadata of its distribution, never imported.

    :ivar distribution: Name of the distribution, such as ``flashinfer-python``.
    :ivar versions: PEP 440 specifier of the versions that work, such as ``>=0.6.7,<0.8``.
    :ivar tested: Versions that the plugin was tested with by its authors, or PEP 440 ranges of them.
    :ivar releases: Known releases, a row each. Without any row, all versions in the range are used.
    :ivar found: Findings in the files of the installed version by operation, worded like ``Release.says``. Findings
        override ``releases``.
    """

    distribution: str
    versions: str
    tested: tuple[str, ...] = ()
    releases: tuple[Release, ...] = ()
    found: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PluginInfo:
    """A plugin's description of itself, as data.

    It is the same on every machine that has the same files installed: a plugin may look at those of its upstream, and
    at nothing else. Texts are one printable line each: 100 characters at most for a name, a version or an architecture,
    500 for the others.

    :ivar name: Name that users select, equal to the name of the entry point: lowercase letters, digits and single
        hyphens.
    :ivar api_version: Version of the plugin API that the plugin is written for, ``tokendraw.plugin.API_VERSION``.
    :ivar priority: Priority from -1000000 to 1000000; a higher one is preferred. native is 0, specialised kernels are
        10 to 90.
    :ivar operations: Capabilities by the name of an operation, each of the type that the operation names.
    :ivar upstream: Library that the plugin draws with, and its versions; None: none.
    :ivar summary: Describes the plugin in one line, for ``tokendraw list``.
    :ivar verified: Hardware on which the plugin's authors have run it, for ``tokendraw show``.
    :ivar kernels: Origin of the kernels on this machine, for ``tokendraw show``: prebuilt, or the name of the compiler.
    :ivar expected_failures: Reason by the name of a property of the conformance kit (``tokendraw check --list``) that
        the plugin is known to fail, such as ``acme issue 12: keeps k of the tokens tied with the k-th``.
    """

    name: str
    api_version: int
    priority: int
    operations: Mapping[str, HostCapabilities]
    upstream: Upstream | None = None
    summary: str = ""
    verified: str = ""
    kernels: str = ""
    expected_failures: Mapping[str, str] = field(default_factory=dict)
