"""Times penalties of windows and DRY along histories of any kind, and compares each result with native's, bit for bit.

``python benchmarks/history_edits.py --output benchmarks/results/h100_history_edits.md``. A call is a replay of a CUDA
graph of ``process`` alone, with an L2 that was written over before; medians and the worst of 60.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tokendraw import RequestSlots, SamplingParams, load
from tokendraw_bench import markdown_table

VOCAB_SIZE = 151_936
PENALTIES = {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1}
DRY = {"dry_multiplier": 0.8}
HISTORIES = ("text of Zipf's law", "random", "period of 50", "one token", "two tokens", "a b x")
_REPLAYS = 60
_COMPARED_ROWS = 8
"""Rows of a comparison: native takes memory by rows times tokens."""
_FLUSHED_BYTES = 256 << 20


class Cell(NamedTuple):
    """Edits of requests, and the kind of their histories."""

    name: str
    fields: dict[str, Any]
    history: str


def cells(tokens: int) -> Iterator[Cell]:
    """Yield the cells for histories of a length."""
    for history in HISTORIES[:2]:
        yield Cell("penalties", PENALTIES, history)
    for window in (64, 1000, 4000, tokens - 100):
        if 64 <= window < tokens:
            for history in ("text of Zipf's law", "random", "one token"):
                yield Cell(f"penalties of {window:,} tokens", PENALTIES | {"penalty_last_n": window}, history)
    for history in HISTORIES:
        yield Cell("DRY", DRY, history)
    yield Cell("DRY, penalties", DRY | PENALTIES, "random")
    yield Cell("DRY, penalties of 1,000 tokens", DRY | PENALTIES | {"penalty_last_n": 1000}, "random")
    yield Cell("DRY from 0 tokens on", DRY | {"dry_allowed_length": 0}, "random")
    yield Cell("DRY of base 1.01", DRY | {"dry_base": 1.01}, "one token")
    yield Cell("DRY, 64 breakers", DRY | {"dry_sequence_breakers": list(range(3, 67))}, "text of Zipf's law")


def history_of(kind: str, tokens: int, rng: np.random.Generator) -> torch.Tensor:
    """Make a history [tokens] int64."""
    ids = rng.integers(0, VOCAB_SIZE, tokens)
    if kind == "text of Zipf's law":
        ids = (np.exp(rng.uniform(0, np.log(VOCAB_SIZE), tokens)).astype(np.int64) - 1) * 7919 % VOCAB_SIZE
    elif kind == "period of 50":
        ids = np.resize(ids[:50], tokens)
    elif kind == "one token":
        ids = np.full(tokens, 1000)
    elif kind == "two tokens":
        ids = rng.choice([1000, 2000], tokens)
    elif kind == "a b x":
        ids[-2::-3], ids[::-1][::3] = 1000, 2000
    return torch.from_numpy(ids)


def slots_of(cell: Cell, rows: int, tokens: int, device: torch.device) -> RequestSlots:
    """Fill slots with requests of a cell, each with a history of its own."""
    rng, slots = np.random.default_rng(7), RequestSlots(rows, tokens, VOCAB_SIZE, device=device)
    for slot in range(rows):
        history = history_of(cell.history, tokens, rng)
        slots.add(slot, SamplingParams(**cell.fields), history[: tokens // 2], history[tokens // 2 :])
    slots.captured_edits = slots.facts
    return slots


def main() -> None:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 4096, 32_768])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    device, lines, wrong = torch.device("cuda"), [], 0
    processor, native = (load("process_logits", name, device=device) for name in ("triton-gumbel", "native"))
    flushed = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device=device)
    for tokens in arguments.tokens:
        for cell in cells(tokens):
            slots, times = slots_of(cell, max(arguments.rows), tokens, device), []
            for rows in arguments.rows:
                index = torch.arange(rows, device=device)
                logits = torch.randn(rows, VOCAB_SIZE, device=device).to(torch.bfloat16)
                results = [logits[:_COMPARED_ROWS].clone() for _ in range(2)]
                for each, result in zip((processor, native), results, strict=True):
                    each.process(result, slots, index[:_COMPARED_ROWS])
                wrong += int((results[0].view(torch.int16) != results[1].view(torch.int16)).sum())
                processor.process(logits, slots, index)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    processor.process(logits, slots, index)
                times.append(_replay_times(graph, flushed))
            found = [f"{statistics.median(each):.1f} ({max(each):.0f})" for each in times]
            lines.append([f"{tokens:,}", cell.name, cell.history, *found])
            print(*lines[-1], flush=True)
    columns = [f"{rows} rows" for rows in arguments.rows]
    parts = [
        "`python benchmarks/history_edits.py --output benchmarks/results/h100_history_edits.md`",
        f"Microseconds a call of triton-gumbel on {torch.cuda.get_device_name()}, V = {VOCAB_SIZE:,}, bfloat16; in "
        f"brackets the worst of {_REPLAYS}. Elements that differ from native's: {wrong}.",
        markdown_table(["tokens", "edits", "history", *columns], lines, ()),
    ]
    text = "\n\n".join(parts) + "\n"
    if arguments.output:
        arguments.output.write_text(text)
    print(text)


def _replay_times(graph: torch.cuda.CUDAGraph, flushed: torch.Tensor) -> list[float]:
    """Return the microseconds of replays, each with an L2 that was written over before."""
    pairs = []
    for _ in range(_REPLAYS):
        flushed.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return [1e3 * begin.elapsed_time(end) for begin, end in pairs]


if __name__ == "__main__":
    main()
