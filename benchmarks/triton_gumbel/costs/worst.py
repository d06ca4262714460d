"""Times the worst logits (sorted, all equal, of two values, Cauchy, 99 % -inf) beside common ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from families import WORST
from setting import Findings, Setting, buffers_of, markdown

from tokendraw import SamplingMetadata, SamplingParams
from tokendraw_bench import MIN_P, TEMPERATURE, TOP_K, TOP_P, Call, Cell, Failure, Timing, measure, timer_for

_COMMON = ("peaked-30", "gaussian")
_MOST = 3.0
"""Times the common case."""
_FILTERS = {
    "none": SamplingParams(temperature=TEMPERATURE),
    f"k = {TOP_K}, p = {TOP_P}": SamplingParams(temperature=TEMPERATURE, top_k=TOP_K, top_p=TOP_P),
    f"k = {TOP_K}": SamplingParams(temperature=TEMPERATURE, top_k=TOP_K),
    f"p = {TOP_P}": SamplingParams(temperature=TEMPERATURE, top_p=TOP_P),
    f"k = 20000, p = {TOP_P}": SamplingParams(temperature=TEMPERATURE, top_k=20_000, top_p=TOP_P),
    f"min-p = {MIN_P}": SamplingParams(temperature=TEMPERATURE, min_p=MIN_P),
}


def run(setting: Setting, *, repeats: int) -> Findings:
    """Time every family of logits under every filter."""
    shapes = ((4, 2000),) if setting.small else ((256, 151_936), (64, 128_256))
    lines, holds = [], True
    for batch, size in shapes:
        for dtype in ("bfloat16",) if setting.small else ("bfloat16", "float32"):
            rows, good = _rows(setting, repeats, Cell(batch, size, dtype, "none", _COMMON[0]))
            lines += rows
            holds = holds and good
    titles = [
        "shape",
        "dtype",
        "filters",
        "read us",
        *_COMMON,
        *WORST,
        *(f"worst / {name}" for name in _COMMON),
    ]
    said = (
        f"Microseconds, in brackets the ratio to a read of the same logits; seeded rows, medians of {repeats}. Worst: "
        f"the slowest of {', '.join(WORST)}, as a multiple of a common family; at most {_MOST:g} of the slower one."
    )
    return Findings(text=f"{said}\n\n{markdown(titles, lines, words=3)}", holds=holds)


def _rows(setting: Setting, repeats: int, cell: Cell) -> tuple[list[list[str]], bool]:
    """Return the lines of a shape and dtype, one for each filter."""
    reads: list[Timing] = []
    found: dict[str, Mapping[str, Timing | Failure]] = {}
    calls, timer = _calls(setting, cell), timer_for(setting.device, repeats)
    for family in (*_COMMON, *WORST):
        buffers = buffers_of(replace(cell, family=family), setting.device, timer, WORST.get(family))
        measured = measure(calls, buffers, timer)
        found[family] = measured.calls
        reads.append(measured.read)
    read_us = min(read.us for read in reads)
    lines, holds = [], True
    for filters in calls:
        times = {family: entries[filters] for family, entries in found.items()}
        ratios, good = _ratios(times)
        shown = [_shown(entry, read_us) for entry in times.values()]
        lines.append(
            [f"{cell.batch} x {cell.vocab_size}", cell.dtype, filters, f"{read_us:.1f}", *shown, *ratios]
        )
        holds = holds and good
    return lines, holds


def _calls(setting: Setting, cell: Cell) -> dict[str, Call]:
    calls = {}
    for name, params in _FILTERS.items():
        requests = [replace(params, seed=row) for row in range(cell.batch)]
        metadata = SamplingMetadata.from_params(requests, device=setting.device, positions=range(cell.batch))
        calls[name] = Call(draw=partial(setting.subject.sample, metadata=metadata))
    return calls


def _ratios(times: Mapping[str, Timing | Failure]) -> tuple[list[str], bool]:
    worst = [entry.us for name in WORST if isinstance(entry := times[name], Timing)]
    common = [entry.us for name in _COMMON if isinstance(entry := times[name], Timing)]
    if len(worst) < len(WORST) or len(common) < len(_COMMON):
        return ["-" for _ in _COMMON], False
    return [f"{max(worst) / us:.2f}" for us in common], max(worst) <= _MOST * max(common)


def _shown(entry: Timing | Failure, read_us: float) -> str:
    return entry.reason if isinstance(entry, Failure) else f"{entry.us:.1f} ({entry.us / read_us:.2f}x)"
