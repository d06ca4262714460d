"""Negotiates from facts to providers that are built and proven, anew when a fact changes such as a failed call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch

from tokendraw.backends import proof
from tokendraw.backends.description.capabilities import HostNeed
from tokendraw.backends.description.operation import Operation
from tokendraw.backends.discovery.discover import Discovery
from tokendraw.backends.resolution.candidate import Resolution
from tokendraw.backends.resolution.decide import decide
from tokendraw.calls.device_faults import is_device_fault
from tokendraw.calls.routing import BuiltProvider, Serving
from tokendraw.errors.exceptions import PluginError, SamplerUnavailableError
from tokendraw.errors.formatting import MAX_REASON_CHARS, format_message


@dataclass(frozen=True, kw_only=True)
class Negotiation:
    """Everything that the choices of one caller rest on, for all operations on one device.

    Replaced as a whole where a plugin fails: building and proving it, and its calls, bring facts of their own.
    """

    discovery: Discovery
    need: HostNeed
    """Need of the caller, of the need type of every operation that is settled."""
    device: torch.device
    companions: bool = True
    """Whether another provider may serve beside the chosen one, or take over from it."""
    before_build: Callable[[str], None]
    """Called with the name of each plugin that is about to be built."""
    rejections: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Reasons why building a plugin, its proof or a call of it failed, by operation and plugin."""
    device_faults: Mapping[str, str] = field(default_factory=dict)
    """Reasons of failures of the device itself, by plugin; they count for every operation of the plugin."""
    built: dict[tuple[str, str], BuiltProvider] = field(default_factory=dict)
    """Built providers, by operation and plugin; each is built once."""

    def without(self, operation: Operation, name: str, reason: str, error: BaseException | None) -> Self:
        """Copy of the negotiation with a plugin marked as rejected.

        :param error: what was raised; a fault of the device rejects the plugin in every operation.
        """
        if is_device_fault(error):
            return replace(self, device_faults={**self.device_faults, name: reason})
        rejections = {**self.rejections, (operation.name, name): reason}
        return replace(self, rejections=rejections)

    def rejection(self, operation: str, name: str) -> str | None:
        """Return the reason why a plugin was rejected in an operation; None if it was not."""
        return self.rejections.get((operation, name)) or self.device_faults.get(name)

    def stands(self, serving: Serving) -> bool:
        """Whether none of those who serve was rejected since they were chosen."""
        members = (serving.chosen, serving.companion)
        operation = serving.resolution.operation
        return not any(member and self.rejection(operation, member.name) for member in members)

    def settle(self, operation: Operation) -> tuple[Self, Serving]:
        """Resolve and build until what is chosen, and its companion, have proven themselves.

        Where one fails, the next one's turn comes. An explicit choice has no next one.

        :return: the facts as they are known now, and who serves.
        :raises SamplerUnavailableError: the explicit choice cannot be honoured, or nothing is left.
        """
        facts, failures = self, dict[str, PluginError]()
        choice = self.discovery.choice
        while True:
            try:
                resolution = facts._decide(operation)
            except SamplerUnavailableError as error:
                raise error from failures.get(choice.sampler or "")
            needed = [name for name in (resolution.chosen, resolution.companion) if name]
            name = next((name for name in needed if (operation.name, name) not in self.built), None)
            if name is None:
                break
            hooks, capabilities = self.discovery.hooks[name], self.discovery.offered(name, operation)
            self.before_build(name)
            try:
                backend = proof.build(operation, hooks, capabilities, self.device, self.need)
            except PluginError as error:
                failures[name] = error
                facts = facts.without(
                    operation, name, format_message(error, MAX_REASON_CHARS), error.__cause__
                )
            else:
                self.built[operation.name, name] = BuiltProvider(name, backend, proof.package_of(hooks))
        may_be_followed = self.companions and operation.falls_back and choice.sampler is None
        return facts, Serving(
            resolution=resolution,
            chosen=self.built[operation.name, resolution.chosen],
            companion=self.built[operation.name, resolution.companion] if resolution.companion else None,
            capabilities=self._offered(resolution.chosen, operation),
            companion_capabilities=self._offered(resolution.companion, operation)
            if resolution.companion
            else None,
            barred_companion=None if self.companions else facts._decide(operation, companions=True).companion,
            can_fall_back=may_be_followed and sum(d.accepted for d in resolution.decisions) > 1,
        )

    def _decide(self, operation: Operation, *, companions: bool | None = None) -> Resolution:
        about = self.discovery
        candidates = [
            replace(c, rejection=self.rejection(operation.name, c.name))
            for c in about.candidates(operation, self.need)
        ]
        return decide(
            candidates,
            about.host,
            self.need,
            about.choice,
            operation=operation,
            companions=self.companions if companions is None else companions,
        )

    def _offered(self, name: str, operation: Operation) -> Any:
        return operation.offered(self.discovery.offered(name, operation), self.need)
