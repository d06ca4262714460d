"""Times and tables that the scripts beside it share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tokendraw.resolution import detect_host, installed_version
from tokendraw_bench import Call, Cell, Failure, Measured, Timing, make_inputs, measure, timer_for


def measured(
    cell: Cell, calls: Mapping[str, Callable[[Tensor], object]], device: torch.device, repeats: int
) -> Measured:
    """Time calls on the logits of a cell, beside reads of the same logits."""
    timer = timer_for(device, repeats)
    buffers = make_inputs(cell, device, timer.buffers(cell.nbytes))
    return measure({name: Call(draw=draw) for name, draw in calls.items()}, buffers, timer)


def time_and_ratio(found: Measured, name: str) -> tuple[str, str]:
    """Write the microseconds of a call, with those of the host in brackets, and its ratio to the read."""
    entry = found.calls[name]
    if isinstance(entry, Failure):
        return entry.reason, ""
    return microseconds(entry), f"{entry.us / found.read.us:.1f}"


def microseconds(timing: Timing) -> str:
    """Write the microseconds of a call, with those until it returns in brackets where the device computes."""
    host = "" if timing.host_us is None else f" ({timing.host_us:.0f})"
    return f"{timing.us:.0f}{host}"


def head(device: torch.device, names: tuple[str, ...]) -> str:
    """Name the machine, and the versions of what takes part: these samplers, FlashInfer, Triton and torch."""
    plugins = [distribution for name in names for distribution in (f"tokendraw-{name}", f"{name}-tokendraw")]
    distributions = ["tokendraw", *plugins, "flashinfer-python", "triton"]
    found = {"torch": torch.__version__} | {name: installed_version(name) for name in distributions}
    return f"{detect_host(str(device))}: {', '.join(f'{name} {v}' for name, v in found.items() if v)}."
