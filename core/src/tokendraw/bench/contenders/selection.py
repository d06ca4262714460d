"""Who is timed: the installed samplers, each by itself, and the baselines."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

import tokendraw
from tokendraw._exchange.capabilities import FILTER_ORDERS, Need
from tokendraw._exchange.host import Host
from tokendraw._exchange.metadata import SamplingMetadata
from tokendraw._machine import detect
from tokendraw._messages.errors import SamplerUnavailableError, TokendrawError
from tokendraw._messages.words import all_of
from tokendraw._resolution.candidate import Candidate, State
from tokendraw.bench.cells import Cell, VerifyCell
from tokendraw.bench.contenders import verify
from tokendraw.bench.contenders.baselines import BASELINES, Baseline
from tokendraw.bench.timing.timer import Call, Draw


@dataclass(frozen=True, kw_only=True)
class Contender:
    """Something that draws tokens, or verifies drafts."""

    name: str
    versions: Mapping[str, str]
    """Of the distributions that it comes from."""
    prepare: Callable[[Cell, SamplingMetadata], Sequence[Call]]
    """Makes the call for a cell, with everything done that an engine does once a batch; or several, each another way
    to the same tokens, of which the fastest counts.

    :raises SamplerUnavailableError: it cannot serve the cell by itself; the reason in words.
    """


def chosen(names: Sequence[str], device: torch.device, operation: str = "sample") -> tuple[Contender, ...]:
    """The contenders of these names, in this order; of no name, all samplers and baselines that there are.

    :raises SamplerUnavailableError: one of them cannot serve this machine; the reason in words.
    :raises TokendrawError: there is none of a name; the message has the nearest.
    """
    host = detect.detect_host(str(device))
    candidates = tokendraw.discover(operation=operation, host=host, need=Need(filter_orders=FILTER_ORDERS))
    if not names:
        plugins = [_plugin(c, device, operation) for c in candidates if c.state is State.AVAILABLE]
        baselines = [_baseline(b, operation) for b in BASELINES if b.cannot(operation, host) is None]
        return tuple(plugins + baselines)
    return tuple(_named(name, candidates, host, device, operation) for name in dict.fromkeys(names))


def _named(
    name: str, candidates: Sequence[Candidate], host: Host, device: torch.device, operation: str
) -> Contender:
    for baseline in BASELINES:
        if baseline.name == name:
            lacks = baseline.cannot(operation, host)
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


def _plugin(candidate: Candidate, device: torch.device, operation: str) -> Contender:
    """An installed sampler, called as users call it and never with rows that its companion would draw."""

    @functools.cache
    def load(dtype: str, vocab_size: int) -> tokendraw.Sampler:
        need = Need(filter_orders=FILTER_ORDERS, dtype=dtype, vocab_size=vocab_size)
        return tokendraw.load_sampler(candidate.name, device=device, need=need)

    def prepare(cell: Cell, metadata: SamplingMetadata) -> tuple[Call]:
        try:
            sampler = load(cell.dtype, cell.vocab_size)
            serving = sampler._serving if operation == "sample" else sampler._verification()
        except (
            SamplerUnavailableError
        ) as error:  # its message is for those who asked for a sampler to draw with
            reasons = [decision.reason for decision in error.decisions if decision.name == candidate.name]
            raise SamplerUnavailableError(reasons[0] if reasons else str(error)) from error
        draw: Draw = functools.partial(sampler.sample, metadata=metadata)
        lacking = serving.lacking(metadata.facts, cell.vocab_size)
        if isinstance(cell, VerifyCell):
            drafts = verify.drafts_of(cell, device)
            draw = verify.verification(sampler, cell, metadata, drafts)
            lacking = lacking or verify.lacking(serving, cell, drafts)
        if lacking is not None:
            raise SamplerUnavailableError(f"it does not serve {lacking}")
        capabilities = candidate.capabilities(operation)
        graph_safe = capabilities is not None and capabilities.graph_safe
        return (Call(draw=draw, graph_safe=graph_safe),)

    versions = {candidate.distribution: candidate.version}
    if candidate.info and candidate.info.upstream and candidate.upstream_version:
        versions[candidate.info.upstream.distribution] = candidate.upstream_version
    return Contender(name=candidate.name, versions=versions, prepare=prepare)


def _baseline(baseline: Baseline, operation: str) -> Contender:
    return Contender(name=baseline.name, versions=baseline.versions(), prepare=baseline.operations[operation])
