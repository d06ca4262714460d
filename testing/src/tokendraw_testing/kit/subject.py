"""The provider under test with its capabilities: built by itself, without a companion."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, Never, Self

import torch

from tokendraw import InvalidParameterError, SamplerUnavailableError
from tokendraw.plugin import API_VERSION, Call, Host, HostCapabilities, PluginInfo
from tokendraw.resolution import Candidate, Choice, State, decide, detect_host
from tokendraw.tools import (
    InstalledPlugin,
    dispatch_call,
    find_operation,
    make_call,
    operation_names,
    random_state_kept,
    run_call,
)
from tokendraw_testing.kit.effort import Effort
from tokendraw_testing.kit.property import Refusal, find, properties
from tokendraw_testing.kit.report import Place, places, width_class
from tokendraw_testing.kit.trial import Violation

Build = Callable[[str, Any], Any]
"""Makes what serves an operation, as the hook ``tokendraw_build``: (operation, need)."""
_NO_FIELDS: Mapping[str, Any] = MappingProxyType({})


class Subject:
    """A plugin's provider and its capabilities on one device.

    :param name: its name in reports.
    :param capabilities: what it advertises, by operation: that decides what it is tested for.
    :param device: where it computes.
    :param build: makes what serves an operation, for a need; called once for every need that the kit comes up with.
    :param quick: fewer draws and vocabularies.
    :param seed: of everything random in the run. A run repeats itself bit by bit, as far as the provider does.
    :param effort: sizes of one's own in place of quick ones or full ones: :meth:`Effort.tiny` suits kernels in an
        interpreter.
    :param need: fields of a need that hold throughout the run, such as ``{"gumbel_dtype": "fp64"}``. The operations
        whose needs have no such fields are left out.
    :param expected_failures: reason by the name of a property that is known to fail, as in the plugin's description.
    :raises InvalidParameterError: there is no property of one of these names.
    """

    def __init__(
        self,
        name: str,
        *,
        capabilities: Mapping[str, HostCapabilities],
        device: torch.device | str,
        build: Build,
        quick: bool = False,
        seed: int = 0,
        effort: Effort | None = None,
        need: Mapping[str, Any] = _NO_FIELDS,
        expected_failures: Mapping[str, str] = _NO_FIELDS,
    ) -> None:
        self.name = name
        self.need = need
        self.expected_failures = expected_failures
        known = {prop.name for prop in properties()} if expected_failures else set()
        for unknown in expected_failures.keys() - known:
            raise InvalidParameterError(
                f"'expected_failures' of {name!r} needs names of properties, found {unknown!r}. "
                "See `tokendraw check --list`."
            )
        self.capabilities = {name: limits for name, limits in capabilities.items() if _has_fields(name, need)}
        self.device = torch.device(device)
        self.effort = effort or Effort.of(quick=quick, device_type=self.device.type)
        self.seed = seed

        @functools.cache
        def build_once(operation: str, need: Any) -> Any:
            with random_state_kept(self.device):  # so that the order of lines makes no difference
                return build(operation, need)

        self._build = build_once
        self.uses = 0
        """Number of providers taken for calls: a line without any has checked nothing."""
        self.again: Callable[[], Subject] | None = None
        """Makes the same subject in another process; None for a subject that is not installed."""

    def __repr__(self) -> str:
        return f"<Subject {self.name!r} on {self.device}>"

    @classmethod
    def installed(
        cls,
        name: str,
        *,
        device: torch.device | str | None = None,
        quick: bool = False,
        seed: int = 0,
        operation: str | None = None,
        need: Mapping[str, Any] = _NO_FIELDS,
    ) -> Self:
        """Find an installed plugin by name, with the operations served on this machine.

        :param device: None: the accelerator if torch sees one, else the CPU.
        :param operation: one that it has to serve here; None: any.
        :param need: as above; it has to meet that, too.
        :raises SamplerUnavailableError: it is not installed, or cannot serve this machine; the reason in words.
        :raises InvalidParameterError: there is no such operation.
        """
        plugin = InstalledPlugin(name, device, "the conformance kit")
        required = None if operation is None else find_operation(operation).name
        capabilities: dict[str, HostCapabilities] = {}
        expected_failures: Mapping[str, str] = _NO_FIELDS
        reasons: dict[str | None, str | None] = {}
        for served in [each for each in operation_names() if _has_fields(each, need)]:
            for candidate in plugin.candidates(served, replace(plain_need(served), **need)):
                if candidate.state is State.AVAILABLE:
                    capabilities[served] = plugin.capabilities(served)
                    expected_failures = candidate.info.expected_failures if candidate.info else {}
                else:
                    reasons.setdefault(required and served, candidate.reason)
        if not capabilities or required not in (None, *capabilities):
            reason = reasons.get(required) or "no plugin of that name is installed"
            raise SamplerUnavailableError(f"{name!r} cannot be checked on {plugin.host}: {reason}.")
        options: dict[str, Any] = {"device": plugin.device, "quick": quick, "seed": seed, "need": dict(need)}
        subject = cls(
            name,
            capabilities=capabilities,
            build=plugin.build,
            expected_failures=expected_failures,
            **options,
        )
        subject.again = functools.partial(cls.installed, name, operation=operation, **options)
        return subject

    @property
    def host(self) -> Host:
        """Return the facts about the subject's device."""
        return detect_host(str(self.device))

    def built(self, operation: str, need: Any = None) -> Any:
        """Build the provider of an operation, once for each need; None: that of :meth:`usual_need`.

        :raises PluginError: it did not build, or its proof failed.
        """
        self.uses += 1
        return self._build(operation, need or self.usual_need(operation))

    def usual_need(self, operation: str) -> Any:
        """Return the plainest need within the capabilities, with the fixed fields of the run."""
        return replace(plain_need(operation, self.capabilities[operation]), **self.need)


class OperationSubject:
    """A subject in a single operation, for the checks of the operation.

    The kit's part about an operation extends it by ways to call.
    """

    operation: ClassVar[str]

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.capabilities: Any = subject.capabilities[self.operation]
        self.device, self.effort = subject.device, subject.effort
        self.looked = set[Place]()  # by ``make``

    @classmethod
    def plain_need(cls, capabilities: Any = None) -> Any:
        """Return the plainest need within the capabilities; without capabilities, a need that most providers meet."""
        return find_operation(cls.operation).need()

    @property
    def usual_need(self) -> Any:
        """Return the need of :meth:`Subject.usual_need`."""
        return self.subject.usual_need(self.operation)

    @property
    def dtypes(self) -> list[torch.dtype]:
        """Return the advertised dtypes."""
        return [getattr(torch, name) for name in self.capabilities.dtypes]

    def built(self, need: Any = None) -> Any:
        """Build the provider, as :meth:`Subject.built` does."""
        return self.subject.built(self.operation, need)

    @classmethod
    def new_call(cls, method: str, *arguments: Any, **options: Any) -> Call:
        """Make the call of a provider's method with some arguments."""
        return make_call(cls.operation, method, *arguments, **options)

    @torch.no_grad()
    def make(self, call: Call, need: Any = None) -> Any:
        """Make a call without dispatch and hold the output against the contract.

        :param need: of who makes it; None: the usual one.
        :raises Violation: the output has a wrong form, or values that cannot be.
        """
        need = need or self.usual_need
        output, reason = run_call(call, self.built(need), need=need)
        if reason is not None:
            raise Violation(f"a call needs to return {reason}")
        logits = getattr(call, "logits", None)
        if logits is not None and len(logits):
            dtype = str(logits.dtype).removeprefix("torch.")
            self.looked.add(Place(self.call_name(call), dtype, width_class(logits.shape[1])))
        return output

    def call_names(self) -> tuple[str, ...]:
        """Name the calls that a report tells apart."""
        return (self.operation,)

    def call_name(self, call: Any) -> str:
        """Return the name of a call among :meth:`call_names`."""
        return self.operation

    def places(self) -> tuple[Place, ...]:
        """List the places where rows of logits could be looked at, in the order of a report."""
        if not hasattr(self.capabilities, "max_vocab_size"):
            return ()
        return places(self.call_names(), self.capabilities.dtypes, self.capabilities.max_vocab_size)


def _has_fields(operation: str, need: Mapping[str, Any]) -> bool:
    return need.keys() <= {field.name for field in fields(find_operation(operation).need)}


def plain_need(operation: str, capabilities: Any = None) -> Any:
    """Return the plainest need of an operation, as :meth:`OperationSubject.plain_need` does."""
    kit = find(operation)
    return kit.view.plain_need(capabilities) if kit else find_operation(operation).need()


class _Tripwire:
    """Stands in for the provider: any method call is a violation."""

    def __getattr__(self, method: str) -> Callable[..., Never]:
        def reached(*arguments: object, **options: object) -> Never:
            raise Violation(f"a call beyond the capabilities needs to be refused, found {method!r} called")

        return reached


def require_refusal(subject: OperationSubject, ask: Refusal) -> str:
    """Require that the core refuses a request, and return the reason: the advice of the message is not for the kit.

    :raises Violation: it does not refuse.
    """
    need, plugin, operation = replace(subject.usual_need, **ask.need), subject.subject, subject.operation
    info = PluginInfo(name=plugin.name, api_version=API_VERSION, priority=0, operations=plugin.capabilities)
    candidate = Candidate(name=plugin.name, state=State.LOADED, info=info)
    try:
        choice = Choice(sampler=plugin.name)
        resolution = decide([candidate], plugin.host, need, choice, operation=operation)
        if ask.call is None:
            raise Violation(f"{need} needs to be refused, found it granted")
        dispatch_call(
            ask.call(subject),
            _Tripwire(),
            operation=operation,
            resolution=resolution,
            capabilities=subject.capabilities,
            device=subject.device,
            need=need,
        )
    except SamplerUnavailableError as error:
        return str(error).partition(". ")[0] + "."
    raise AssertionError("unreachable: the tripwire raises")


def require_unadvertised(
    subject: OperationSubject, refusals: Iterable[tuple[Callable[[Any], bool], Refusal]]
) -> str:
    """Require a refusal for each unadvertised capability; return their number, to follow other words."""
    asked = [refusal for is_advertised, refusal in refusals if not is_advertised(subject.capabilities)]
    for refusal in asked:
        require_refusal(subject, refusal)
    plural = "s" * (len(asked) > 1)
    return f"; {len(asked)} request{plural} beyond the capabilities refused" if asked else ""
