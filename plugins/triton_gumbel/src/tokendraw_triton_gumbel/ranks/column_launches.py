"""The launches over the columns of one rank: statistics of its tiles, and what it tells the other ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from tokendraw.vocab_parallel import Layout
from tokendraw_triton_gumbel.host import params_layout
from tokendraw_triton_gumbel.host.compilation import Pointer
from tokendraw_triton_gumbel.host.geometry import Grid, grid_of_rows, rounded, span_of
from tokendraw_triton_gumbel.host.launch import Launch, Step, compile_steps, group
from tokendraw_triton_gumbel.host.scratch import ROWS, Scratch
from tokendraw_triton_gumbel.host.tuning import Configuration
from tokendraw_triton_gumbel.host.variant import Rows, Target
from tokendraw_triton_gumbel.kernels.shards.argument_groups import (
    RowBounds,
    Shard,
    SlotTemperatures,
)
from tokendraw_triton_gumbel.kernels.shards.draw_shard import draw_shard
from tokendraw_triton_gumbel.kernels.shards.shard_statistics import shard_statistics
from tokendraw_triton_gumbel.kernels.shards.weigh_kept import TILES_AT_ONCE, weigh_kept
from tokendraw_triton_gumbel.kernels.shared.argument_groups import Counts, Logits, RowParams, TileStatistics
from tokendraw_triton_gumbel.kernels.shared.configs import ShardDrawConfig, TileConfig
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE, TILE_SIZE, VECTORS
from tokendraw_triton_gumbel.ranks.message_layout import words_of_argmax, words_of_draws
from tokendraw_triton_gumbel.ranks.search_launches import LEAST_TILES, ShardSearches

_REAL, _WHOLE = torch.float32, torch.int32
_ANY = 3
"""Stands for numbers of which nothing is known."""


class ShardVariant(NamedTuple):
    """The properties that decide which kernels a sharded call launches, without sizes and addresses."""

    logits: Rows
    paired: bool
    """Whether logits are read two at a time."""
    columns: int
    """Columns of this rank, and those of its first tile that lie before them."""
    shard: Shard
    filtered: bool
    described: bool
    """Whether any row wants logprobs."""
    drawn: bool
    """Whether a row may not be greedy."""
    how: Configuration
    params: tuple[torch.dtype | None, ...]
    """Types of the parameters that the batch has, in the order of :mod:`.params_layout`."""


class ShardPlaces(NamedTuple):
    """The geometry of a variant at one number of rows."""

    rows: int
    counts: tuple[int, ...]
    offsets: list[int]
    tile_grid: Grid


class ShardOperands(NamedTuple):
    """Arguments that all launches of a call share. An entry that is not a number stands for a tensor."""

    places: ShardPlaces
    logits: Logits
    """Their ``vocab_size`` counts the columns of this rank with the lead."""
    lead: int
    params: RowParams
    """Without fresh seeds."""
    pieces: Sequence[Any]
    """All scratch."""


def shard_of(layout: Layout) -> Shard:
    """Say where the columns of this rank lie. No columns are one of -inf, in a tile of its own."""
    ids, tiles = layout.ids, layout.tiles
    if not ids.size:
        return Shard(0, 0, 1, 0, 1, layout.vocab_size)
    first = ids.start // TILE_SIZE.value
    count = -(-ids.end // TILE_SIZE.value) - first
    has_head, has_tail = tiles.head.size > 0, tiles.tail.size > 0
    return Shard(layout.lead, first, count, int(has_head), count - int(has_tail), layout.vocab_size)


class ShardLaunches:
    """The launches of one variant, and the scratch between them. It remembers nothing of any call."""

    def __init__(self, variant: ShardVariant, target: Target) -> None:
        how, dtype, shard = variant.how, variant.logits.dtype, variant.shard
        self.variant, self.scratch = variant, Scratch()
        self._span = span_of(how, variant.logits)
        is_nvidia = target.family == "cuda"
        most_tiles = LEAST_TILES
        while most_tiles < shard.tiles:
            most_tiles *= 2
        reserve = self.scratch.reserve
        self._maxima, self._sums = (reserve(_REAL, shard.tiles, ROWS) for _ in range(2))
        self._raw_sums = self._granules = self._kept = None
        if variant.described and variant.params[0] is not None:
            self._raw_sums = reserve(_REAL, shard.tiles, ROWS)
        if variant.filtered:
            self._granules = reserve(dtype, shard.tiles * GRANULES_PER_TILE.value, ROWS)
            self._kept = reserve(_REAL, shard.tiles, ROWS)
        raw_registers = how.raw_registers if dtype == _REAL else how.raw_registers_half
        options = {"num_warps": how.tile_warps}
        if raw_registers and is_nvidia and self._raw_sums is not None:
            options["maxnreg"] = raw_registers
        vector = VECTORS[str(dtype)[6:]]
        self._statistics = Launch(
            shard_statistics,
            {"config": TileConfig(self._span, vector, variant.paired, is_nvidia)},
            options,
        )
        self.searches = ShardSearches(self, self.scratch, most_tiles) if variant.filtered else None
        self._weigh = Launch(weigh_kept, {}, {"num_warps": how.row_warps})
        is_argmax = not (variant.drawn or variant.described)
        self.words = (
            words_of_argmax() if is_argmax else words_of_draws(fp64=target.fp64, described=variant.described)
        )
        """Those that a draw writes."""
        names = (*("max", "has_nan", "score", "ids", "log_sum", "key"), *("x", "kept", "mass", "raw"))
        self._draw = Launch(
            draw_shard,
            {
                "config": ShardDrawConfig(
                    most_tiles,
                    target.fp64,
                    variant.drawn,
                    variant.described,
                    1 if is_argmax else 3,
                    2 if target.fp64 else 1,
                    self.words.width,
                    *map(self.words.place, names),
                )
            },
            {"num_warps": how.row_warps},
        )

    def places(self, rows: int) -> ShardPlaces:
        """Compute the grids of a number of rows, and lay out the scratch."""
        counts = (1, rounded(rows), 0, 0)
        grid = (-(-self.variant.shard.tiles // self._span), *grid_of_rows(rows))
        return ShardPlaces(rows, counts, self.scratch.offsets(counts), grid)

    def statistics(self, operands: ShardOperands) -> Step:
        """Return the pass over the logits."""
        places, slots, shard = operands.places, self.slots(operands), self.variant.shard
        counts = Counts(places.rows, places.rows, shard.tiles, 0, 0)
        masses = None if self.searches is None else operands.pieces[self.searches.masses]
        statistics = TileStatistics(*self._written(operands, self._raw_sums, self._granules))
        arguments = (operands.logits, operands.lead, counts, slots, statistics, masses)
        return self._statistics, places.tile_grid, arguments

    def draw(self, operands: ShardOperands, fresh: Any, flags: int, bounds: RowBounds, words: Any) -> Step:
        """Return the draw.

        :param fresh: seeds of rows without one, if the flags say so.
        :param flags: which parameters there are.
        """
        arguments = (
            operands.logits,
            operands.lead,
            self.variant.shard,
            operands.params if fresh is None else operands.params._replace(fresh=fresh),
            flags,
            TileStatistics(*self._written(operands, self._raw_sums, None)),
            bounds,
            words,
        )
        return self._draw, (operands.places.rows, 1, 1), arguments

    def bounds(self, operands: ShardOperands, tops: Any, thresholds: Any) -> RowBounds:
        """Return what ranks have found together, and where the launch before the draw adds to it."""
        assert self._kept is not None
        return RowBounds(tops, thresholds, operands.pieces[self._kept])

    def weigh(self, operands: ShardOperands, bounds: RowBounds) -> Step:
        """Return the launch that weighs what is kept of each tile."""
        rows, shard = operands.places.rows, self.variant.shard
        grid = (-(-shard.tiles // TILES_AT_ONCE), *grid_of_rows(rows))
        statistics = TileStatistics(*self._written(operands, None, None))
        arguments = (operands.logits, operands.lead, shard, rows, self.slots(operands), statistics, bounds)
        return self._weigh, grid, arguments

    def compile(self) -> None:
        """Compile all that is launched, unless that was done in this process."""
        compile_steps(self._examples())

    def example(self) -> ShardOperands:
        """Return what stands for the arguments of a call."""
        variant, rows, lead = self.variant, self.variant.logits, self.variant.shard.lead
        logits = Logits(rows.pointer, rows.stride, variant.columns)
        if not (rows.aligned and lead % 16 == 0):  # then neither stride nor columns decide how rows are read
            rows = rows._replace(aligned=False)
            logits, lead = Logits(rows.pointer, rows.stride, _ANY), _ANY
        params = params_layout.stand_ins(variant.params)
        return ShardOperands(self.places(1), logits, lead, params, self.scratch.pointers)

    def _examples(self) -> Iterator[Step]:
        """Yield the launches of some size, with what stands for their tensors."""
        variant = self.variant
        operands = self.example()
        yield self.statistics(operands)
        bounds = RowBounds()
        if variant.filtered and (variant.drawn or variant.described):
            real = Pointer(_REAL, aligned=False)
            bounds = self.bounds(operands, real, real)
            yield self.weigh(operands, bounds)
        yield self.draw(operands, None, 0, bounds, Pointer(_WHOLE))

    def operands(
        self, places: ShardPlaces, base: Any, stride: int, params: Any, pieces: Any
    ) -> ShardOperands:
        """Return what all launches of a call share."""
        logits = group(Logits, (base, stride, self.variant.columns))
        return ShardOperands(places, logits, self.variant.shard.lead, params, pieces)

    def slots(self, operands: ShardOperands) -> SlotTemperatures:
        """Return the group of the temperatures."""
        has_index = self.variant.params[1] is not None
        return SlotTemperatures(operands.params.temperature, operands.params.row_index if has_index else None)

    def surveyed(self, operands: ShardOperands) -> TileStatistics:
        """Return the statistics that searches read."""
        return TileStatistics(*self._written(operands, None, self._granules))

    def _written(self, operands: ShardOperands, raw_sums: int | None, granules: int | None) -> list[Any]:
        """List the statistics in scratch: a kernel is another one with each of them that it is given."""
        numbers = (self._maxima, self._sums, raw_sums, granules)
        return [None if number is None else operands.pieces[number] for number in numbers]
