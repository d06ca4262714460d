"""Times how long calls keep the host, at numbers of rows that were drawn before and at new ones."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterable
from time import perf_counter

import torch
from setting import Findings, Setting, markdown
from torch import Tensor

from tokendraw import Sampler, SamplingMetadata, SamplingParams

_MOST_MORE = 10.0
"""Microseconds that a new number of rows may cost beside a known one."""
_SEEDED = SamplingParams(temperature=0.8, seed=1)
_FILTERED = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=1)
KINDS = {
    "seeded": _SEEDED,
    "unseeded": SamplingParams(),
    "seeded, top-k and top-p": _FILTERED,
    "seeded, logprobs=5": SamplingParams(seed=1, logprobs=5),
}
"""The kinds of batches by name: every row of one is alike."""


def run(setting: Setting, *, kind: tuple[str, ...]) -> Findings:
    """Time single calls on an idle device: of one size again and again, then of each other size once, then again."""
    most, vocab_size = (24, 2000) if setting.small else (400, 151_936)
    sampler, lines, holds = setting.subject, [], True
    logits = torch.randn(most, vocab_size, device=setting.device).to(torch.bfloat16)
    known = (most // 4, most // 2)
    for name in kind or KINDS:
        batches = {rows: _metadata(KINDS[name], rows, setting.device) for rows in range(1, most + 1)}
        for rows in known * 3:
            sampler.sample(logits[:rows], batches[rows])
        others = [rows for rows in batches if rows not in known]
        again = _times(setting, sampler, logits, batches, [known[i % 2] for i in range(len(others))])
        new = _times(setting, sampler, logits, batches, others)
        now_known = _times(setting, sampler, logits, batches, others)
        more = statistics.median(new) - statistics.median(now_known)
        holds = holds and (setting.small or more <= _MOST_MORE)
        figures = [f(times) for times in (again, new, now_known) for f in (statistics.median, _late)]
        lines.append([name, *(f"{figure:.1f}" for figure in figures), f"{more:+.1f}"])
    titles = ["rows", *_titles("two sizes in turn", "new sizes", "the same once more"), "more"]
    said = (
        f"Microseconds until a call returns, up to {most} x {vocab_size} bfloat16, the device idle: median and 99th "
        f"percentile of {most - len(known)} calls. New sizes may cost {_MOST_MORE:g} more than when they come again."
    )
    return Findings(text=f"{said}\n\n{markdown(titles, lines)}", holds=holds)


def _titles(*names: str) -> Iterable[str]:
    for name in names:
        yield from (name, "99 %")


def _late(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def _metadata(params: SamplingParams, rows: int, device: torch.device) -> SamplingMetadata:
    return SamplingMetadata.from_params([params] * rows, device=device, positions=range(rows))


def _times(
    setting: Setting,
    sampler: Sampler,
    logits: Tensor,
    batches: dict[int, SamplingMetadata],
    sizes: Iterable[int],
) -> list[float]:
    """Measure the microseconds of one call of each size."""
    found = []
    gc.disable()
    try:
        for rows in sizes:
            given, metadata = logits[:rows], batches[rows]
            setting.synchronize()
            start = perf_counter()
            sampler.sample(given, metadata)
            found.append(1e6 * (perf_counter() - start))
    finally:
        gc.enable()
    return found
