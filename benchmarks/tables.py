"""What the scripts beside it share: calls timed on the buffers of a cell, and tables of their times in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from tokendraw.bench import Call, Cell, Failure, Timing, make_logits, readers, timer_for
from tokendraw.resolution import detect_host, installed_version


def timing(
    device: torch.device, repeats: int
) -> Callable[[Cell, Mapping[str, Callable[[torch.Tensor], object]]], dict[str, Timing | Failure]]:
    """Times calls on the buffers of a cell; by name, and "" is the fastest read of the buffers."""
    timer = timer_for(device, repeats)

    def time(
        cell: Cell, calls: Mapping[str, Callable[[torch.Tensor], object]]
    ) -> dict[str, Timing | Failure]:
        width = getattr(torch, cell.dtype).itemsize
        buffers = make_logits(cell, device, timer.buffers(cell.batch * cell.vocab_size * width))
        reading = {f"read by {name}": call for name, call in readers(device).items()}
        found = timer.time(reading | {name: Call(draw=draw) for name, draw in calls.items()}, buffers)
        reads = [timing for name in reading if isinstance(timing := found[name], Timing)]
        return {"": min(reads, key=lambda timing: timing.us)} | {name: found[name] for name in calls}

    return time


def shown(taken: Mapping[str, Timing | Failure], name: str) -> tuple[str, str]:
    entry, read = taken[name], taken[""]
    if isinstance(entry, Failure) or isinstance(read, Failure):
        return entry.reason if isinstance(entry, Failure) else "", ""
    host = "" if entry.host_us is None else f" ({entry.host_us:.0f})"
    return f"{entry.us:.0f}{host}", f"{entry.us / read.us:.1f}"


def head(device: torch.device, names: tuple[str, str]) -> str:
    distributions = ["tokendraw", *(f"tokendraw-{name}" for name in names), "flashinfer-python", "triton"]
    found = {"torch": torch.__version__} | {name: installed_version(name) for name in distributions}
    return f"{detect_host(str(device))}: {', '.join(f'{name} {v}' for name, v in found.items() if v)}."


def markdown(titles: list[str], rows: list[list[str]]) -> str:
    rule = ["---", *["--:"] * (len(titles) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, rule, *rows))
