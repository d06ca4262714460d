"""The library behind a plugin: is it installed, in a version that works, in one that was tested.

Versions come from distribution metadata, never from an import and never from ``find_spec``: a folder or
another project may have the same import name.
"""

from __future__ import annotations

import importlib_metadata
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tokendraw._plugin import Upstream
from tokendraw._words import printable


def installed_version(distribution: str) -> str | None:
    """Read the installed version, on one line; ``""`` if the metadata hold none, None if it is not installed."""
    try:
        version: str | None = importlib_metadata.version(distribution)
    except importlib_metadata.PackageNotFoundError:
        return None
    except Exception:  # damaged metadata: KeyError, FileNotFoundError, UnicodeDecodeError, by their damage
        return ""
    return printable(version or "")


def reason_against(upstream: Upstream, installed: str | None) -> str | None:
    """Why an installed version does not do; None if it does."""
    needed = f"needs {upstream.distribution} {upstream.versions}".rstrip()
    if installed is None:
        install = f"pip install '{upstream.distribution}{upstream.versions}'"
        return f"{needed}, found it not installed; run `{install}`"
    try:
        version = Version(installed)
    except ValueError:  # InvalidVersion, or more digits than Python converts
        return f"{needed}, found the version {installed!r}, which is no PEP 440 version; reinstall it"
    if SpecifierSet(upstream.versions).contains(version, prereleases=True):
        return None
    return f"{needed}, found {installed}"


def is_tested(upstream: Upstream, installed: str) -> bool:
    """Whether the plugin's authors tested this version; a local part such as ``+cu128`` is ignored."""
    public = Version(Version(installed).public)
    return any(Version(Version(tested).public) == public for tested in upstream.tested)
