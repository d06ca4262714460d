"""The face for tools: candidates, decisions with reasons, and the underlying facts.

``decide`` is a pure function of frozen dataclasses, so that the answer for any machine can be computed on any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendraw._lazy import lazy_names

if TYPE_CHECKING:
    from tokendraw.backends.description import Host as Host
    from tokendraw.backends.discovery.entry_points import installed_version as installed_version
    from tokendraw.backends.discovery.settings import Settings as Settings
    from tokendraw.backends.discovery.settings import read_settings as read_settings
    from tokendraw.backends.machine import detect_host as detect_host
    from tokendraw.backends.resolution.candidate import Candidate as Candidate
    from tokendraw.backends.resolution.candidate import Choice as Choice
    from tokendraw.backends.resolution.candidate import Decision as Decision
    from tokendraw.backends.resolution.candidate import Resolution as Resolution
    from tokendraw.backends.resolution.candidate import State as State
    from tokendraw.errors import DuplicatePluginError as DuplicatePluginError
    from tokendraw.providers import decide as decide

__getattr__, __dir__ = lazy_names(__name__)
