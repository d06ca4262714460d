"""From facts to samplers that are built and proven; made anew where a fact changes, such as a call that failed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import torch

from tokendraw._discovery.discover import Discovery
from tokendraw._exchange.capabilities import Capabilities, Need, Operation
from tokendraw._exchange.host import Host
from tokendraw._messages.errors import PluginError, SamplerUnavailableError
from tokendraw._messages.words import LONGEST_REASON, said
from tokendraw._resolution.candidate import Candidate, Choice
from tokendraw._resolution.decide import decide
from tokendraw._serving import proof
from tokendraw._serving.routing import Member, Serving


@dataclass(frozen=True, kw_only=True)
class Negotiation:
    """Everything that a choice rests on."""

    operation: Operation = "sample"
    discovery: Discovery
    host: Host
    need: Need
    choice: Choice
    device: torch.device
    candidates: tuple[Candidate, ...]
    """Those of the discovery, with what building and calling them has shown since."""
    built: dict[str, Member] = field(default_factory=dict)
    """By name: each sampler is built once, whatever becomes of the others."""

    def without(self, name: str, reason: str) -> Self:
        """The same facts, and that ``name`` failed, a fact like any other."""
        return replace(
            self,
            candidates=tuple(replace(c, rejection=reason) if c.name == name else c for c in self.candidates),
        )

    def settle(self) -> tuple[Self, Serving]:
        """Resolve and build until what is chosen, and its companion, have proven themselves.

        Where a sampler fails, the next one's turn comes. An explicit choice has no next one.

        :return: the facts as they are known now, and who serves.
        :raises SamplerUnavailableError: the explicit choice cannot be honoured, or nothing is left.
        """
        facts, failures = self, dict[str, PluginError]()
        while True:
            try:
                resolution = decide(
                    facts.candidates, self.host, self.need, self.choice, operation=self.operation
                )
            except SamplerUnavailableError as error:
                raise error from failures.get(self.choice.sampler or "")
            needed = [name for name in (resolution.chosen, resolution.companion) if name]
            name = next((name for name in needed if name not in self.built), None)
            if name is None:
                break
            hooks, capabilities = self.discovery.hooks[name], self.discovery.offered(name, self.operation)
            try:
                backend = proof.build(hooks, capabilities, self.device, self.need, self.operation)
            except PluginError as error:
                failures[name] = error
                facts = facts.without(name, said(error, LONGEST_REASON))
            else:
                self.built[name] = Member(name, backend, proof.package_of(hooks))
        return facts, Serving(
            resolution=resolution,
            chosen=self.built[resolution.chosen],
            companion=self.built[resolution.companion] if resolution.companion else None,
            capabilities=self._offered(resolution.chosen),
            companion_capabilities=self._offered(resolution.companion) if resolution.companion else None,
            can_fall_back=self.choice.sampler is None and sum(d.accepted for d in resolution.decisions) > 1,
        )

    def _offered(self, name: str) -> Capabilities:
        """What a sampler can do from here on: of the logprobs modes, only the one that rows will get counts."""
        capabilities = self.discovery.offered(name, self.operation)
        modes = tuple(mode for mode in capabilities.logprobs_modes if mode == self.need.logprobs_mode)
        return replace(capabilities, logprobs_modes=modes)
