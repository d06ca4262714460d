"""Timing of operations for ``tokendraw bench``, with parts for custom benchmarks.

======================  ===============================================================================================
:class:`Cell`           a cell to time: shape, dtype, filters and family of logits; ``TEMPERATURE``, ``TOP_K``,
                        ``TOP_P`` and ``MIN_P`` are the parameters of its rows
:func:`make_inputs`     makes the buffers of a cell
:func:`make_rows`       makes logits of a family
:func:`mean_nucleus`    counts the tokens that top-p alone keeps of a row
:func:`metadata_of`     makes the metadata of the rows of a cell
:class:`TimedCall`      one step on a buffer, to be timed
:func:`timer_for`       makes the :class:`Timer` of a device: CUDA graphs out of a cold cache, or the clock on the wall
:class:`Timing`         the median and the quartiles of a call; :class:`Failure` if the call raised
:func:`readers`         passes that only read a buffer, the base of ratios
:func:`measure`         times calls and reads of the same buffers, in turns, and returns :class:`Measured`
:func:`markdown_table`  writes a table in Markdown
======================  ===============================================================================================

``operations`` has a module for each operation, ``baselines`` the contenders without a plugin, ``timing`` the timers,
``report`` tables, ``ranks`` the processes of ``--ranks``, ``commands`` the command.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokendraw_bench.cells import MIN_P, TEMPERATURE, TOP_K, TOP_P, Cell
    from tokendraw_bench.logits import make_rows, mean_nucleus, metadata_of
    from tokendraw_bench.report.table import markdown_table
    from tokendraw_bench.run import make_inputs, timer_for
    from tokendraw_bench.timing.floor import Measured, measure, readers
    from tokendraw_bench.timing.timer import Failure, TimedCall, Timer, Timing

_HOMES = {
    "cells": ("MIN_P", "TEMPERATURE", "TOP_K", "TOP_P", "Cell"),
    "logits": ("make_rows", "mean_nucleus", "metadata_of"),
    "report.table": ("markdown_table",),
    "run": ("make_inputs", "timer_for"),
    "timing.floor": ("Measured", "measure", "readers"),
    "timing.timer": ("TimedCall", "Failure", "Timer", "Timing"),
}

__all__ = [
    "MIN_P",
    "TEMPERATURE",
    "TOP_K",
    "TOP_P",
    "Cell",
    "Failure",
    "Measured",
    "TimedCall",
    "Timer",
    "Timing",
    "make_inputs",
    "make_rows",
    "markdown_table",
    "mean_nucleus",
    "measure",
    "metadata_of",
    "readers",
    "timer_for",
]

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOME_OF[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return __all__
