"""A property of a provider: its check, its capability, and the refusal required without the capability."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokendraw.plugin import Call
from tokendraw_testing.kit.trial import Trial

Check = Callable[[Any, Trial], str]
"""Checks a property and returns what was looked at, in words; raises Violation. Takes the operation's own
:class:`tokendraw_testing.kit.subject.OperationSubject`."""


@dataclass(frozen=True)
class Refusal:
    """A request that a provider without a capability has to refuse."""

    need: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the need beside the plainest need."""
    call: Callable[[Any], Call] | None = None
    """Prepares the call to be refused, for the operation's subject; None: the need itself is refused."""


@dataclass(frozen=True, kw_only=True)
class Property:
    """A demand on providers, and the line of a report about it.

    :ivar name: Name of the line, by which ``--only`` picks it.
    :ivar about: States the demand in a sentence.
    :ivar check: Function that checks a provider and describes what it looked at; raises on a failure.
    :ivar advertised: Predicate of the capabilities that says whether they promise the property; None: every provider
        has to have the property.
    :ivar refusal: Request to a provider that does not promise the property; None: the line is left out for such a
        provider.
    :ivar needs_cuda: Whether the check needs a CUDA device, and is not run elsewhere.
    :ivar operation: Operation of these capabilities. A provider that does not offer it has no line.
    :ivar is_long: Whether the check takes longer than most: several processes begin with long checks.
    """

    name: str
    about: str
    check: Check
    advertised: Callable[[Any], bool] | None = None
    refusal: Refusal | None = None
    needs_cuda: bool = False
    operation: str
    is_long: bool = False


class Properties:
    """Collects the properties of one module, in order of definition."""

    def __init__(self, operation: str) -> None:
        self.all: list[Property] = []
        self._operation = operation

    def required(self, name: str, *, is_long: bool = False) -> Callable[[Check], Check]:
        """Register a check for all providers; its docstring states the demand."""
        return self._registering(name, is_long=is_long)

    def advertised(
        self,
        name: str,
        advertised: Callable[[Any], bool],
        refusal: Refusal | None = None,
        *,
        needs_cuda: bool = False,
        is_long: bool = False,
    ) -> Callable[[Check], Check]:
        """Register a check for providers with a capability."""
        return self._registering(name, advertised, refusal, needs_cuda, is_long)

    def _registering(
        self,
        name: str,
        advertised: Callable[[Any], bool] | None = None,
        refusal: Refusal | None = None,
        needs_cuda: bool = False,
        is_long: bool = False,
    ) -> Callable[[Check], Check]:
        def register(check: Check) -> Check:
            self.all.append(
                Property(
                    name=name,
                    about=(inspect.getdoc(check) or name).splitlines()[0],
                    check=check,
                    advertised=advertised,
                    refusal=refusal,
                    needs_cuda=needs_cuda,
                    is_long=is_long,
                    operation=self._operation,
                )
            )
            return check

        return register
