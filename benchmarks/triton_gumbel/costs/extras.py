"""Times extras beside plain seeded rows: rows of other kinds among them, logprobs, noise in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from setting import Findings, Setting, buffers_of, markdown

from tokendraw import Sampler, SamplingMetadata, SamplingParams
from tokendraw_bench import MIN_P, TEMPERATURE, TOP_K, TOP_P, Call, Cell, Failure, Timing, measure, timer_for

_BOTH = SamplingParams(temperature=TEMPERATURE, top_k=TOP_K, top_p=TOP_P, seed=1)
_MIXED = (_BOTH, replace(_BOTH, seed=None), replace(_BOTH, temperature=0.0), replace(_BOTH, min_p=MIN_P))
_PLAIN = "plain: seeded, both filters"


@dataclass(frozen=True)
class _Case:
    """A kind of rows that is timed."""

    sampler: Sampler
    rows: tuple[SamplingParams, ...]
    """Requests that the rows take in turn."""
    most: float | None
    """Per cent more than plain that it may cost; None where nothing was promised."""


def run(setting: Setting, *, repeats: int) -> Findings:
    """Time all of them in turns, on two families of logits."""
    shape = (4, 2000) if setting.small else (256, 151_936)
    cases, lines, holds = _cases(setting), [], True
    timer = timer_for(setting.device, repeats)
    for family in ("peaked-30", "gaussian"):
        cell = Cell(*shape, "bfloat16", "both", family)
        calls = {name: _call(case, cell, setting.device) for name, case in cases.items()}
        found = measure(calls, buffers_of(cell, setting.device, timer), timer)
        for name, case in cases.items():
            line, good = _line(found.calls, name, case, found.read)
            lines.append([family, name, *line])
            holds = holds and good
    titles = ["logits", "rows", "us", "ratio to the read", "± %", "more than plain", "at most", "host us"]
    said = (
        f"{shape[0]} x {shape[1]} bfloat16, T = {TEMPERATURE}, k = {TOP_K}, p = {TOP_P}, min-p = {MIN_P}; medians of "
        f"{repeats}, in turns. Mixed rows: seeded, unseeded, greedy and min-p, one after the other."
    )
    return Findings(text=f"{said}\n\n{markdown(titles, lines, words=2)}", holds=holds)


def _cases(setting: Setting) -> dict[str, _Case]:
    raw = setting.subject
    processed = setting.load(setting.sampler, mode="processed_logprobs")
    fp64 = setting.load(setting.sampler, gumbel="fp64")
    best = (replace(_BOTH, logprobs=5),)
    return {
        _PLAIN: _Case(raw, (_BOTH,), None),
        "mixed rows": _Case(raw, _MIXED, 5.0),
        "unseeded rows": _Case(raw, _MIXED[1:2], None),
        "fp64 noise": _Case(fp64, (_BOTH,), 10.0),
        "logprobs=0, raw": _Case(raw, (replace(_BOTH, logprobs=0),), None),
        "logprobs=5, raw": _Case(raw, best, 40.0),
        "logprobs=5, processed": _Case(processed, best, 40.0),
        "logprobs=5, processed, mixed rows": _Case(
            processed, tuple(replace(row, logprobs=5) for row in _MIXED), None
        ),
    }


def _call(case: _Case, cell: Cell, device: torch.device) -> Call:
    requests = [case.rows[row % len(case.rows)] for row in range(cell.batch)]
    seeded = [
        params if params.seed is None else replace(params, seed=row) for row, params in enumerate(requests)
    ]
    metadata = SamplingMetadata.from_params(seeded, device=device, positions=range(cell.batch))
    return Call(draw=partial(case.sampler.sample, metadata=metadata))


def _line(
    found: Mapping[str, Timing | Failure], name: str, case: _Case, read: Timing
) -> tuple[list[str], bool]:
    entry, plain = found[name], found[_PLAIN]
    needed = "" if case.most is None else f"+{case.most:g} %"
    if isinstance(entry, Failure):
        return [entry.reason, "", "", "", needed, ""], False
    host = "" if entry.host_us is None else f"{entry.host_us:.1f}"
    facts = [f"{entry.us:.1f}", f"{entry.us / read.us:.2f}", f"{100 * entry.spread:.1f}"]
    if isinstance(plain, Failure) or entry is plain:
        return [*facts, "", needed, host], isinstance(plain, Timing)
    more = 100 * (entry.us / plain.us - 1)
    return [*facts, f"{more:+.1f} %", needed, host], case.most is None or more <= case.most
