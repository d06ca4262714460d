"""Compares the installed version of the library behind a plugin with those that work and those that were tested."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tokendraw._exchange.plugin_info import Upstream


def reason_against(upstream: Upstream, installed: str | None) -> str | None:
    """Say why an installed version is outside the range; None if it is inside."""
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
