"""Selects who is timed: the installed providers, each by itself, and the baselines."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import tokendraw
from tokendraw._discovery.installed import installed_version
from tokendraw._exchange.host import Host
from tokendraw._exchange.metadata import SamplingMetadata
from tokendraw._machine import detect
from tokendraw._messages.errors import SamplerUnavailableError, TokendrawError
from tokendraw._messages.words import all_of
from tokendraw._resolution.candidate import Candidate, State
from tokendraw.bench import operations
from tokendraw.bench.baselines import flashinfer
from tokendraw.bench.cells import Cell
from tokendraw.bench.operation import BenchOperation, Prepare
from tokendraw.bench.timing.timer import Call


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
"""The operations say what each can do: :attr:`tokendraw.bench.operation.BenchOperation.baselines`."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """Something that is timed."""

    name: str
    versions: Mapping[str, str]
    """Versions of the distributions that it comes from."""
    prepare: Prepare


def chosen(names: Sequence[str], device: torch.device, operation: str = "sample") -> tuple[Contender, ...]:
    """Find the contenders of these names, in this order; of no name, all samplers and baselines that there are.

    :raises SamplerUnavailableError: one of them cannot serve this machine; the reason in words.
    :raises TokendrawError: there is none of a name; the message has the nearest.
    """
    host = detect.detect_host(str(device))
    timed = operations.get(operation)
    candidates = tokendraw.discover(operation=operation, host=host, need=timed.need)
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
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
    raise TokendrawError(
        f"'{name}' needs to be an installed sampler or a baseline, found {all_of(known)}. "
        f"Try: tokendraw bench --sampler {nearest}"
    )


def _plugin(candidate: Candidate, device: torch.device, operation: BenchOperation) -> Contender:
    """Load an installed sampler, called as users call it and never with rows that its companion would draw."""
    capabilities: Any = candidate.capabilities(operation.name)

    @functools.cache
    def load(dtype: str, vocab_size: int) -> Any:
        return operation.load(candidate.name, device, dtype, vocab_size)

    def prepare(cell: Cell, metadata: SamplingMetadata) -> tuple[Call]:
        try:
            provider = load(cell.dtype, cell.vocab_size)
        except SamplerUnavailableError as error:  # its message is for those who asked for one to draw with
            reasons = [decision.reason for decision in error.decisions if decision.name == candidate.name]
            raise SamplerUnavailableError(reasons[0] if reasons else str(error)) from error
        lacking = operation.lacking(capabilities, cell, metadata)
        if lacking is not None:
            raise SamplerUnavailableError(f"it does not serve {lacking}")
        return (Call(draw=operation.step(provider, cell, metadata), graph_safe=capabilities.graph_safe),)

    versions = {candidate.distribution: candidate.version}
    if candidate.info and candidate.info.upstream and candidate.upstream_version:
        versions[candidate.info.upstream.distribution] = candidate.upstream_version
    return Contender(name=candidate.name, versions=versions, prepare=prepare)


def _baseline(baseline: Baseline, operation: BenchOperation) -> Contender:
    prepare = operation.baselines()[baseline.name]
    return Contender(name=baseline.name, versions=baseline.versions(), prepare=prepare)


def _cannot(baseline: Baseline, operation: BenchOperation, host: Host) -> str | None:
    """Say why a baseline cannot be timed; None if it can."""
    return baseline.lacks(host) if baseline.name in operation.baselines() else f"it does not {operation.name}"
