"""Draws a seeded batch of mixed filters in every way that must not change its tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from batches import Batch, mixed
from families import AGREEMENT
from replays import captured
from setting import Findings, Setting, configurations, markdown
from torch import Tensor

from tokendraw import BatchFacts

_SIZES = (1, 2, 8, 64, 65)
_MOST_CALLS = 24
"""Parts of the batch that are drawn by themselves, for each size."""


@dataclass(frozen=True)
class _Case:
    """A batch and the tokens that it has when it is drawn as a whole."""

    setting: Setting
    logits: Tensor
    batch: Batch
    expected: Tensor

    def differ(self, logits: Tensor, rows: Any, facts: BatchFacts | None = None) -> int:
        """Count the rows that draw another token from ``logits``, which holds these rows in this order."""
        metadata = self.batch.take(rows).metadata(self.setting.device, facts=facts)
        found = self.setting.subject.sample(logits, metadata).token_ids
        return int((found != self.expected[torch.as_tensor(rows, device=found.device)]).sum())


Try = tuple[str, Callable[[_Case], tuple[int, int, int]]]
"""Names a way to draw the batch, with its function: calls, rows compared, rows that differ."""


def run(setting: Setting) -> Findings:
    """Try everything on bfloat16 and on float32."""
    rows, size = (70, 1500) if setting.small else (1024, 151_936)
    lines, holds = [], True
    for dtype in ("bfloat16", "float32"):
        case = _case(setting, rows, size, getattr(torch, dtype))
        for what, attempt in _tries(setting):
            try:
                calls, compared, differ = attempt(case)
                texts, good = [str(calls), f"{compared:,}", str(differ)], differ == 0
            except Exception as error:
                reason = " ".join(str(error).split())[:200]
                texts, good = ["", "", f"{type(error).__name__}: {reason}"], False
            holds = holds and good
            lines.append([what, dtype, *texts])
    titles = ["drawn", "dtype", "calls", "rows compared", "rows that differ"]
    said = f"{rows} x {size}, mixed filters, a seed a row; compared with the batch drawn as a whole, bit for bit."
    missing = configurations(setting.sampler)[2]
    if missing:
        said += f" Tile configurations not tried: {missing}."
    return Findings(text=f"{said}\n\n{markdown(titles, lines, words=2)}", holds=holds and not missing)


def _case(setting: Setting, rows: int, size: int, dtype: torch.dtype) -> _Case:
    generator = torch.Generator(setting.device).manual_seed(5)
    batch = mixed(np.random.default_rng(5), rows)
    families = list(AGREEMENT.values())
    logits = torch.empty(rows, size, dtype=dtype, device=setting.device)
    for index, family in enumerate(families):
        part = logits[index :: len(families)]
        part.copy_(family(len(part), size, generator))
    expected = setting.subject.sample(logits, batch.metadata(setting.device)).token_ids
    return _Case(setting, logits, batch, expected)


def _tries(setting: Setting) -> Iterator[Try]:
    yield "all rows, again", lambda case: _whole(case, case.logits)
    for size in _SIZES:
        yield (
            f"{size} row{'s' * (size > 1)} at a time",
            lambda case, size=size: _parts(case, _offsets(case, size)),
        )
    yield "with facts that know of nothing", lambda case: _whole(case, case.logits, BatchFacts())
    yield "in another order", _permuted
    yield "at an odd stride, from offset 1", lambda case: _whole(case, _odd(case.logits))
    yield "with the vocabulary across rows", lambda case: _whole(case, case.logits.t().contiguous().t())
    if setting.device.type == "cuda":
        yield "in a replay of a CUDA graph", _replayed
    table, override, _ = configurations(setting.sampler)
    for name, configuration in table.items():
        yield f"configuration {name}", lambda case, c=configuration: _forced(case, override, c)


def _offsets(case: _Case, size: int) -> list[Sequence[int]]:
    """Return the first rows of parts of this size: the first, the last, and others between them."""
    last = len(case.batch) - size
    starts = np.unique(np.linspace(0, last, min(_MOST_CALLS, last + 1)).astype(int))
    return [range(start, start + size) for start in starts.tolist()]


def _parts(
    case: _Case, parts: Sequence[Sequence[int]], facts: BatchFacts | None = None
) -> tuple[int, int, int]:
    differ = sum(case.differ(case.logits[part[0] : part[-1] + 1], list(part), facts) for part in parts)
    return len(parts), sum(map(len, parts)), differ


def _whole(case: _Case, logits: Tensor, facts: BatchFacts | None = None) -> tuple[int, int, int]:
    return 1, len(logits), case.differ(logits, range(len(logits)), facts)


def _permuted(case: _Case) -> tuple[int, int, int]:
    order = np.random.default_rng(6).permutation(len(case.batch)).tolist()
    return 1, len(order), case.differ(case.logits[order], order)


def _odd(logits: Tensor) -> Tensor:
    """Copy rows to an odd stride, the first not at the start of its storage."""
    rows, size = logits.shape
    stride = size + 13 + size % 2
    storage = torch.full((1 + rows * stride,), torch.nan, dtype=logits.dtype, device=logits.device)
    view = storage[1:].as_strided((rows, size), (stride, 1))
    return view.copy_(logits)


def _replayed(case: _Case) -> tuple[int, int, int]:
    """Draw in a graph captured on zeros, so that the tokens come from the replay."""
    logits, metadata = torch.zeros_like(case.logits), case.batch.metadata(case.setting.device)
    graph, output = captured(lambda: case.setting.subject.sample(logits, metadata))
    logits.copy_(case.logits)
    differ = 0
    for _ in range(2):
        output.token_ids.fill_(-1)
        graph.replay()
        differ += int((output.token_ids != case.expected).sum())
    return 2, 2 * len(logits), differ


def _forced(case: _Case, override: Any, configuration: Any) -> tuple[int, int, int]:
    """Return the batch, and parts of it with the facts of the whole, so that each kernel is compiled once."""
    facts = case.batch.facts()
    with override(configuration):
        done = [
            _whole(case, case.logits),
            *(_parts(case, _offsets(case, size)[:: _MOST_CALLS - 1], facts) for size in (65, 1)),
        ]
    calls, compared, differ = (sum(column) for column in zip(*done, strict=True))
    return calls, compared, differ
