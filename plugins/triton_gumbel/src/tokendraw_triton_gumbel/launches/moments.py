"""The launches between the pass over the logits and the draw of rows with filters from moments.

The moments of each row come from the sums of its tiles. The filters compute floors from these, in torch; a launch for
each filter raises the floors of the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch

from tokendraw.plugin import Moment
from tokendraw_triton_gumbel.host.launch import Launch, LaunchArguments, Step, group
from tokendraw_triton_gumbel.host.scratch import PER_ROW, Scratch
from tokendraw_triton_gumbel.host.variant import Target, Variant
from tokendraw_triton_gumbel.kernels.shared.argument_groups import DraftRows, MomentSums, TileStatistics
from tokendraw_triton_gumbel.kernels.tile_pass.combine_floors import (
    ROWS_PER_PROGRAM,
    FilterFloors,
    combine_floors,
)
from tokendraw_triton_gumbel.kernels.tile_pass.row_moments import row_moments

_WARPS = 4
MOMENTS_OF_SUMS = {
    ("counts", "distances", "squares"): {"count", "mean", "std"},
    ("entropies",): {"entropy"},
    ("collisions",): {"collision"},
}
"""The moments that need some of :class:`.MomentSums`."""


def reserve_moment_sums(moments: Collection[Moment], scratch: Scratch, tiles: int) -> list[int | None]:
    """Return the numbers of new buffers of :class:`.MomentSums`, None for sums that no moment needs."""
    buffers: list[int | None] = [None] * len(MomentSums._fields)
    for fields, readers in MOMENTS_OF_SUMS.items():
        if readers.intersection(moments):
            for field in fields:
                buffers[MomentSums._fields.index(field)] = scratch.reserve(torch.float32, tiles, PER_ROW)
    return buffers


class MomentLaunches:
    """The launches of a variant, and the scratch for sums and floors; without filters there is none."""

    def __init__(
        self, variant: Variant, target: Target, scratch: Scratch, *, tiles: int, max_tiles: int
    ) -> None:
        self._sums = reserve_moment_sums(variant.moments, scratch, tiles)
        self._floor = scratch.reserve(torch.float32, 1, PER_ROW) if variant.moments else None
        self._row_moments = Launch(row_moments, {"TILES": max_tiles}, target.options(_WARPS))
        self._combine_floors = Launch(combine_floors, {}, target.options(_WARPS))

    def sums(self, scratch: Sequence[Any]) -> MomentSums:
        """Return the sums that the pass over the logits has to write."""
        return group(MomentSums, [None if number is None else scratch[number] for number in self._sums])

    def floor(self, scratch: Sequence[Any]) -> Any:
        """Return the floors [rows] float32 that the launches write."""
        assert self._floor is not None  # filters read moments
        return scratch[self._floor]

    def steps(
        self,
        arguments: LaunchArguments,
        floors: Iterable[FilterFloors],
        drafts: DraftRows,
        of_rows: tuple[Any, Any],
        statistics: TileStatistics,
    ) -> Iterator[Step]:
        """Yield the launches.

        :param floors: of each filter; computed from the moments once the first launch is there.
        :param of_rows: temperatures of the slots, and the slot of each row.
        """
        counts, scratch = arguments.geometry.counts, arguments.scratch
        moments = (drafts, counts, *of_rows, statistics, self.sums(scratch), arguments.moments)
        yield self._row_moments, arguments.geometry.row_grid, moments
        grid = (-(-counts.rows // ROWS_PER_PROGRAM.value), 1, 1)
        for of_filter in floors:
            yield self._combine_floors, grid, (of_filter, self.floor(scratch), counts.rows)
