"""The launches around a draw whose rows may ask for XTC or the filter order ``temperature_last``.

Before the draw a launch writes the temperature and the min-p that filters look at. Launches 1 to 3 find thresholds with
these; behind them a launch draws the rows that ask, each from the interval that it keeps, at its own temperature.
"""

from __future__ import annotations

from typing import Any

import torch

from tokendraw_triton_gumbel.host.launch import IntervalArguments, Launch, LaunchArguments, Step, group
from tokendraw_triton_gumbel.host.scratch import PER_ROW, Scratch
from tokendraw_triton_gumbel.host.variant import Target, Variant
from tokendraw_triton_gumbel.kernels.kept_interval.argument_groups import (
    IntervalParams,
    KeptInterval,
    KeptMasses,
)
from tokendraw_triton_gumbel.kernels.kept_interval.filter_params import SLOTS_PER_PROGRAM, filter_params
from tokendraw_triton_gumbel.kernels.kept_interval.redraw_rows import redraw_rows
from tokendraw_triton_gumbel.kernels.row_draw.small_set import SMALL_CANDIDATES
from tokendraw_triton_gumbel.kernels.shared.argument_groups import (
    CandidateLists,
    DraftRows,
    DrawResults,
    Logits,
    RowParams,
    RowSummary,
    TileStatistics,
)
from tokendraw_triton_gumbel.kernels.shared.configs import IntervalConfig

_WARPS = 4
_TILES_AT_ONCE = 4
_PROGRAMS = 16
"""Programs a multiprocessor, about: a row has parts as long as there are no more."""


class IntervalLaunches:
    """The launches of a variant, and the scratch for weights of tiles."""

    def __init__(
        self, variant: Variant, target: Target, scratch: Scratch, tiles: int, max_tiles: int
    ) -> None:
        self._scratch = scratch.reserve_group([(torch.float32, tiles, PER_ROW), (torch.int32, 1, PER_ROW)])
        self.log_masses = scratch.reserve(torch.float32, 1, PER_ROW) if variant.has_logprobs else None
        """Number of the buffer of :attr:`.KeptInterval.log_masses`."""
        self._max_parts, self._programs = -(-tiles // _TILES_AT_ONCE), _PROGRAMS * target.processors
        config = IntervalConfig(
            FP64=target.fp64,
            TILES=max_tiles,
            TILES_AT_ONCE=_TILES_AT_ONCE,
            VECTOR=variant.logits.vector,
            SMALL_CANDIDATES=SMALL_CANDIDATES,
            HAS_LOGPROBS=variant.has_logprobs,
        )
        self._filter_params = Launch(filter_params, {}, target.options(_WARPS))
        self._redraw = Launch(redraw_rows, {"config": config}, target.options(_WARPS))

    def filter_step(self, arguments: LaunchArguments, interval: IntervalArguments) -> Step:
        """Return the launch that fills in the parameters of the filters."""
        grid = (-(-interval.slots // SLOTS_PER_PROGRAM.value), 1, 1)
        is_last, written = interval.params.temperature_last, interval.filter_params
        return (
            self._filter_params,
            grid,
            (arguments.params, is_last, written, interval.slots, arguments.flags),
        )

    def results(self, arguments: LaunchArguments, interval: IntervalArguments) -> KeptInterval:
        """Return the results and the scratch of the last launch; the draw of rows writes ``arrivals``."""
        scratch = arguments.scratch
        log_masses = None if self.log_masses is None else scratch[self.log_masses]
        return group(KeptInterval, (interval.ceiling, *scratch[self._scratch], log_masses))

    def redraw_step(
        self,
        arguments: LaunchArguments,
        logits: Logits,
        drafts: DraftRows,
        statistics: TileStatistics,
        lists: CandidateLists,
        summary: RowSummary,
        drawn: DrawResults,
        params: IntervalParams,
        results: KeptInterval,
        kept: KeptMasses,
    ) -> Step:
        """Return the launch that draws the rows again; all groups but the last are those of the draw.

        :param kept: to be filled in for a verification by probabilities.
        """
        rows, *_ = arguments.geometry.row_grid
        return (
            self._redraw,
            (rows, max(1, min(self._max_parts, self._programs // rows)), 1),
            (
                logits,
                drafts,
                arguments.geometry.counts,
                statistics,
                arguments.params,
                params,
                arguments.flags,
                lists,
                summary,
                drawn,
                results,
                kept,
            ),
        )


def params_of_filters(params: RowParams, interval: IntervalArguments) -> RowParams:
    """Return the parameters of requests with those that the filters look at in their place."""
    written: dict[str, Any] = interval.filter_params._asdict()
    return params._replace(
        **{name: written[name] for name in ("temperature", "min_p") if written[name] is not None}
    )
