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

``operations`` has a module for each operation, ``baselines`` the contenders without a plugin, ``timing`` and
``cuda_graphs`` the timers, ``report`` tables, ``sweeps`` the preset ``cliffs``, ``command`` the command, ``page`` its
HTML, ``export`` datasets of flashinfer-bench.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendraw.tools import lazy_names

if TYPE_CHECKING:
    from tokendraw_bench.cells import MIN_P as MIN_P
    from tokendraw_bench.cells import TEMPERATURE as TEMPERATURE
    from tokendraw_bench.cells import TOP_K as TOP_K
    from tokendraw_bench.cells import TOP_P as TOP_P
    from tokendraw_bench.cells import Cell as Cell
    from tokendraw_bench.floor import Measured as Measured
    from tokendraw_bench.floor import measure as measure
    from tokendraw_bench.floor import readers as readers
    from tokendraw_bench.logits import make_rows as make_rows
    from tokendraw_bench.logits import mean_nucleus as mean_nucleus
    from tokendraw_bench.logits import metadata_of as metadata_of
    from tokendraw_bench.report import markdown_table as markdown_table
    from tokendraw_bench.run import make_inputs as make_inputs
    from tokendraw_bench.run import timer_for as timer_for
    from tokendraw_bench.timing import Failure as Failure
    from tokendraw_bench.timing import TimedCall as TimedCall
    from tokendraw_bench.timing import Timer as Timer
    from tokendraw_bench.timing import Timing as Timing

__getattr__, __dir__ = lazy_names(__name__)
