"""A report as a picture: microseconds against the batch, a panel for each vocabulary, dtype, filters and logits."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokendraw._errors import InvalidParameterError, TokendrawError
from tokendraw._words import one_of
from tokendraw.bench._report import Line, Report
from tokendraw.bench._timing import Timing

_ACROSS = 4
_PANEL = (4.2, 3.2)  # inches


def check(path: Path) -> None:
    """See that a picture can be written, before anything is timed.

    :raises TokendrawError: matplotlib is not installed.
    :raises InvalidParameterError: the name of the file ends in no format that it writes.
    """
    suffixes = _figure(1, 1).canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in suffixes:
        raise InvalidParameterError(
            f"'--plot' needs a file that ends in {one_of('.' + s for s in sorted(suffixes))}, found '{path}'."
        )


def draw(report: Report, path: Path) -> None:
    """Write the picture, in the format that the name of the file ends in."""
    figure_of(report).savefig(path)


def figure_of(report: Report) -> Any:
    """A matplotlib figure; the read is dashed, and a line has a gap where a contender could not be timed."""
    panels: dict[tuple[int, str, str, str], list[Line]] = {}
    for line in report.lines:
        cell = line.cell
        panels.setdefault((cell.vocab_size, cell.dtype, cell.filters, cell.family), []).append(line)
    columns = min(_ACROSS, len(panels))
    down = -(-len(panels) // columns)
    figure = _figure(columns, down)
    grid = figure.subplots(down, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (key, lines) in zip(grid.flat, panels.items(), strict=False):
        vocab_size, dtype, filters, family = key
        _panel(axes, f"V = {vocab_size}, {dtype}\n{filters}, {family}", lines, report)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.suptitle(report.host)
    return figure


def _panel(axes: Any, title: str, lines: Sequence[Line], report: Report) -> None:
    lines = sorted(lines, key=lambda line: line.cell.batch)
    batches = [line.cell.batch for line in lines]
    floor = [line.read.us for line in lines]
    axes.plot(batches, floor, color="black", linestyle="--", marker=".", label="read of the logits")
    for name in report.contenders:
        times = [_us(line, name) for line in lines]
        axes.plot(batches, times, marker="o", markersize=4, label=name)
    axes.set(title=title, xlabel="batch", ylabel="microseconds", xscale="log", yscale="log")
    axes.title.set_fontsize("small")
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()
    axes.grid(alpha=0.3)


def _us(line: Line, name: str) -> float:
    entry = line.entries[name]
    return entry.us if isinstance(entry, Timing) else float("nan")


def _figure(columns: int, down: int) -> Any:
    try:
        figure: Any = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise TokendrawError(
            "'--plot' needs matplotlib, found it not installed; run `pip install 'tokendraw[bench]'`."
        ) from error
    width, height = _PANEL
    return figure.Figure(figsize=(width * columns, height * down + 0.8), layout="constrained")
