"""The bench behind ``tokendraw bench``, and the parts of it that a benchmark of one's own can use.

======================  ===============================================================================================
:class:`Cell`           what is timed: a shape, a dtype, filters and a family of logits; ``TEMPERATURE``, ``TOP_K``,
                        ``TOP_P`` and ``MIN_P`` are what its rows ask for
:func:`make_inputs`     makes the buffers of a cell
:func:`mean_nucleus`    counts the tokens that top-p alone keeps of a row
:func:`metadata_of`     makes what the rows of a cell ask for
:class:`Call`           one step on a buffer, to be timed
:func:`timer_for`       makes the :class:`Timer` of a device: CUDA graphs out of a cold cache, or the clock on the wall
:class:`Timing`         what it finds of a call: the median and the quartiles; :class:`Failure` if the call raised
:func:`readers`         passes that only read a buffer, which ratios refer to
:func:`measure`         times calls and reads of the same buffers, in turns, and returns :class:`Measured`
:func:`markdown_table`  writes a table in Markdown
======================  ===============================================================================================

Its rooms: ``operations`` has a module for each operation that can be timed, ``baselines`` what is timed beside the
installed samplers, ``timing`` times calls, ``report`` shows what was found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendraw._lazy import lazy_names

if TYPE_CHECKING:
    from tokendraw.bench.cells import MIN_P, TEMPERATURE, TOP_K, TOP_P, Cell
    from tokendraw.bench.logits import mean_nucleus, metadata_of
    from tokendraw.bench.report.table import markdown_table
    from tokendraw.bench.run import make_inputs, timer_for
    from tokendraw.bench.timing.floor import Measured, measure, readers
    from tokendraw.bench.timing.timer import Call, Failure, Timer, Timing

_HOMES = {
    "bench.cells": ("MIN_P", "TEMPERATURE", "TOP_K", "TOP_P", "Cell"),
    "bench.logits": ("mean_nucleus", "metadata_of"),
    "bench.report.table": ("markdown_table",),
    "bench.run": ("make_inputs", "timer_for"),
    "bench.timing.floor": ("Measured", "measure", "readers"),
    "bench.timing.timer": ("Call", "Failure", "Timer", "Timing"),
}

__all__ = [
    "MIN_P",
    "TEMPERATURE",
    "TOP_K",
    "TOP_P",
    "Call",
    "Cell",
    "Failure",
    "Measured",
    "Timer",
    "Timing",
    "make_inputs",
    "markdown_table",
    "mean_nucleus",
    "measure",
    "metadata_of",
    "readers",
    "timer_for",
]

__getattr__ = lazy_names(globals(), _HOMES)


def __dir__() -> list[str]:
    return __all__
