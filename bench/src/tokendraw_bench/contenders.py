"""Selects who is timed: the installed providers, each by itself, and the baselines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import tokendraw
from tokendraw import SamplerUnavailableError, TokendrawError
from tokendraw.plugin import Host
from tokendraw.resolution import Candidate, State, detect_host, installed_version
from tokendraw.tools import all_of, find_unsupported, make_call, nearest, one_of
from tokendraw_bench import operations
from tokendraw_bench.baselines import flashinfer
from tokendraw_bench.operation import AnyCell, BenchOperation
from tokendraw_bench.timing.timer import Call


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A contender that is no plugin, and what it needs to run."""

    name: str
    versions: Callable[[], dict[str, str]]
    """Finds the versions of what it needs, by distribution."""
    lacks: Callable[[Host], str | None]
    """Says what a machine lacks that it needs, in words, or None."""


BASELINES = (
    Baseline(
        name="torch-sort",
        versions=lambda: {"torch": str(torch.__version__)},
        lacks=lambda host: None,
    ),
    Baseline(
        name="flashinfer-direct",
        versions=lambda: {flashinfer.DISTRIBUTION: installed_version(flashinfer.DISTRIBUTION) or ""},
        lacks=flashinfer.lacks,
    ),
)
"""The operations say what each can do: :attr:`tokendraw_bench.operation.BenchOperation.baselines`."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """Something that is timed."""

    name: str
    versions: Mapping[str, str]
    """Versions of the distributions that it comes from."""
    prepare: Callable[[AnyCell, Any, Any], Sequence[Call]]
    """Makes what is timed of a cell, its arguments and one set of its inputs: as
    :data:`tokendraw_bench.operation.Prepare` says."""


def chosen(names: Sequence[str], device: torch.device, operation: str = "sample") -> tuple[Contender, ...]:
    """Find the contenders of these names, in this order; of no name, all providers and baselines that there are.

    :raises SamplerUnavailableError: one of them cannot serve this machine; the reason in words.
    :raises TokendrawError: there is none of a name; the message has the nearest.
    """
    return contenders(names, device, operations.get(operation))


def contenders(names: Sequence[str], device: torch.device, timed: BenchOperation) -> tuple[Contender, ...]:
    """Find contenders, as :func:`chosen` does, by the record of what is timed."""
    host = detect_host(str(device))
    candidates = tokendraw.discover(operation=timed.name, host=host, need=timed.need(None))
    if not names:
        plugins = [_plugin(c, device, timed) for c in candidates if c.state is State.AVAILABLE]
        baselines = [_baseline(b, timed) for b in BASELINES if _cannot(b, timed, host) is None]
        return tuple(plugins + baselines)
    return tuple(_named(name, candidates, host, device, timed) for name in dict.fromkeys(names))


def _named(
    name: str, candidates: Sequence[Candidate], host: Host, device: torch.device, operation: BenchOperation
) -> Contender:
    for baseline in BASELINES:
        if baseline.name == name:
            lacks = _cannot(baseline, operation, host)
            if lacks is not None:
                raise SamplerUnavailableError(f"'{name}' cannot be timed on {host}: {lacks}.")
            return _baseline(baseline, operation)
    named = [candidate for candidate in candidates if candidate.name == name]
    for candidate in named:
        if candidate.state is State.AVAILABLE:
            return _plugin(candidate, device, operation)
    if named:
        raise SamplerUnavailableError(f"'{name}' cannot be timed on {host}: {named[0].reason}.")
    known = [*dict.fromkeys(candidate.name for candidate in candidates), *(b.name for b in BASELINES)]
    near = nearest(name, known)
    command = "list" if near is None else f"bench --sampler {near}"
    raise TokendrawError(
        f"'{name}' needs to be an installed sampler or a baseline, found {all_of(known)}. Try: tokendraw {command}"
    )


def lacking(
    operation: BenchOperation, capabilities: Any, cell: AnyCell, arguments: Any, inputs: Any
) -> str | None:
    """Name the part of a cell's call that a provider with these capabilities does not serve, or None."""
    found: Any = operation.step(_Asked(operation, capabilities, cell), cell, arguments)(inputs)
    return None if found is None else str(found)


class _Asked:
    """Stands in for a provider. Its methods make no call: they say what of it capabilities do not serve."""

    def __init__(self, operation: BenchOperation, capabilities: Any, cell: AnyCell) -> None:
        self._operation, self._capabilities = operation.name, capabilities
        self._need = operation.need(cell)

    def __getattr__(self, method: str) -> Callable[..., str | None]:
        def unsupported(*arguments: Any, **named: Any) -> str | None:
            call = make_call(self._operation, method, *arguments, **named)
            return find_unsupported(call, self._capabilities, operation=self._operation, need=self._need)

        return unsupported


def _plugin(candidate: Candidate, device: torch.device, operation: BenchOperation) -> Contender:
    """Load an installed provider, called as users call it and never with what its companion would serve."""
    capabilities: Any = candidate.capabilities(operation.name)

    @functools.cache
    def load(need: Any) -> Any:
        if operation.load is not None:
            return operation.load(candidate.name, device, need)
        return tokendraw.load(operation.name, candidate.name, device=device, need=need)

    def prepare(cell: AnyCell, arguments: Any, inputs: Any) -> tuple[Call]:
        try:
            provider = load(operation.need(cell))
        except SamplerUnavailableError as error:  # its message is for those who asked for one to draw with
            reasons = [decision.reason for decision in error.decisions if decision.name == candidate.name]
            raise SamplerUnavailableError(reasons[0] if reasons else str(error)) from error
        lacks = lacking(operation, capabilities, cell, arguments, inputs)
        if lacks is not None:
            raise SamplerUnavailableError(f"it does not serve {lacks}")
        return (Call(draw=operation.step(provider, cell, arguments), graph_safe=capabilities.graph_safe),)

    versions = {candidate.distribution: candidate.version}
    if candidate.info and candidate.info.upstream and candidate.upstream_version:
        versions[candidate.info.upstream.distribution] = candidate.upstream_version
    return Contender(name=candidate.name, versions=versions, prepare=prepare)


def _baseline(baseline: Baseline, operation: BenchOperation) -> Contender:
    prepare = operation.baselines()[baseline.name]
    return Contender(
        name=baseline.name,
        versions=baseline.versions(),
        prepare=lambda cell, arguments, inputs: prepare(cell, arguments),
    )


def _cannot(baseline: Baseline, operation: BenchOperation, host: Host) -> str | None:
    """Say why a baseline cannot be timed; None if it can."""
    if baseline.name in operation.baselines():
        return baseline.lacks(host)
    served = [name for name in operations.names() if baseline.name in operations.get(name).baselines()]
    if operation.name in served:
        return "needs all of the logits on one device, found them on ranks"
    return f"needs the operation {one_of(served)}, found {operation.name}"
