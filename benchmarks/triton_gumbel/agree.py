"""Compares seeded draws over mixed filters with the reference; lists the float64 margin of each disagreement.

Batches of a thousand rows and more go through vocabularies from 1,000 to 151,936, the families of logits and the
dtypes in turn; each row has filters, a seed and a position of its own, and one in twenty is greedy.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from batches import RequestArrays, mixed
from families import AGREEMENT
from margins import Margin, margin
from setting import Findings, Setting, markdown
from torch import Tensor

_DTYPES = ("float32", "bfloat16", "float16")
_SHAPES = ((1000, 4000, 9), (4099, 4000, 6), (8192, 4000, 7), (32_000, 2000, 7), (50_257, 2000, 3), (128_256, 1000, 4),
           (151_936, 1000, 4))  # fmt: skip
"""Vocabulary, rows of a batch, and how often it comes in a round: where most of a million draws are cheap."""
_SMALL = ((1000, 60, 3), (2500, 30, 2))
_LEAST = 0.9999
_MOST_LISTED = 60


@dataclass
class _DrawCount:
    """Counts of the draws of a dtype and family."""

    draws: int = 0
    differ: int = 0
    greedy: int = 0
    greedy_differ: int = 0
    margins: list[Margin] = field(default_factory=list)

    def row(self) -> list[str]:
        widest = f"{max(m.least for m in self.margins):.1e}" if self.margins else ""
        return [
            f"{self.draws:,}",
            f"{self.draws - self.differ:,}",
            f"{self.differ}",
            widest,
            f"{self.greedy_differ}",
        ]


def run(setting: Setting, *, draws: int) -> Findings:
    """Draw until ``draws`` seeded rows were compared."""
    rng = np.random.default_rng(4)
    generator = torch.Generator(setting.device).manual_seed(4)
    counts: dict[tuple[str, str], _DrawCount] = defaultdict(_DrawCount)
    listed: list[list[str]] = []
    start, seeded = time.perf_counter(), 0
    wanted = min(draws, 2000) if setting.small else draws
    for size, rows, family, dtype in _plan(_SMALL if setting.small else _SHAPES):
        if seeded >= wanted:
            break
        batch = mixed(rng, rows)
        logits = AGREEMENT[family](rows, size, generator).to(getattr(torch, dtype))
        drawn = _drawn(setting, logits, batch)
        count, differ = counts[dtype, family], drawn[0] != drawn[1]
        seeded += int((~batch.greedy).sum())
        count.draws += int((~batch.greedy).sum())
        count.differ += int((differ & ~batch.greedy).sum())
        count.greedy += int(batch.greedy.sum())
        count.greedy_differ += int((differ & batch.greedy).sum())
        for row in np.flatnonzero(differ)[: _MOST_LISTED - len(listed)]:
            found = _judged(logits, batch, row, int(drawn[0][row]))
            if not batch.greedy[row]:
                count.margins.append(found)
            listed.append([str(size), dtype, family, _request(batch, row), *_tokens(drawn, row, found)])
    return _findings(setting, counts, listed, time.perf_counter() - start)


def _plan(shapes: tuple[tuple[int, int, int], ...]) -> Iterator[tuple[int, int, str, str]]:
    """Yield shapes in turn without end, each time with the next pair of family and dtype."""
    kinds = {size: itertools.cycle(itertools.product(AGREEMENT, _DTYPES)) for size, _, _ in shapes}
    for size, rows, times in itertools.cycle(shapes):
        for family, dtype in itertools.islice(kinds[size], times):
            yield size, rows, family, dtype


def _drawn(setting: Setting, logits: Tensor, batch: RequestArrays) -> tuple[np.ndarray, np.ndarray]:
    metadata = batch.metadata(setting.device)
    ours, theirs = (
        s.sample(logits, metadata).token_ids.cpu().numpy() for s in (setting.subject, setting.other)
    )
    return ours, theirs


def _judged(logits: Tensor, batch: RequestArrays, row: int, drawn: int) -> Margin:
    return margin(logits[row].double().cpu().numpy(), batch.params(row), int(batch.position[row]), drawn)


def _request(batch: RequestArrays, row: int) -> str:
    p = batch.params(row)
    return f"T {p.temperature:g}, k {p.top_k}, p {p.top_p:g}, min-p {p.min_p:g}, {p.filter_order}"


def _tokens(drawn: tuple[np.ndarray, np.ndarray], row: int, found: Margin) -> list[str]:
    numbers = (found.tile_lead, found.token_lead, found.edge)
    return [
        *(str(tokens[row]) for tokens in drawn),
        str(found.token),
        *("" if np.isinf(number) else f"{number:.1e}" for number in numbers),
        "uncertain" if found.uncertain else "",
        "rounding" if found.explained else "not explained",
    ]


def _findings(
    setting: Setting, counts: dict[tuple[str, str], _DrawCount], listed: list[list[str]], seconds: float
) -> Findings:
    total = _DrawCount()
    for count in counts.values():
        total.draws, total.differ = total.draws + count.draws, total.differ + count.differ
        total.greedy, total.greedy_differ = (
            total.greedy + count.greedy,
            total.greedy_differ + count.greedy_differ,
        )
        total.margins += count.margins
    share = 1 - total.differ / total.draws
    holds = share >= _LEAST and not total.greedy_differ and all(m.explained for m in total.margins)
    titles = ["dtype", "logits", "draws", "agree", "differ", "largest margin", "greedy that differ"]
    rows = [[*key, *count.row()] for key, count in sorted(counts.items())]
    parts = [
        f"{total.draws - total.differ:,} of {total.draws:,} seeded draws agree ({100 * share:.4f} %, needed "
        f"{100 * _LEAST:.2f} %), and {total.greedy - total.greedy_differ:,} of {total.greedy:,} greedy ones; "
        f"{seconds:.0f} s.",
        markdown(titles, [*rows, ["all", "", *total.row()]], words=2),
    ]
    if listed:
        names = ["V", "dtype", "logits", "request", setting.sampler, setting.reference, "float64"]
        columns = [*names, "lead of the tile", "of the token", "change of p or min-p", "edge", "so"]
        cut = f" The first {_MOST_LISTED} of them." if len(listed) == _MOST_LISTED else ""
        parts += [
            f"Disagreements, with leads in float64.{cut}",
            markdown(columns, listed, words=len(columns)),
        ]
    return Findings(text="\n\n".join(parts), holds=holds)
