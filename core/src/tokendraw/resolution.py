"""The face for tools: candidates, decisions with their reasons, and the facts that they rest on.

``decide`` is a pure function of frozen dataclasses, so that the answer for any machine can be computed on any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendraw._lazy import lazy_names

if TYPE_CHECKING:
    from tokendraw._discovery.installed import installed_version
    from tokendraw._discovery.settings import Settings, read_settings
    from tokendraw._exchange.host import Host
    from tokendraw._loading.resolve import decide
    from tokendraw._machine.detect import detect_host
    from tokendraw._messages.errors import DuplicatePluginError
    from tokendraw._resolution.candidate import Candidate, Choice, Decision, Resolution, State

_HOMES = {
    "_discovery.installed": ("installed_version",),
    "_discovery.settings": ("Settings", "read_settings"),
    "_exchange.host": ("Host",),
    "_loading.resolve": ("decide",),
    "_machine.detect": ("detect_host",),
    "_messages.errors": ("DuplicatePluginError",),
    "_resolution.candidate": ("Candidate", "Choice", "Decision", "Resolution", "State"),
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
