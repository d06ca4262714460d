"""Times draws with logprobs against those without, in every mode, with ranks and without, and compares their values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from setting import Findings, Setting, buffers_of, markdown
from torch import Tensor

from tokendraw import LogprobsTensors, Sampler, SamplingMetadata, SamplingParams
from tokendraw.plugin import LOGPROBS_MODES, LogprobsMode
from tokendraw_bench import TEMPERATURE, TOP_K, TOP_P, Call, Cell, Failure, Timing, measure, timer_for

_PLAIN = "plain"
_REQUESTS = {
    "none": SamplingParams(),
    "top-p": SamplingParams(top_p=TOP_P),
    "top-k": SamplingParams(top_k=TOP_K),
    "both": SamplingParams(top_k=TOP_K, top_p=TOP_P),
}
"""All at T = 1, as rollouts ask."""
_CELLS = (
    ("none", "peaked-30"),
    ("none", "gaussian"),
    ("none", "flat"),
    ("top-p", "peaked-30"),
    ("top-p", "randn"),
    ("top-k", "gaussian"),
    ("both", "peaked-30"),
)
_CASES = ((0, True), (5, True), (0, False), (5, False))
"""N, and whether ranks are wanted."""
_MOST = {"peaked-30": (1.4, 1.6, 1.1, 1.4), "": (1.9, 2.1, 1.1, 1.4)}
"""Times the draw without logprobs, without filters and with top-p alone: of peaked logits, and of others."""
_TOLERANCE = 1e-5
_LOOKED_AT = 64
"""Rows that are compared with the reference."""


def run(setting: Setting, *, repeats: int, mode: Sequence[LogprobsMode] = ()) -> Findings:
    """Time all of them in turns, and compare what they say with the reference."""
    shapes = ((4, 2000),) if setting.small else ((256, 151_936), (1024, 151_936))
    modes = mode or LOGPROBS_MODES
    samplers, timer = _samplers(setting, modes), timer_for(setting.device, repeats)
    lines: list[list[str]] = []
    wrong: list[str] = []
    for shape, dtype, (filters, family) in itertools.product(shapes, ("bfloat16", "float32"), _CELLS):
        cell = Cell(*shape, dtype, filters, family)
        buffers = buffers_of(cell, setting.device, timer, _randn if family == "randn" else None)
        if family.startswith("peaked"):
            buffers = [logits.div_(TEMPERATURE) for logits in buffers]  # the bench's nuclei, at T = 1
        if shape == shapes[0]:
            wrong += _differences(setting, samplers, cell, buffers[0])
        calls = {_PLAIN: _call(setting.subject, cell, setting.device, None)}
        for (each, ranked), n in itertools.product(samplers, (0, 5)):
            calls[_name(each, n, ranked)] = _call(samplers[each, ranked], cell, setting.device, n)
        found = measure(calls, buffers, timer)
        lines += [_line(cell, each, found.calls, found.read) for each in modes]
        del buffers
    titles = ["rows", "dtype", "filter", "logits", "mode", "draw, us", "to the read"]
    titles += [f"logprobs={n}{'' if ranked else ', no ranks'}" for n, ranked in _CASES]
    said = (
        f"T = 1, k = {TOP_K}, p = {TOP_P}, V = {shapes[0][1]}; gaussian logits have a standard deviation of 2.5, randn "
        f"of 1. Medians of {repeats}, in turns, as multiples of the draw without logprobs; * is more than was wanted: "
        f"{_wanted()}."
    )
    agreed = (
        "\n".join(wrong)
        or f"Values, tokens and ranks of {_LOOKED_AT} rows a cell agree with {setting.reference}."
    )
    missed = any("*" in cell for line in lines for cell in line)
    return Findings(
        text=f"{said}\n\n{markdown(titles, lines, words=5)}\n\n{agreed}", holds=not wrong and not missed
    )


def _wanted() -> str:
    peaked, others = (", ".join(map(str, _MOST[family])) for family in ("peaked-30", ""))
    return f"{peaked} of peaked logits and {others} of others, without filters and with top-p alone"


def _samplers(setting: Setting, modes: Sequence[LogprobsMode]) -> dict[tuple[LogprobsMode, bool], Sampler]:
    return {
        (mode, ranked): setting.load(setting.sampler, mode=mode, ranks=ranked)
        for mode, ranked in itertools.product(modes, (True, False))
    }


def _randn(rows: int, size: int, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, size, generator=generator, device=generator.device)


def _metadata(cell: Cell, rows: int, device: torch.device, n: int | None) -> SamplingMetadata:
    params = [replace(_REQUESTS[cell.filters], seed=row, logprobs=n) for row in range(rows)]
    return SamplingMetadata.from_params(params, device=device, positions=range(rows))


def _call(sampler: Sampler, cell: Cell, device: torch.device, n: int | None) -> Call:
    metadata = _metadata(cell, cell.batch, device, n)
    return Call(draw=partial(sampler.sample, metadata=metadata))


def _name(mode: LogprobsMode, n: int, ranked: bool) -> str:
    return f"{mode} {n} {ranked}"


def _line(cell: Cell, mode: LogprobsMode, found: Mapping[str, Timing | Failure], read: Timing) -> list[str]:
    plain = found[_PLAIN]
    head = [str(cell.batch), cell.dtype, cell.filters, cell.family, mode]
    if isinstance(plain, Failure):
        return [*head, plain.reason, "", *[""] * len(_CASES)]
    limits = _MOST.get(cell.family, _MOST[""]) if cell.filters in ("none", "top-p") else [float("inf")] * 4
    entries = [f"{plain.us:.1f}", f"{plain.us / read.us:.2f}"]
    for (n, ranked), limit in zip(_CASES, limits, strict=True):
        entry = found[_name(mode, n, ranked)]
        if isinstance(entry, Failure):
            entries.append(entry.reason)
        else:
            ratio = entry.us / plain.us
            entries.append(f"{ratio:.2f}{'*' if round(ratio, 2) > limit else ''}")
    return head + entries


def _differences(
    setting: Setting,
    samplers: Mapping[tuple[LogprobsMode, bool], Sampler],
    cell: Cell,
    logits: Tensor,
) -> list[str]:
    """Name what differs from the reference in the rows whose tokens agree."""
    logits = logits[:_LOOKED_AT]
    plain = setting.subject.sample(logits, _metadata(cell, len(logits), setting.device, None)).token_ids
    wrong = []
    for (mode, ranked), n in itertools.product(samplers, (0, 5)):
        metadata = _metadata(cell, len(logits), setting.device, n)
        other = setting.load(setting.reference, mode=mode)
        ours, theirs = samplers[mode, ranked].sample(logits, metadata), other.sample(logits, metadata)
        same = ours.token_ids == theirs.token_ids
        label = f"{cell}, {mode}, logprobs={n}{'' if ranked else ', no ranks'}"
        if not torch.equal(ours.token_ids, plain):
            wrong.append(f"{label}: other tokens than without logprobs")
        if (~same).sum() > 1:
            wrong.append(f"{label}: {int((~same).sum())} of {len(logits)} tokens differ")
        assert ours.logprobs is not None
        assert theirs.logprobs is not None
        assert ours.log_kept_mass is not None
        assert theirs.log_kept_mass is not None
        wrong += [f"{label}: {what}" for what in _apart(ours.logprobs, theirs.logprobs, same, ranked)]
        if not _close(ours.log_kept_mass[same], theirs.log_kept_mass[same]):
            off = (ours.log_kept_mass - theirs.log_kept_mass)[same].abs().max()
            wrong.append(f"{label}: log_kept_mass by up to {float(off):.1e}")
    return wrong


def _apart(ours: LogprobsTensors, theirs: LogprobsTensors, same: Tensor, ranked: bool) -> list[str]:
    found = []
    if not torch.equal(ours.token_ids[same], theirs.token_ids[same]):
        found.append("other best tokens")
    elif not _close(ours.logprobs[same], theirs.logprobs[same]):
        found.append("other values")
    if ours.ranks is None or theirs.ranks is None:
        found += ["no ranks"] if ranked else []
    elif not torch.equal(ours.ranks[same], theirs.ranks[same]):
        found.append("other ranks")
    return found


def _close(x: Tensor, y: Tensor) -> bool:
    return torch.allclose(x, y, rtol=1e-6, atol=_TOLERANCE)
