"""Selects the contenders of a run: each installed plugin without a companion, and the baselines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import tokendraw
from tokendraw import SamplerUnavailableError, TokendrawError
from tokendraw.plugin import Host
from tokendraw.resolution import Candidate, State, detect_host, installed_version
from tokendraw.tools import all_of, find_unsupported, make_call, nearest, one_of
from tokendraw_bench import operations
from tokendraw_bench.baselines import flashinfer
from tokendraw_bench.operation import AnyCell, BenchOperation
from tokendraw_bench.timing.timer import TimedCall


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A contender without a plugin, and its requirements."""

    name: str
    versions: Callable[[], dict[str, str]]
    """Looks up the versions of the distributions that it needs."""
    reason_against: Callable[[Host], str | None]
    """Says why it cannot run on a machine; None if it can."""
    by_default: bool = True
    """Whether it takes part in a run without names."""


def _of_torch(name: str, *, by_default: bool = True, needs_triton: bool = False) -> Baseline:
    """Describe a baseline in torch."""

    def reason_against(host: Host) -> str | None:
        if needs_triton and (host.device_type != "cuda" or installed_version("triton") is None):
            return f"needs Triton and a GPU, found {host.device_type}"
        return None

    return Baseline(
        name=name,
        versions=lambda: {"torch": str(torch.__version__)},
        reason_against=reason_against,
        by_default=by_default,
    )


def _of_flashinfer(name: str, *, by_default: bool = True) -> Baseline:
    return Baseline(
        name=name,
        versions=lambda: {flashinfer.DISTRIBUTION: installed_version(flashinfer.DISTRIBUTION) or ""},
        reason_against=flashinfer.reason_against,
        by_default=by_default,
    )


BASELINES = (
    _of_torch("torch-sort"),
    _of_flashinfer("flashinfer-direct"),
    _of_flashinfer("flashinfer-unfused", by_default=False),
    _of_torch("torch-dense"),
    _of_torch("floor-launch", by_default=False, needs_triton=True),
    _of_torch("floor-scatter", by_default=False, needs_triton=True),
    _of_torch("floor-gather", by_default=False),
    _of_torch("floor-write", by_default=False),
    _of_torch("floor-update", by_default=False),
)
"""See :attr:`tokendraw_bench.operation.BenchOperation.baselines` for the baselines of an operation."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A competitor in a run: a plugin or a baseline."""

    name: str
    versions: Mapping[str, str]
    """Versions by distribution."""
    prepare: Callable[[AnyCell, Any, Any], Sequence[TimedCall]]
    """Makes the calls of a cell from its arguments and inputs: see :data:`tokendraw_bench.operation.Prepare`."""


def select_contenders(
    names: Sequence[str], device: torch.device, operation: str = "sample"
) -> tuple[Contender, ...]:
    """Find contenders by name, in the order of the names; without names, all plugins and baselines.

    :raises SamplerUnavailableError: one of them cannot serve this machine; the reason in words.
    :raises TokendrawError: there is none of a name; the message has the nearest.
    """
    return find_contenders(names, device, operations.get(operation))


def find_contenders(
    names: Sequence[str], device: torch.device, operation: BenchOperation
) -> tuple[Contender, ...]:
    """Find contenders, as :func:`select_contenders` does, for the record of an operation."""
    host = detect_host(str(device))
    candidates = tokendraw.discover(operation=operation.name, host=host, need=operation.need(None))
    if not names:
        plugins = [_plugin(c, device, operation) for c in candidates if c.state is State.AVAILABLE]
        baselines = [
            _baseline(b, operation)
            for b in BASELINES
            if b.by_default and _reason_against(b, operation, host) is None
        ]
        return tuple(plugins + baselines)
    return tuple(_named(name, candidates, host, device, operation) for name in dict.fromkeys(names))


def _named(
    name: str, candidates: Sequence[Candidate], host: Host, device: torch.device, operation: BenchOperation
) -> Contender:
    if "+" in name and operation.name == "sample":
        chosen, _, companion = name.partition("+")
        return split_contender(
            *(_named(part, candidates, host, device, operation) for part in (chosen, companion))
        )
    for baseline in BASELINES:
        if baseline.name == name:
            reason = _reason_against(baseline, operation, host)
            if reason is not None:
                raise SamplerUnavailableError(f"'{name}' cannot be timed on {host}: {reason}.")
            return _baseline(baseline, operation)
    claimants = [candidate for candidate in candidates if candidate.name == name]
    for candidate in claimants:
        if candidate.state is State.AVAILABLE:
            return _plugin(candidate, device, operation)
    if claimants:
        raise SamplerUnavailableError(f"'{name}' cannot be timed on {host}: {claimants[0].reason}.")
    baselines = [baseline.name for baseline in BASELINES if baseline.name in operation.baselines()]
    all_names = [*dict.fromkeys(candidate.name for candidate in candidates), *baselines]
    near = nearest(name, all_names)
    command = "list" if near is None else f"bench --sampler {near}"
    raise TokendrawError(
        f"'{name}' needs to be an installed sampler or a baseline, found {all_of(all_names)}. Try: tokendraw {command}"
    )


def find_unsupported_part(
    operation: BenchOperation, capabilities: Any, cell: AnyCell, arguments: Any, inputs: Any
) -> str | None:
    """Name the part of a cell's call beyond some capabilities; None if they cover the call."""
    probe = _CapabilityProbe(operation, capabilities, cell)
    part: Any = operation.step(probe, cell, arguments)(inputs)
    return None if part is None else str(part)


class _CapabilityProbe:
    """Stand-in for a provider: a method names the part of the call beyond the capabilities, and runs nothing."""

    def __init__(self, operation: BenchOperation, capabilities: Any, cell: AnyCell) -> None:
        self._operation, self._capabilities = operation.name, capabilities
        self._need = operation.need(cell)

    def __getattr__(self, method: str) -> Callable[..., str | None]:
        def unsupported(*arguments: Any, **options: Any) -> str | None:
            call = make_call(self._operation, method, *arguments, **options)
            return find_unsupported(call, self._capabilities, operation=self._operation, need=self._need)

        return unsupported


def _plugin(candidate: Candidate, device: torch.device, operation: BenchOperation) -> Contender:
    """Make the contender of a plugin: loaded as users load it, without a companion."""
    capabilities: Any = candidate.capabilities(operation.name)

    @functools.cache
    def load(need: Any) -> Any:
        if operation.load is not None:
            return operation.load(candidate.name, device, need)
        return tokendraw.load(operation.name, candidate.name, device=device, need=need)

    def prepare(cell: AnyCell, arguments: Any, inputs: Any) -> tuple[TimedCall]:
        try:
            provider = load(operation.need(cell))
        except SamplerUnavailableError as error:  # its message is for those who asked for one to draw with
            reasons = [decision.reason for decision in error.decisions if decision.name == candidate.name]
            raise SamplerUnavailableError(reasons[0] if reasons else str(error)) from error
        unsupported = find_unsupported_part(operation, capabilities, cell, arguments, inputs)
        if unsupported is not None:
            raise SamplerUnavailableError(f"it does not serve {unsupported}")
        draw = operation.step(provider, cell, arguments)
        return (
            TimedCall(
                draw=draw,
                graph_safe=capabilities.graph_safe,
                renew=functools.partial(operation.renew, arguments),
            ),
        )

    versions = {candidate.distribution: candidate.version}
    if candidate.info and candidate.info.upstream and candidate.upstream_version:
        versions[candidate.info.upstream.distribution] = candidate.upstream_version
    return Contender(name=candidate.name, versions=versions, prepare=prepare)


def split_contender(chosen: Contender, companion: Contender) -> Contender:
    """Make a contender that draws the special rows of a cell by a companion, and the batch by the chosen sampler.

    The chosen sampler also draws the special rows, as common ones, as in a batch that the core splits.
    """

    def prepare(cell: AnyCell, arguments: Any, inputs: Any) -> tuple[TimedCall]:
        from tokendraw_bench.operations.sample import split

        rows, common, special = split(cell, inputs.device)
        whole = chosen.prepare(common[0], common[1], inputs)[0]
        part = companion.prepare(special[0], special[1], inputs.index_select(0, rows))[0]

        def draw(logits: Tensor) -> object:
            output: Any = whole.draw(logits)
            row_output: Any = part.draw(logits.index_select(0, rows))
            token_ids = output.token_ids.index_copy(0, rows, row_output.token_ids)
            return token_ids, output.valid.index_copy(0, rows, row_output.valid), row_output.logprobs

        return (TimedCall(draw=draw, graph_safe=whole.graph_safe and part.graph_safe),)

    return Contender(
        name=f"{chosen.name}+{companion.name}",
        versions={**chosen.versions, **companion.versions},
        prepare=prepare,
    )


def _baseline(baseline: Baseline, operation: BenchOperation) -> Contender:
    prepare = operation.baselines()[baseline.name]
    return Contender(
        name=baseline.name,
        versions=baseline.versions(),
        prepare=lambda cell, arguments, inputs: prepare(cell, arguments),
    )


def _reason_against(baseline: Baseline, operation: BenchOperation, host: Host) -> str | None:
    """Say why a baseline cannot be timed on a host; None if it can."""
    if baseline.name in operation.baselines():
        return baseline.reason_against(host)
    names = [name for name in operations.names() if baseline.name in operations.get(name).baselines()]
    return f"needs the operation {one_of(names)}, found {operation.name}"
