"""The record of an operation, and its requirements: properties of rows and calls that a backend may not support.

The rest of the core never asks for an operation's name. Importing a record imports neither torch nor a backend; the
module that it names is imported at the first proof or call. Resolution compares the table of requirements with
capabilities and a need, to find the best companion; a call compares only those that the selected backend does not meet.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tokendraw.backends.description.capabilities import Capabilities, Host, HostCapabilities, HostNeed

Check: TypeAlias = Callable[[Any, Host, Any], str | None]
"""Compares (capabilities, host, need), purely: None, or in words what is needed and what was found."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Requirement:
    """A property of rows or calls, supported by some backends.

    :ivar kind: Words for the rows or calls that have the property; may name fields, as ``{need.logprobs_mode}``.
    :ivar is_supported: Compares (capabilities, need): whether a backend supports the property.
    :ivar is_asked: Compares (call, capabilities): whether a call may have the property, for a backend that does not
        support it. A part of a batch is passed as :class:`tokendraw.calls.row_requirements.RowGroup`.
    :ivar reason: Words for a call that is refused, such as ``top_k above {capabilities.max_top_k}``; "": ``kind``.
    :ivar concerns_call: Whether the property belongs to the call, so that all of its rows go to a single backend.
    :ivar is_named_first: Whether a refusal names the property before other unsupported properties of the call.
    :ivar is_settled: Whether a need rules out calls with the property, so that no companion is sought for them.
    """

    kind: str
    is_supported: Callable[[Any, Any], bool]
    is_asked: Callable[[Any, Any], bool]
    reason: str = ""
    concerns_call: bool = False
    is_named_first: bool = False
    is_settled: Callable[[Any], bool] = lambda need: False


def first_reason(unsupported: tuple[Requirement, ...], call: Any, capabilities: Any) -> str | None:
    """Name the first unsupported property of a call; None: all are supported.

    :param unsupported: the requirements that the backend does not meet.
    """
    for requirement in unsupported:
        if requirement.is_asked(call, capabilities):
            return (requirement.reason or requirement.kind).format(capabilities=capabilities)
    return None


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A task for plugins.

    :ivar name: Name by which plugins offer the operation and callers load it.
    :ivar module: Name of the module with ``prove``, ``CALLS`` and ``PROVIDER``, for the methods of the same names; or
        ``module:object``.
    :ivar capabilities: Dataclass of the capabilities of a backend. The description that a plugin gives is checked
        against the types of the fields.
    :ivar need: Dataclass of the needs of a caller; can be made without arguments.
    :ivar methods: Methods that the object from ``tokendraw_build`` has to have.
    :ivar checks: Checks beyond those of the host, in the order in which their reasons are given.
    :ivar default_checks: Checks for the default choice alone. An explicit choice with a companion is not rejected by
        these.
    :ivar requirements: Properties of rows and calls that a backend may not support; a companion serves these.
    """

    name: str
    module: str
    capabilities: type[HostCapabilities] = HostCapabilities
    need: type[HostNeed] = HostNeed
    methods: tuple[str, ...]
    checks: tuple[Check, ...] = ()
    default_checks: tuple[Check, ...] = ()
    requirements: tuple[Requirement, ...] = ()

    def prove(self, backend: Any, capabilities: Any, device: Any, need: Any) -> None:
        """Make a call with a known outcome.

        :raises PluginError: the backend's answer is wrong.
        """
        self._implementation().prove(backend, capabilities, device, need)

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        """Return the :class:`tokendraw.calls.call.Call` of each method of a provider, by the method's name."""
        calls: Mapping[str, Callable[..., Any]] = self._implementation().CALLS
        return calls

    def provider(self) -> type[Any]:
        """Return the class of the objects from :func:`tokendraw.load`."""
        provider: type[Any] = self._implementation().PROVIDER
        return provider

    def functions(self) -> Mapping[str, Any]:
        """Return the :class:`tokendraw.plugin.TensorFunction` of each method; {} where they are none."""
        return getattr(self._implementation(), "FUNCTIONS", {})

    def _implementation(self) -> Any:
        return pkgutil.resolve_name(self.module)

    @property
    def proof(self) -> str:
        """Names the proof in reasons."""
        return "the proof draw" if issubclass(self.capabilities, Capabilities) else "the proof call"

    @property
    def served(self) -> str:
        """Names the unit for a companion: ``rows`` of logits for a sampler, else whole ``calls``."""
        return "rows" if issubclass(self.capabilities, Capabilities) else "calls"

    def unsupported(self, capabilities: Any, need: Any) -> tuple[Requirement, ...]:
        """List the unmet requirements of a backend, in the order for refusals."""
        missing = [each for each in self.requirements if not each.is_supported(capabilities, need)]
        return tuple(sorted(missing, key=lambda requirement: not requirement.is_named_first))

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
