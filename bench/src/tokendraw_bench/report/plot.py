"""Draws a report about logits as a picture: microseconds against the batch, a panel for each dtype, filters and logits.

If a batch occurs with several vocabularies, each vocabulary has separate panels; else it stands below the batch.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokendraw import InvalidParameterError, TokendrawError
from tokendraw.tools import how_to_install, one_of
from tokendraw_bench.report.lines import BenchReport, CellResult
from tokendraw_bench.timing.timer import Timing

_MAX_COLUMNS = 4
_PANEL_INCHES = (4.2, 3.2)  # inches


def check(path: Path) -> None:
    """Check before a run that a picture can be written.

    :raises TokendrawError: matplotlib is not installed.
    :raises InvalidParameterError: the name of the file ends in no format of matplotlib.
    """
    suffixes = _figure(1, 1).canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in suffixes:
        raise InvalidParameterError(
            f"'--plot' needs a file that ends in {one_of('.' + s for s in sorted(suffixes))}, found '{path}'."
        )


def draw(report: BenchReport, path: Path) -> None:
    """Write the picture in the format of the file's suffix."""
    figure_of(report).savefig(path)


def figure_of(report: BenchReport) -> Any:
    """Draw a matplotlib figure; the read is dashed, and a line has a gap where a contender could not be timed."""
    panels = _panels(report.lines)
    families = {line.cell.family for line in report.lines}
    columns = min(_MAX_COLUMNS, len(families) if len(families) > 1 else len(panels))
    down = -(-len(panels) // columns)
    figure = _figure(columns, down)
    grid = figure.subplots(down, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, lines) in zip(grid.flat, panels.items(), strict=False):
        _panel(axes, title, lines, report)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.suptitle(report.host)
    return figure


def _panels(lines: Sequence[CellResult]) -> dict[str, list[CellResult]]:
    """Group lines by the title of their panel, families side by side; lines of a panel differ in the batch."""
    shapes = {(line.cell.batch, line.cell.vocab_size) for line in lines}
    share_panels = (
        len({batch for batch, _ in shapes}) == len(shapes) and len({size for _, size in shapes}) > 1
    )
    panels: dict[tuple[str, str, str], list[CellResult]] = {}
    for line in lines:
        cell = line.cell
        which = cell.dtype if share_panels else f"V = {cell.vocab_size}, {cell.dtype}"
        panels.setdefault((which, cell.description, cell.family), []).append(line)
    in_order = itertools.product(*(dict.fromkeys(column) for column in zip(*panels, strict=True)))
    return {"{}\n{}, {}".format(*key): panels[key] for key in in_order if key in panels}


def _panel(axes: Any, title: str, lines: Sequence[CellResult], report: BenchReport) -> None:
    lines = sorted(lines, key=lambda line: line.cell.batch)
    batches = [line.cell.batch for line in lines]
    floor = [line.floor.us for line in lines]
    axes.plot(batches, floor, color="black", linestyle="--", marker=".", label="read of the logits")
    for name in report.contenders:
        times = [_us(line, name) for line in lines]
        axes.plot(batches, times, marker="o", markersize=4, label=name)
    axes.set(title=title, xlabel="batch", ylabel="microseconds", xscale="log", yscale="log")
    axes.title.set_fontsize("small")
    sizes = [line.cell.vocab_size for line in lines]
    below = ["" for _ in sizes] if len(set(sizes)) == 1 else [f"\nx {size / 1000:.0f}k" for size in sizes]
    axes.set_xticks(batches, [f"{batch}{text}" for batch, text in zip(batches, below, strict=True)])
    axes.minorticks_off()
    axes.grid(alpha=0.3)


def _us(line: CellResult, name: str) -> float:
    entry = line.entries[name]
    return entry.us if isinstance(entry, Timing) else float("nan")


def _figure(columns: int, down: int) -> Any:
    try:
        figure: Any = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise TokendrawError(
            f"'--plot' needs matplotlib, found it not installed; run {how_to_install('tokendraw-bench', 'plot')}."
        ) from error
    width, height = _PANEL_INCHES
    return figure.Figure(figsize=(width * columns, height * down + 0.8), layout="constrained")
