"""Properties of providers, refusals, and the kit of each operation: ``KIT`` in the module named like the operation."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from numpy.random import Generator

from tokendraw import InvalidParameterError
from tokendraw.plugin import Call
from tokendraw.tools import find_operation, one_of, operation_names
from tokendraw_testing.kit.trial import Trial

Check: TypeAlias = Callable[[Any, Trial], str]
"""Checks a property and returns what was looked at, in words; raises Violation. Takes the operation's own
:class:`tokendraw_testing.kit.subject.OperationSubject`."""
Fuzz: TypeAlias = Callable[[Any, Generator, Trial], str]
"""Makes one random case from the generator alone, looks at it as a property's check does, and says what it looked at,
in words; raises Violation with the whole case in words."""


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

    def required(self, name: str, **options: Any) -> Callable[[Check], Check]:
        """Register a check for all providers; its docstring states the demand."""
        return self.advertised(name, None, **options)

    def advertised(
        self,
        name: str,
        advertised: Callable[[Any], bool] | None,
        refusal: Refusal | None = None,
        **options: Any,
    ) -> Callable[[Check], Check]:
        """Register a check for providers with a capability; options are further fields of the property."""

        def register(check: Check) -> Check:
            about = (inspect.getdoc(check) or name).splitlines()[0]
            made = Property(name=name, about=about, check=check, operation=self._operation, **options)
            self.all.append(replace(made, advertised=advertised, refusal=refusal))
            return check

        return register

    def promised(self, name: str, flag: str) -> Callable[[Check], Check]:
        """Register a check on a CUDA device for providers with a flag among their capabilities."""
        return self.advertised(name, lambda c: getattr(c, flag), Refusal({flag: True}), needs_cuda=True)


def offers(field: str, entry: object) -> Callable[[Any], bool]:
    """Make the predicate of capabilities with an entry in one of their fields."""
    return lambda capabilities: entry in getattr(capabilities, field)


@dataclass(frozen=True, kw_only=True)
class OperationKit:
    """Properties and random cases of an operation."""

    view: type[Any]
    """Class of the properties' subject: a :class:`tokendraw_testing.kit.subject.OperationSubject`."""
    properties: tuple[Property, ...]
    """Properties in the order of a report: exact demands, statistics, then optional capabilities."""
    fuzz: Fuzz | None = None
    """Checks a random case within the capabilities; None: the kit has no random cases of the operation."""


@functools.cache
def find(operation: str) -> OperationKit | None:
    """Look up the kit of an operation, or make it of functions of tensors; None if neither is there."""
    has_own = importlib.util.find_spec(f"tokendraw_testing.{operation}") is not None
    functions = {} if has_own else find_operation(operation).functions()
    if not (has_own or functions):
        return None
    module: Any = importlib.import_module(f"tokendraw_testing.{operation if has_own else 'tensor_functions'}")
    kit: OperationKit = module.KIT if has_own else module.kit_of(operation, functions)
    return kit


def properties(operation: str | None = None) -> tuple[Property, ...]:
    """List the properties of an operation, in the order of a report.

    :param operation: None: of every operation of the core's registry, one after the other.
    :raises InvalidParameterError: there is no such operation.
    """
    names = operation_names() if operation is None else (find_operation(operation).name,)
    return tuple(prop for name in names if (kit := find(name)) for prop in kit.properties)


def select_properties(
    only: Iterable[str] | None = None, operation: str | None = None
) -> tuple[Property, ...]:
    """Select properties by name, in the order of a report.

    :param only: names, or one name; None: all.
    :param operation: take those of this operation alone; None: of every one.
    :raises InvalidParameterError: there is no such operation, or no property of one of the names; the message has the
        nearest.
    """
    by_name = {prop.name: prop for prop in properties(operation)}
    wanted = by_name if only is None else [only] if isinstance(only, str) else list(only)
    for name in wanted:
        if name not in by_name:
            near = [repr(each) for each in difflib.get_close_matches(name, by_name, n=3)]
            advice = f"Nearest: {one_of(near)}." if near else "See `tokendraw check --list`."
            raise InvalidParameterError(f"'only' needs the name of a property, found {name!r}. {advice}")
    return tuple(prop for name, prop in by_name.items() if name in wanted)
