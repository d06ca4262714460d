"""Times every cell of a grid: makes its logits, asks who can serve it, and times them in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tokendraw._exchange.metadata import SamplingMetadata
from tokendraw._messages.errors import SamplerUnavailableError, TokendrawError
from tokendraw._messages.words import spoken
from tokendraw.bench import operations
from tokendraw.bench.cells import Cell
from tokendraw.bench.contenders import Contender
from tokendraw.bench.logits import mean_nucleus
from tokendraw.bench.report.lines import Line
from tokendraw.bench.timing.floor import measure
from tokendraw.bench.timing.timer import Call, Failure, Timer, Timing, WallTimer


def run(
    cells: Sequence[Cell],
    contenders: Sequence[Contender],
    *,
    device: torch.device,
    timer: Timer,
    readers: Mapping[str, Call],
    seeded: bool = True,
    starting: Callable[[Cell], None] | None = None,
) -> tuple[Line, ...]:
    """Time every contender on every cell.

    :param readers: passes over the logits; the fastest is what ratios refer to.
    :param seeded: give every row a seed, so that no launch is there to make fresh ones.
    :param starting: called before each cell.
    :raises TokendrawError: a cell does not fit into memory, or its logits cannot be read.
    """
    lines = []
    made: tuple[Cell | None, list[Tensor], float] = (None, [], 0.0)
    for cell in cells:
        if starting:
            starting(cell)
        rows = replace(cell, filters="")
        if made[0] != rows:
            made = (None, [], 0.0)  # two sets of buffers need not fit
            buffers = _buffers(cell, device, timer)
            first = buffers[0][: cell.batch]  # behind the first rows may lie others, which draw nothing
            made = (rows, buffers, mean_nucleus(first))
        _, buffers, nucleus = made
        lines.append(_line(cell, contenders, buffers, nucleus, timer, readers, seeded=seeded))
    return tuple(lines)


def timer_for(device: torch.device, repeats: int) -> Timer:
    """Make the timer for a kind of device.

    :param repeats: number of samples of a median.
    """
    if device.type == "cuda":
        from tokendraw.bench.timing.cuda_graphs import CudaTimer

        return CudaTimer(device, repeats)
    return WallTimer(repeats, synchronize=None if device.type == "cpu" else torch.accelerator.synchronize)


def make_logits(cell: Cell, device: torch.device, count: int) -> list[Tensor]:
    """Make ``count`` buffers [rows, V] of different rows; they are the same in every run on a kind of device."""
    generator = torch.Generator(device).manual_seed(1)
    dtype, operation = getattr(torch, cell.dtype), operations.get(cell.operation)
    return [operation.make_buffer(cell, device, generator).to(dtype) for _ in range(count)]


def metadata_of(cell: Cell, device: torch.device, *, seeded: bool) -> SamplingMetadata:
    """Make the metadata of a cell; seeds and positions are different in every row."""
    requests, rows = cell.requests, cell.row_index
    if not seeded:
        return SamplingMetadata.from_params(requests, device=device, row_index=rows)
    requests = [replace(request, seed=row) for row, request in enumerate(requests)]
    positions = range(len(requests if rows is None else rows))
    return SamplingMetadata.from_params(requests, device=device, positions=positions, row_index=rows)


def _buffers(cell: Cell, device: torch.device, timer: Timer) -> list[Tensor]:
    nbytes = cell.num_rows * cell.vocab_size * getattr(torch, cell.dtype).itemsize
    try:
        return make_logits(cell, device, timer.buffers(nbytes))
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise TokendrawError(
            f"{cell} needs buffers of {nbytes / 1e6:,.0f} MB on {device}, found no memory for them. "
            "Pass a smaller --batch or --vocab-size."
        ) from error


def _line(
    cell: Cell,
    contenders: Sequence[Contender],
    buffers: list[Tensor],
    nucleus: float,
    timer: Timer,
    readers: Mapping[str, Call],
    *,
    seeded: bool,
) -> Line:
    metadata = metadata_of(cell, buffers[0].device, seeded=seeded)
    ways: dict[str, Sequence[Call]] = {}
    refused: dict[str, Failure] = {}
    for contender in contenders:
        try:
            ways[contender.name] = contender.prepare(cell, metadata)
        except SamplerUnavailableError as error:
            refused[contender.name] = Failure(reason=str(error))
        except Exception as error:  # of a plugin, which may raise what it likes
            refused[contender.name] = Failure(reason=spoken(error))
    calls = {_key(name, call): call for name, several in ways.items() for call in several}
    found = measure(calls, buffers, timer, passes=readers, subject=str(cell))
    timed = {
        name: {call.way: found.calls[_key(name, call)] for call in several} for name, several in ways.items()
    }
    return Line(
        cell=cell,
        nucleus=nucleus,
        buffers=len(buffers),
        nbytes=buffers[0].nbytes,
        read=found.read,
        read_by=found.read_by,
        entries={c.name: refused.get(c.name) or _best(timed[c.name]) for c in contenders},
        ways={name: entries for name, entries in timed.items() if len(entries) > 1},
    )


def _key(name: str, call: Call) -> str:
    return f"{name}: {call.way}" if call.way else name


def _best(ways: Mapping[str, Timing | Failure]) -> Timing | Failure:
    """Return the fastest; where none could be timed, why the first could not."""
    timings = [entry for entry in ways.values() if isinstance(entry, Timing)]
    return min(timings, key=lambda timing: timing.us) if timings else next(iter(ways.values()))
