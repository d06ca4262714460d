"""The record of an operation: the rest of the core never asks for an operation's name.

Each operation is a folder of :mod:`tokendraw.operations` whose ``OPERATION`` is such a record. Importing the folder
imports neither torch nor a backend: ``prove``, ``calls`` and ``provider`` import what they need when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tokendraw.backends.description.capabilities import HostCapabilities, HostNeed
from tokendraw.backends.description.host import Host
from tokendraw.backends.description.requirement import Requirement, unsupported

Check: TypeAlias = Callable[[Any, Host, Any], str | None]
"""Compares (capabilities, host, need), purely: None, or in words what is needed and what was found."""
Prove: TypeAlias = Callable[[Any, Any, Any, Any], None]
"""Makes a call with a known outcome, or raises PluginError: (backend, capabilities, device, need)."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A task for plugins.

    :ivar name: Name by which plugins offer the operation and callers load it.
    :ivar summary: Describes the operation in one line, for the command line.
    :ivar capabilities: Dataclass of the capabilities of a backend. The description that a plugin gives is checked
        against the types of the fields.
    :ivar need: Dataclass of the needs of a caller; can be made without arguments.
    :ivar methods: Methods that the object from ``tokendraw_build`` has to have.
    :ivar checks: Checks beyond those of the host, in the order in which their reasons are given.
    :ivar default_checks: Checks for the default choice alone. An explicit choice with a companion is not rejected by
        these.
    :ivar requirements: Properties of rows and calls that a backend may not support; a companion serves these.
    :ivar prove: Makes the proof call on a backend that was built; raises if the answer is wrong.
    :ivar calls: Looks up the :class:`tokendraw.calls.call.Call` of each method of a provider, by the method's name.
    :ivar provider: Looks up the class that :func:`tokendraw.load` returns; None: a class made from ``calls``.
    :ivar splits_rows: Whether the rows of a call may be divided between the selected backend and its companion;
        otherwise each call goes to one of them.
    """

    name: str
    summary: str
    capabilities: type[HostCapabilities] = HostCapabilities
    need: type[HostNeed] = HostNeed
    methods: tuple[str, ...]
    checks: tuple[Check, ...] = ()
    default_checks: tuple[Check, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    prove: Prove
    calls: Callable[[], Mapping[str, Callable[..., Any]]]
    provider: Callable[[], type[Any]] | None = None
    splits_rows: bool = False

    @property
    def proof(self) -> str:
        """Names the proof in reasons."""
        return "the proof draw" if self.splits_rows else "the proof call"

    @property
    def served(self) -> str:
        """Names the unit that a companion may take: ``rows`` of a call, or whole ``calls``."""
        return "rows" if self.splits_rows else "calls"

    def unsupported(self, capabilities: Any, need: Any) -> tuple[Requirement, ...]:
        """List the unmet requirements of a backend, for :class:`tokendraw.calls.selection.LoadedBackend`."""
        return unsupported(self.requirements, capabilities, need)

    def unsupported_kinds(self, capabilities: Any, need: Any) -> tuple[str, ...]:
        """Name the kinds of rows or calls for a companion, in the order of the requirements."""
        return tuple(each.kind.format(need=need) for each in self._open(capabilities, need))

    def covers(self, companion: Any, capabilities: Any, need: Any) -> bool:
        """Whether a companion serves every row or call beyond a backend.

        :param companion: capabilities of the companion.
        :param capabilities: capabilities of the backend.
        """
        missing, open_requirements = self._open(companion, need), self._open(capabilities, need)
        if any(each.concerns_call for each in open_requirements):
            return not missing
        return not set(missing) & set(open_requirements)

    def _open(self, capabilities: Any, need: Any) -> list[Requirement]:
        """List the unmet requirements of a backend, as far as the need allows such calls."""
        return [
            each
            for each in self.requirements
            if not each.is_supported(capabilities, need) and not each.is_settled(need)
        ]
