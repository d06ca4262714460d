"""The launches over the columns of a rank: statistics of tiles, weights of kept tokens, and the draw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tokendraw_triton_gumbel.host import params_layout
from tokendraw_triton_gumbel.host.compilation import ANY_INT, FLOAT32, Pointer
from tokendraw_triton_gumbel.host.geometry import power_of_two, rounded_rows, row_grid
from tokendraw_triton_gumbel.host.launch import Launch, Step, compile_steps, group
from tokendraw_triton_gumbel.host.scratch import PER_ROW, Scratch
from tokendraw_triton_gumbel.host.variant import Target
from tokendraw_triton_gumbel.kernels.shards.argument_groups import RowBounds, SlotTemperatures
from tokendraw_triton_gumbel.kernels.shards.draw_shard import draw_shard
from tokendraw_triton_gumbel.kernels.shards.shard_statistics import shard_statistics
from tokendraw_triton_gumbel.kernels.shards.weigh_kept import TILES_AT_ONCE, weigh_kept
from tokendraw_triton_gumbel.kernels.shared.argument_groups import (
    Counts,
    Logits,
    MomentSums,
    TileStatistics,
)
from tokendraw_triton_gumbel.kernels.shared.configs import ShardDrawConfig
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE
from tokendraw_triton_gumbel.launches.draw import tile_pass
from tokendraw_triton_gumbel.launches.moments import reserve_moment_sums
from tokendraw_triton_gumbel.ranks.message_layout import argmax_layout, draws_layout
from tokendraw_triton_gumbel.ranks.search_launches import MIN_TILES, SearchLaunches
from tokendraw_triton_gumbel.ranks.shard_variant import ShardArguments, ShardGeometry, ShardVariant

_NO_SUMS = MomentSums()


class ColumnLaunches:
    """The launches of a variant, and the scratch between launches. It holds no tensor of any call."""

    def __init__(self, variant: ShardVariant, target: Target) -> None:
        configuration, logits, tiles = variant.configuration, variant.logits, variant.shard.tiles
        self.variant, self.scratch = variant, Scratch()
        self._span = configuration.span(logits.dtype.itemsize)
        max_tiles, reserve = power_of_two(tiles, at_least=MIN_TILES), self.scratch.reserve
        self._maxima, self._sums = (reserve(torch.float32, tiles, PER_ROW) for _ in range(2))
        self._raw_sums = self._granules = self._kept_sums = None
        if variant.has_logprobs and variant.param_dtypes[0] is not None:
            self._raw_sums = reserve(torch.float32, tiles, PER_ROW)
        if variant.has_filters:
            self._granules = reserve(logits.dtype, tiles * GRANULES_PER_TILE.value, PER_ROW)
            self._kept_sums = reserve(torch.float32, tiles, PER_ROW)
        self._moment_sums = reserve_moment_sums(variant.moments, self.scratch, tiles)
        self._statistics = tile_pass(
            shard_statistics,
            logits,
            configuration,
            target,
            is_aligned=variant.is_aligned,
            has_raw_sums=self._raw_sums is not None,
            has_further_sums=variant.moments != (),
        )
        self.searches = SearchLaunches(self, self.scratch, max_tiles) if variant.has_filters else None
        options = target.options(configuration.row_warps)
        self._weigh = Launch(weigh_kept, {}, options)
        is_argmax = not (variant.is_drawn or variant.has_logprobs)
        self.message = (
            argmax_layout()
            if is_argmax
            else draws_layout(fp64=target.fp64, has_logprobs=variant.has_logprobs)
        )
        """The layout of the message that a draw writes."""
        fields = (*("max", "has_nan", "score", "ids", "log_sum", "key"), *("x", "kept", "mass", "raw"))
        config = ShardDrawConfig(
            max_tiles,
            target.fp64,
            variant.is_drawn,
            variant.has_logprobs,
            1 if is_argmax else 3,
            2 if target.fp64 else 1,
            self.message.width,
            *map(self.message.place, fields),
        )
        self._draw = Launch(draw_shard, {"config": config}, options)
        compile_steps(self._placeholder_steps())

    def geometry(self, rows: int) -> ShardGeometry:
        """Compute the grid and the scratch layout of a number of rows."""
        counts = (1, rounded_rows(rows), 0, 0)
        grid = (-(-self.variant.shard.tiles // self._span), *row_grid(rows))
        return ShardGeometry(rows, counts, self.scratch.offsets(counts), grid)

    def arguments(
        self, geometry: ShardGeometry, base: Any, stride: int, params: Any, scratch: Any
    ) -> ShardArguments:
        """Return the arguments shared by all launches of a call."""
        logits = group(Logits, (base, stride, self.variant.columns))
        return ShardArguments(geometry, logits, self.variant.shard.lead, params, scratch)

    def placeholders(self) -> ShardArguments:
        """Return placeholders for the arguments shared by all launches of a call."""
        access, lead = self.variant.logits, self.variant.shard.lead
        logits = Logits(access.pointer, access.stride, self.variant.columns)
        if not self.variant.is_aligned:  # then neither stride nor columns decide how rows are read
            access = access._replace(is_aligned=False)
            logits, lead = Logits(access.pointer, access.stride, ANY_INT), ANY_INT
        params = params_layout.placeholders(self.variant.param_dtypes)
        return ShardArguments(self.geometry(1), logits, lead, params, self.scratch.pointers)

    def statistics(self, arguments: ShardArguments) -> Step:
        """Return the pass over the logits."""
        geometry, tiles = arguments.geometry, self.variant.shard.tiles
        counts = Counts(geometry.rows, geometry.rows, tiles, 0, 0)
        masses = None if self.searches is None else arguments.scratch[self.searches.masses]
        statistics = self._tile_statistics(arguments, self._raw_sums, self._granules)
        temperatures = self.temperatures(arguments)
        return (
            self._statistics,
            geometry.tile_grid,
            (
                arguments.logits,
                arguments.lead,
                counts,
                temperatures,
                statistics,
                self.moment_sums(arguments),
                masses,
            ),
        )

    def draw(
        self, arguments: ShardArguments, fresh_seeds: Any, flags: int, bounds: RowBounds, out: Any
    ) -> Step:
        """Return the draw.

        :param fresh_seeds: seeds of rows without one, if the flags say so.
        :param flags: which parameters there are.
        """
        params = arguments.params
        return (
            self._draw,
            (arguments.geometry.rows, 1, 1),
            (
                arguments.logits,
                arguments.lead,
                self.variant.shard,
                params if fresh_seeds is None else params._replace(fresh=fresh_seeds),
                flags,
                self._tile_statistics(arguments, self._raw_sums, None),
                bounds,
                out,
            ),
        )

    def bounds(self, arguments: ShardArguments, max_logits: Any, thresholds: Any) -> RowBounds:
        """Return the group of the merged bounds of all ranks, with room for the kept weights of tiles."""
        assert self._kept_sums is not None
        return RowBounds(max_logits, thresholds, arguments.scratch[self._kept_sums])

    def weigh(self, arguments: ShardArguments, bounds: RowBounds) -> Step:
        """Return the launch for the weights of the kept tokens of each tile."""
        rows, shard = arguments.geometry.rows, self.variant.shard
        grid = (-(-shard.tiles // TILES_AT_ONCE), *row_grid(rows))
        temperatures = self.temperatures(arguments)
        statistics = self._tile_statistics(arguments, None, None)
        return (
            self._weigh,
            grid,
            (arguments.logits, arguments.lead, shard, rows, temperatures, statistics, bounds),
        )

    def temperatures(self, arguments: ShardArguments) -> SlotTemperatures:
        """Return the group of the temperatures."""
        has_row_index = self.variant.param_dtypes[1] is not None
        params = arguments.params
        return SlotTemperatures(params.temperature, params.row_index if has_row_index else None)

    def surveyed_statistics(self, arguments: ShardArguments) -> TileStatistics:
        """Return the statistics for searches."""
        return self._tile_statistics(arguments, None, self._granules)

    def moment_sums(self, arguments: ShardArguments) -> MomentSums:
        """Return the sums of tiles behind moments, in scratch."""
        if not self.variant.moments:
            return _NO_SUMS
        buffers = [None if index is None else arguments.scratch[index] for index in self._moment_sums]
        return MomentSums(*buffers)

    def _tile_statistics(
        self, arguments: ShardArguments, raw_sums: int | None, granules: int | None
    ) -> TileStatistics:
        """Return the statistics in scratch: each combination compiles another kernel."""
        indices = (self._maxima, self._sums, raw_sums, granules, None)
        return TileStatistics(*[None if index is None else arguments.scratch[index] for index in indices])

    def _placeholder_steps(self) -> Iterator[Step]:
        """Yield the launches of a call of some size, with placeholders for tensors."""
        variant, arguments, bounds = self.variant, self.placeholders(), RowBounds()
        yield self.statistics(arguments)
        if variant.has_filters and (variant.is_drawn or variant.has_logprobs):
            bounds = self.bounds(arguments, FLOAT32, FLOAT32)
            yield self.weigh(arguments, bounds)
        yield self.draw(arguments, None, 0, bounds, Pointer(torch.int32))
