"""A property of samplers: what is checked, which capability asks for it, and how its absence has to be refused."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tokendraw import operations
from tokendraw._exchange.capabilities import Capabilities, LogprobsMode, Need
from tokendraw._exchange.params import SamplingParams
from tokendraw.operations.verify.capabilities import DraftKind, VerifyMode
from tokendraw.testing.kit.subject import Subject
from tokendraw.testing.kit.trial import Trial

Check = Callable[[Subject, Trial], str]
"""Checks a property and returns what was looked at, in words; raises Violation."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request for a capability, to be refused by whoever does not advertise it."""

    need: Need = field(default_factory=Need)
    params: SamplingParams | None = None
    """A row that needs it; None: the need alone does, or what follows, all of it about verifications."""
    mode: VerifyMode | None = None
    kind: DraftKind | None = None
    """None, here and for the mode: one that is advertised."""
    ragged: bool = False
    placeholder: bool = False

    @property
    def is_batch(self) -> bool:
        """Whether a batch needs it, and not the need alone."""
        return bool(self.params or self.mode or self.kind or self.ragged or self.placeholder)


@dataclass(frozen=True, kw_only=True)
class Property:
    """One line of a report."""

    name: str
    about: str
    """What is demanded, in a sentence."""
    check: Check
    advertised: Callable[[Any], bool] | None = None
    """Whether the capabilities promise it; None: everybody has to have it."""
    refusal: Ask | None = None
    """What is asked of a sampler that does not promise it; None: nothing, the line is left out."""
    needs_cuda: bool = False
    operation: str
    """Whose capabilities these are. A sampler that does not offer the operation has no line."""


class Properties:
    """Collects the properties of one module, in the order in which they stand there."""

    def __init__(self, operation: str) -> None:
        self.all: list[Property] = []
        self._operation = operation

    def required(self, name: str) -> Callable[[Check], Check]:
        """Register a check that every sampler has to pass; its docstring says what is demanded."""
        return self._registering(name)

    def advertised(
        self,
        name: str,
        advertised: Callable[[Any], bool],
        refusal: Ask | None = None,
        *,
        needs_cuda: bool = False,
    ) -> Callable[[Check], Check]:
        """Register a check that a capability switches on."""
        return self._registering(name, advertised, refusal, needs_cuda)

    def _registering(
        self,
        name: str,
        advertised: Callable[[Any], bool] | None = None,
        refusal: Ask | None = None,
        needs_cuda: bool = False,
    ) -> Callable[[Check], Check]:
        def register(check: Check) -> Check:
            self.all.append(
                Property(
                    name=name,
                    about=(inspect.getdoc(check) or "").splitlines()[0],
                    check=check,
                    advertised=advertised,
                    refusal=refusal,
                    needs_cuda=needs_cuda,
                    operation=self._operation,
                )
            )
            return check

        return register


def properties(operation: str | None = None) -> tuple[Property, ...]:
    """All properties of an operation, or of every operation that the registry knows, in the order of a report.

    Those of an operation stand in the package of its name beside this one, as ``PROPERTIES``; an operation without such
    a package has none.

    :raises InvalidParameterError: there is no such operation.
    """
    if operation is not None:
        operations.get(operation)
    found: list[Property] = []
    for name in operations.FOLDERS if operation is None else (operation,):
        home = f"tokendraw.testing.{name}"
        if importlib.util.find_spec(home) is not None:
            found += importlib.import_module(home).PROPERTIES
    return tuple(found)


def has_filter(which: str) -> Callable[[Any], bool]:
    """Whether a filter is applied, per row or to the whole batch."""
    return lambda capabilities: any(name == which for name, _ in capabilities.filters)


def has_mode(mode: LogprobsMode) -> Callable[[Any], bool]:
    """Whether a logprobs mode is served."""
    return lambda capabilities: mode in capabilities.logprobs_modes


def has_counter(capabilities: Capabilities) -> bool:
    """Whether rows may bring seeds of their own."""
    return capabilities.seeding == "counter"
