"""Selects the contenders of a run: each installed plugin without a companion, and the baselines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

import tokendraw
from tokendraw import SamplerUnavailableError, SamplingMetadata, TokendrawError
from tokendraw.plugin import Host
from tokendraw.resolution import Candidate, State, detect_host, installed_version
from tokendraw.tools import all_of, find_unsupported, make_call, nearest, one_of
from tokendraw_bench import operations
from tokendraw_bench.baselines import FLASHINFER, VLLM
from tokendraw_bench.cells import Cell
from tokendraw_bench.logits import metadata_of
from tokendraw_bench.operation import AnyCell, BenchOperation
from tokendraw_bench.timing import TimedCall


class Baseline(NamedTuple):
    """A contender without a plugin."""

    name: str
    distribution: str = "torch"
    by_default: bool = True
    """Whether it takes part in a run without names."""

    def reason_against(self, operation: BenchOperation, host: Host) -> str | None:
        """Say why it cannot be timed on a machine; None if it can."""
        if self.name not in operation.baselines():
            names = [name for name in operations.names() if self.name in operations.get(name).baselines()]
            return f"needs the operation {one_of(names)}, found {operation.name}"
        if (upstream := self.distribution) != "torch" and host.device_type != "cuda":
            return f"needs an NVIDIA GPU, found {host.device_type}"
        if installed_version(upstream) is None:
            return f"needs {upstream}, found it not installed; run `pip install {upstream}`"
        return None

    def contender(self, operation: BenchOperation) -> Contender:
        """Make the contender."""
        prepare = operation.baselines()[self.name]
        version = (
            str(torch.__version__) if self.distribution == "torch" else installed_version(self.distribution)
        )
        return Contender(
            name=self.name,
            versions={self.distribution: version or ""},
            prepare=lambda cell, arguments, inputs: prepare(cell, arguments),
        )


BASELINES = (
    Baseline("torch-sort"),
    Baseline("flashinfer-direct", FLASHINFER),
    Baseline("flashinfer-unfused", FLASHINFER, by_default=False),
    Baseline("vllm-direct", VLLM, by_default=False),
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
    record, by_name = operations.get(operation), {baseline.name: baseline for baseline in BASELINES}
    host = detect_host(str(device))
    candidates = tokendraw.discover(operation=record.name, host=host, need=record.need(None))
    baselines = [baseline for baseline in BASELINES if baseline.name in record.baselines()]

    def named(name: str) -> Contender:
        if "+" in name and record.name == "sample":
            chosen, _, companion = name.partition("+")
            return _split_contender(named(chosen), named(companion))
        if name in by_name:
            if (reason := by_name[name].reason_against(record, host)) is not None:
                raise SamplerUnavailableError(f"'{name}' cannot be timed on {host}: {reason}.")
            return by_name[name].contender(record)
        claimants = [candidate for candidate in candidates if candidate.name == name]
        for candidate in claimants:
            if candidate.state is State.AVAILABLE:
                return _plugin(candidate, device, record)
        if claimants:
            raise SamplerUnavailableError(f"'{name}' cannot be timed on {host}: {claimants[0].reason}.")
        all_names = [*dict.fromkeys(candidate.name for candidate in candidates), *(b.name for b in baselines)]
        near = nearest(name, all_names)
        command = "list" if near is None else f"bench --sampler {near}"
        raise TokendrawError(
            f"'{name}' needs to be an installed sampler or a baseline, found {all_of(all_names)}. "
            f"Try: tokendraw {command}"
        )

    if names:
        return tuple(map(named, dict.fromkeys(names)))
    plugins = [_plugin(c, device, record) for c in candidates if c.state is State.AVAILABLE]
    usable = [b for b in baselines if b.by_default and b.reason_against(record, host) is None]
    return (*plugins, *(baseline.contender(record) for baseline in usable))


def find_unsupported_part(
    operation: BenchOperation, capabilities: Any, cell: AnyCell, arguments: Any, inputs: Any
) -> str | None:
    """Name the part of a cell's call beyond some capabilities; None if they cover the call."""
    need = operation.need(cell)

    class Probe:
        """Stand-in for a provider: a method runs nothing, and names the part beyond the capabilities."""

        def __getattr__(self, method: str) -> Callable[..., str | None]:
            def unsupported(*given: Any, **options: Any) -> str | None:
                call = make_call(operation.name, method, *given, **options)
                return find_unsupported(call, capabilities, operation=operation.name, need=need)

            return unsupported

    part: Any = operation.step(Probe(), cell, arguments)(inputs)
    return None if part is None else str(part)


def _plugin(candidate: Candidate, device: torch.device, operation: BenchOperation) -> Contender:
    """Make the contender of a plugin: loaded as users load it, without a companion."""
    capabilities: Any = candidate.capabilities(operation.name)

    @functools.cache
    def load(need: Any) -> Any:
        if not issubclass(operation.cell, Cell):
            return tokendraw.load(operation.name, candidate.name, device=device, need=need)
        drawing = (operation.name,)
        return tokendraw.load_sampler(
            candidate.name, device=device, need=need, operations=drawing, companion=False
        )

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


def _split_contender(chosen: Contender, companion: Contender) -> Contender:
    """Make a contender that draws the special rows of a cell by a companion, and the batch by the chosen sampler.

    The chosen sampler also draws the special rows, as common ones, as in a batch that the core splits.
    """

    def prepare(cell: Any, arguments: Any, inputs: Any) -> tuple[TimedCall]:
        if not cell.special_rows:
            raise SamplerUnavailableError("it needs rows for the companion, found none; add --special")
        common = replace(cell, special="none", seeded=False)
        whole = chosen.prepare(common, metadata_of(common, inputs.device), inputs)[0]
        params = [replace(cell.requests[row], seed=cell.seeds[row]) for row in cell.special_rows]
        metadata = SamplingMetadata.from_params(params, device=inputs.device, positions=cell.special_rows)
        rows = torch.tensor(cell.special_rows, device=inputs.device)
        part = companion.prepare(replace(cell, batch=len(rows)), metadata, inputs.index_select(0, rows))[0]

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
