"""The provider under test with its capabilities: built by itself, without a companion.

Behind it stand its views by operation, with ways to call, and the requests that have to be refused.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, Never, Self

import numpy as np
import torch

import tokendraw
from tokendraw import SamplingMetadata, SamplingParams, plugin, resolution, speculative, tools
from tokendraw.plugin import Call, Capabilities, DraftKind, GumbelDtype, LogprobsMode, VerifyMode
from tokendraw_testing.kit.effort import Effort
from tokendraw_testing.kit.property import Refusal, find, properties
from tokendraw_testing.kit.report import Place, places, width_class
from tokendraw_testing.kit.trial import Violation
from tokendraw_testing.reference import Array

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
        capabilities: Mapping[str, plugin.HostCapabilities],
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
            raise tokendraw.InvalidParameterError(
                f"'expected_failures' of {name!r} needs names of properties, found {unknown!r}. "
                "See `tokendraw check --list`."
            )
        self.capabilities = {name: limits for name, limits in capabilities.items() if _has_fields(name, need)}
        self.device = torch.device(device)
        self.effort = effort or Effort.of(quick=quick, device_type=self.device.type)
        self.seed = seed

        @functools.cache
        def build_once(operation: str, need: Any) -> Any:
            with tools.random_state_kept(self.device):  # so that the order of lines makes no difference
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
        found = tools.InstalledPlugin(name, device, "the conformance kit")
        required = None if operation is None else tools.find_operation(operation).name
        capabilities: dict[str, plugin.HostCapabilities] = {}
        expected_failures: Mapping[str, str] = _NO_FIELDS
        reasons: dict[str | None, str | None] = {}
        for served in [each for each in tools.operation_names() if _has_fields(each, need)]:
            for candidate in found.candidates(served, replace(plain_need(served), **need)):
                if candidate.state is resolution.State.AVAILABLE:
                    capabilities[served] = found.capabilities(served)
                    expected_failures = candidate.info.expected_failures if candidate.info else {}
                else:
                    reasons.setdefault(required and served, candidate.reason)
        if not capabilities or required not in (None, *capabilities):
            reason = reasons.get(required) or "no plugin of that name is installed"
            raise tokendraw.SamplerUnavailableError(f"{name!r} cannot be checked on {found.host}: {reason}.")
        options: dict[str, Any] = {"device": found.device, "quick": quick, "seed": seed, "need": dict(need)}
        subject = cls(
            name,
            capabilities=capabilities,
            build=found.build,
            expected_failures=expected_failures,
            **options,
        )
        subject.again = functools.partial(cls.installed, name, operation=operation, **options)
        return subject

    @property
    def host(self) -> plugin.Host:
        """Return the facts about the subject's device."""
        return resolution.detect_host(str(self.device))

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
        return tools.find_operation(cls.operation).need()

    @property
    def usual_need(self) -> Any:
        return self.subject.usual_need(self.operation)

    @property
    def dtypes(self) -> list[torch.dtype]:
        return [getattr(torch, name) for name in self.capabilities.dtypes]

    def built(self, need: Any = None) -> Any:
        return self.subject.built(self.operation, need)

    @classmethod
    def new_call(cls, method: str, *arguments: Any, **options: Any) -> Call:
        return tools.make_call(cls.operation, method, *arguments, **options)

    @torch.no_grad()
    def make(self, call: Call, need: Any = None) -> Any:
        """Make a call without dispatch and hold the output against the contract.

        :param need: of who makes it; None: the usual one.
        :raises Violation: the output has a wrong form, or values that cannot be.
        """
        need = need or self.usual_need
        output, reason = tools.run_call(call, self.built(need), need=need)
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


class RowSubject(OperationSubject):
    """A subject in an operation on rows of logits."""

    capabilities: Capabilities
    _need: Mapping[str, Any] = _NO_FIELDS

    @classmethod
    def plain_need(cls, capabilities: Capabilities | None = None) -> tokendraw.Need:
        """Return the plainest need within the capabilities; without capabilities, a need of all filter orders."""
        if capabilities is None:
            return tokendraw.Need(filter_orders=plugin.FILTER_ORDERS)
        return tokendraw.Need(
            logprobs_mode=(*capabilities.logprobs_modes, "raw_logprobs")[0],
            filter_orders=capabilities.filter_orders,
            gumbel_dtype=(*capabilities.gumbel_dtypes, "fp32")[0],
        )

    @property
    def usual_need(self) -> tokendraw.Need:
        need: tokendraw.Need = super().usual_need
        return replace(need, **self._need)

    def need(self, **fields: Any) -> tokendraw.Need:
        """Return the usual need with these fields, such as ``logprobs_mode``; None: the usual value."""
        return replace(self.usual_need, **{name: each for name, each in fields.items() if each is not None})

    def call(self, method: str, *arguments: Any, **need: Any) -> Any:
        """Make one call with ready arguments, and check the form of the output; ``need`` as :meth:`need` takes it."""
        return self.make(self.new_call(method, *arguments), self.need(**need))

    def least_call(self, params: SamplingParams) -> Call:
        metadata = SamplingMetadata.from_params([params], device=self.device, positions=[0])
        ids = [torch.zeros(1, dtype=torch.int64, device=self.device)] * (self.operation == "score")
        return self.new_call(self.operation, torch.zeros(1, 4, device=self.device), *ids, metadata)

    def with_need(self, **fields: Any) -> Self:
        """Copy the view for calls of a need with these fields; the copy notes places beside the view's own."""
        view = copy.copy(self)
        view._need = fields
        return view

    @property
    def filter_order(self) -> plugin.FilterOrder:
        """Return the first of :func:`crossed_orders`."""
        return crossed_orders(self.capabilities)[0]

    @property
    def gumbel_dtype(self) -> GumbelDtype:
        return self.need().gumbel_dtype

    @property
    def noise_dtypes(self) -> tuple[GumbelDtype, ...]:
        """List the noise precisions of a run: all advertised precisions, unless the need fixes a single precision."""
        fixed: GumbelDtype | None = self.subject.need.get("gumbel_dtype")
        return self.capabilities.gumbel_dtypes if fixed is None else (fixed,)

    def has(self, which: plugin.Filter) -> bool:
        return any(name == which for name, _ in self.capabilities.filters)


class SampleSubject(RowSubject):
    """A subject in the operation ``sample``."""

    operation = "sample"

    def sample(
        self,
        logits: torch.Tensor | Array,
        params: SamplingParams | Sequence[SamplingParams],
        positions: Any = None,
        *,
        row_index: Any = None,
        **need: Any,
    ) -> tokendraw.SamplerOutput:
        """Make one call on the subject's device and check the form of the output.

        :param logits: [B, V], an array or a tensor anywhere.
        :param params: one for every row, or one for all.
        :param positions: [B]; None: 0, 1, 2 ... where a row has a seed.
        :param need: as :meth:`need` takes it.
        """
        logits = torch.as_tensor(logits).to(self.device)
        params = [params] * len(logits) if isinstance(params, SamplingParams) else params
        if positions is None and any(p.seed is not None for p in params):
            positions = torch.arange(len(logits))
        metadata = SamplingMetadata.from_params(
            params, device=self.device, positions=positions, row_index=row_index
        )
        output: tokendraw.SamplerOutput = self.call("sample", logits, metadata, **need)
        return output

    def tokens(self, *args: Any, **kwargs: Any) -> Array:
        """Make the call of :meth:`sample` and return its ids, [B] int64 on the host."""
        return np.asarray(self.sample(*args, **kwargs).token_ids.cpu())


class ScoreSubject(RowSubject):
    """A subject in the operation ``score``."""

    operation = "score"

    def score(
        self,
        logits: torch.Tensor,
        token_ids: Sequence[int],
        params: Sequence[SamplingParams],
        mode: LogprobsMode | None = None,
        positions: Sequence[int] | None = None,
    ) -> tokendraw.ScoreOutput:
        """Make one call on the subject's device and check the form of the output.

        :param logits: [B, V], on any device; ``token_ids`` and ``params`` one a row.
        :param positions: [B]; None: 0, 1, 2 ...
        """
        ids = torch.tensor(token_ids, dtype=torch.int64, device=self.device)
        positions = range(len(logits)) if positions is None else positions
        metadata = SamplingMetadata.from_params(params, device=self.device, positions=positions)
        output: tokendraw.ScoreOutput = self.call(
            "score", logits.to(self.device), ids, metadata, logprobs_mode=mode
        )
        return output


class VerifySubject(RowSubject):
    """A subject in the operation ``verify``."""

    operation = "verify"
    capabilities: plugin.VerifyCapabilities

    @property
    def ways(self) -> list[tuple[VerifyMode, DraftKind]]:
        """List every mode with every kind of drafts."""
        return list(itertools.product(self.capabilities.verify_modes, self.capabilities.draft_kinds))

    @property
    def outer_ways(self) -> list[tuple[VerifyMode, DraftKind]]:
        """Return the first and the last way, for checks that hardly depend on the way."""
        return self.ways[:: max(1, len(self.ways) - 1)]

    def cycle_dtypes(self) -> Iterator[str]:
        """Yield the advertised dtypes in an endless cycle, for checks of many similar cases."""
        return itertools.cycle(self.capabilities.dtypes)

    def upload(self, rows: Array, dtype: str) -> torch.Tensor:
        """Put rows on the device, in a dtype by its torch name."""
        return torch.from_numpy(rows).to(getattr(torch, dtype)).to(self.device)

    def upload_draft(self, rows: Array, dtype: str, kind: DraftKind) -> torch.Tensor:
        """Put rows of drafts on the device: logits in the dtype, probabilities in float32."""
        return self.upload(rows, dtype if kind == "logits" else "float32")

    def arguments(
        self,
        target: torch.Tensor,
        ids: Sequence[Sequence[int]],
        kind: DraftKind,
        rows: torch.Tensor | None,
        params: Sequence[SamplingParams],
        first: Sequence[int],
    ) -> tuple[torch.Tensor, tokendraw.Drafts, SamplingMetadata]:
        """Lay out the arguments of a verification on the device, of requests with drafts ``ids`` and first positions.

        :param rows: [L - B, V], by kind.
        """
        flat, size = [token for tokens in ids for token in tokens], target.shape[1]
        drafts = tokendraw.Drafts.from_counts(
            torch.tensor(flat, dtype=torch.int64, device=self.device),
            [len(tokens) for tokens in ids],
            draft_probs=rows if kind == "probs" else None,
            draft_logits=rows if kind == "logits" else None,
            any_placeholder=not all(0 <= token < size for token in flat),
        )
        offsets, num_rows = drafts.cu_num_logits, len(flat) + len(ids)
        start = torch.tensor(first, dtype=torch.int64, device=self.device)
        metadata = SamplingMetadata.from_params(
            params,
            device=self.device,
            positions=speculative.row_positions(offsets, start, num_rows),
            row_index=speculative.row_index(offsets, num_rows),
        )
        return target, drafts, metadata

    def least_call(
        self,
        params: SamplingParams,
        mode: VerifyMode | None = None,
        kind: DraftKind | None = None,
        ragged: bool = False,
        placeholder: bool = False,
    ) -> Call:
        """Make a call of two requests with a draft each, or only the first with a draft.

        :param mode: None: one that is advertised, as for ``kind``.
        """
        c, ids = self.capabilities, [[-1 if placeholder else 0], [0] * (not ragged)]
        rows = torch.full((sum(map(len, ids)), 4), 0.25, device=self.device)
        target, draft_kind = torch.zeros(len(rows) + 2, 4, device=self.device), (*c.draft_kinds, "chosen")[0]
        arguments = self.arguments(target, ids, kind or draft_kind, rows, [params] * 2, [0, 0])
        return self.new_call("verify", *arguments, mode=mode or (*c.verify_modes, "rejection")[0])

    def verify_ids(
        self,
        target: torch.Tensor,
        ids: Sequence[Sequence[int]],
        way: tuple[VerifyMode, DraftKind],
        rows: torch.Tensor | None,
        params: Sequence[SamplingParams] | None = None,
        first: Sequence[int] | None = None,
        **need: Any,
    ) -> tokendraw.VerifyOutput:
        """Verify the drafts ``ids`` of each request, by default of plain requests at position 0."""
        params, first = params or [SamplingParams()] * len(ids), first or [0] * len(ids)
        return self.verify(*self.arguments(target, ids, way[1], rows, params, first), way[0], **need)

    def verify(
        self,
        target_logits: torch.Tensor,
        drafts: tokendraw.Drafts,
        metadata: SamplingMetadata,
        mode: VerifyMode,
        **need: Any,
    ) -> tokendraw.VerifyOutput:
        """Make one verification on the subject's device and check the form of the output."""
        call = self.new_call("verify", target_logits, drafts, metadata, mode=mode)
        output: tokendraw.VerifyOutput = self.make(call, self.need(**need))
        return output

    def call_names(self) -> tuple[str, ...]:
        """Name the modes, and drafts that are drawn."""
        return (*(f"verify {mode}" for mode in self.capabilities.verify_modes), "verify draft")

    def call_name(self, call: Any) -> str:
        """Return the mode of a verification, or ``verify draft``."""
        return f"verify {getattr(call, 'mode', 'draft')}"


def crossed_orders(capabilities: Capabilities) -> tuple[plugin.FilterOrder, ...]:
    """List the advertised filter orders to cross with everything else; ``temperature_last`` has a line of its own."""
    orders = tuple(order for order in capabilities.filter_orders if order != "temperature_last")
    return orders or capabilities.filter_orders or ("top_k_first",)


def with_seeds(metadata: SamplingMetadata, seeds: Sequence[int]) -> SamplingMetadata:
    """Put seeds in [0, 2**64) in place of those of the requests: to check each of thousands takes seconds."""
    column = torch.from_numpy(np.array(seeds, np.uint64).view(np.int64))
    return replace(metadata, seed=column.to(metadata.device))


def row_refusal(need: Mapping[str, Any] = _NO_FIELDS, **params: Any) -> Refusal:
    """Make the refusal of a row with some parameters; ``need`` has the fields of the need that belong to it."""
    return Refusal(need, lambda subject: subject.least_call(SamplingParams(**params)))


def draft_refusal(**options: Any) -> Refusal:
    """Make the refusal of a verification; the options are those of :meth:`VerifySubject.least_call`."""
    return Refusal(call=lambda subject: subject.least_call(SamplingParams(), **options))


def _has_fields(operation: str, need: Mapping[str, Any]) -> bool:
    return need.keys() <= {field.name for field in fields(tools.find_operation(operation).need)}


def plain_need(operation: str, capabilities: Any = None) -> Any:
    """Return the plainest need of an operation, as :meth:`OperationSubject.plain_need` does."""
    kit = find(operation)
    return kit.view.plain_need(capabilities) if kit else tools.find_operation(operation).need()


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
    need, tested, operation = replace(subject.usual_need, **ask.need), subject.subject, subject.operation
    info = plugin.PluginInfo(
        name=tested.name, api_version=plugin.API_VERSION, priority=0, operations=tested.capabilities
    )
    candidate = resolution.Candidate(name=tested.name, state=resolution.State.LOADED, info=info)
    try:
        choice = resolution.Choice(sampler=tested.name)
        decided = resolution.decide([candidate], tested.host, need, choice, operation=operation)
        if ask.call is None:
            raise Violation(f"{need} needs to be refused, found it granted")
        tools.dispatch_call(
            ask.call(subject),
            _Tripwire(),
            operation=operation,
            resolution=decided,
            capabilities=subject.capabilities,
            device=subject.device,
            need=need,
        )
    except tokendraw.SamplerUnavailableError as error:
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
