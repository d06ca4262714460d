"""The face for tools: candidates, decisions with reasons, and the underlying facts.

``decide`` is a pure function of frozen dataclasses, so that the answer for any machine can be computed on any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendraw._lazy import lazy_names

if TYPE_CHECKING:
    from tokendraw.backends.description.host import Host
    from tokendraw.backends.discovery.installed import installed_version
    from tokendraw.backends.discovery.settings import Settings, read_settings
    from tokendraw.backends.machine.detect import detect_host
    from tokendraw.backends.resolution.candidate import Candidate, Choice, Decision, Resolution, State
    from tokendraw.errors.exceptions import DuplicatePluginError
    from tokendraw.providers.resolve import decide

_HOMES = {
    "backends.discovery.installed": ("installed_version",),
    "backends.discovery.settings": ("Settings", "read_settings"),
    "backends.description.host": ("Host",),
    "providers.resolve": ("decide",),
    "backends.machine.detect": ("detect_host",),
    "errors.exceptions": ("DuplicatePluginError",),
    "backends.resolution.candidate": ("Candidate", "Choice", "Decision", "Resolution", "State"),
}

__all__ = [
    "Candidate",
    "Choice",
    "Decision",
    "DuplicatePluginError",
    "Host",
    "Resolution",
    "Settings",
    "State",
    "decide",
    "detect_host",
    "installed_version",
    "read_settings",
]

__getattr__ = lazy_names(globals(), _HOMES)


def __dir__() -> list[str]:
    return __all__
