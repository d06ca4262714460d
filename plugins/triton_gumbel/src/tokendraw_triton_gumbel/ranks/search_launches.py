"""The launches of a search for thresholds: a survey of each rank's columns, and histograms of digits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tokendraw.vocab_parallel import BINS
from tokendraw_triton_gumbel.host.compilation import FLOAT32, INT32, INT64, any_ints
from tokendraw_triton_gumbel.host.geometry import row_grid
from tokendraw_triton_gumbel.host.launch import Launch, Step
from tokendraw_triton_gumbel.host.scratch import PER_ROW, Scratch
from tokendraw_triton_gumbel.kernels.shards.add_by_digit import TILES_AT_ONCE, add_by_digit
from tokendraw_triton_gumbel.kernels.shards.argument_groups import (
    Digit,
    DigitFilter,
    ShardSurveyFields,
    SurveyScratch,
)
from tokendraw_triton_gumbel.kernels.shards.survey_columns import survey_columns
from tokendraw_triton_gumbel.kernels.shared.configs import DigitConfig, SurveyConfig
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE
from tokendraw_triton_gumbel.ranks.message_layout import MessageLayout

if TYPE_CHECKING:
    from tokendraw_triton_gumbel.ranks.column_launches import ColumnLaunches
    from tokendraw_triton_gumbel.ranks.shard_variant import ShardArguments

MAX_VALUES = 1024
"""Largest K."""
MIN_TILES = 64
"""Kernels are compiled for a power of two of tiles, from this upwards."""
_SMALL_SURVEY_VALUES, _SMALL_SURVEY_CANDIDATES = 64, 128
_MAX_MAXIMA = 2048
_DIGIT_WARPS, _SURVEY_WARPS = 1, 4


class SearchLaunches:
    """The searches of a variant with filters, compiled when first needed."""

    def __init__(self, columns: ColumnLaunches, scratch: Scratch, max_tiles: int) -> None:
        self._columns, self._shard, self._max_tiles = columns, columns.variant.shard, max_tiles
        self._launches: dict[object, Launch] = {}
        granules = self._shard.tiles * GRANULES_PER_TILE.value
        self._scratch = scratch.reserve_group(
            [(torch.int32, granules, PER_ROW), (torch.int64, MAX_VALUES, PER_ROW)]
        )
        self.masses = scratch.reserve(torch.int64, BINS, PER_ROW)
        """Index of the masses by digit, set to 0 by the pass over the logits."""

    def survey(
        self,
        arguments: ShardArguments,
        message: MessageLayout,
        count: int,
        unit_bits: int,
        sums: int,
        fresh_seeds: Any,
        out: Any,
    ) -> Step:
        """Return the launch of a survey: the K largest values.

        :param message: the layout of ``out``.
        :param unit_bits: a weight of 1 is 2 to so many units of the masses by digit.
        :param sums: those behind moments in the message, as bits.
        :param fresh_seeds: [rows] int64, or None.
        """
        max_values = _SMALL_SURVEY_VALUES if count <= _SMALL_SURVEY_VALUES else MAX_VALUES
        launch = self._survey_launch(max_values, message.columns("mass"), sums, fresh_seeds is not None)
        places = (message.place(name) for name in ("x", "ties", "mass", "fresh", "sums"))
        fields = ShardSurveyFields(message.width, *places, count, unit_bits)
        grid = (arguments.geometry.rows, 1, 1)
        return launch, grid, self._survey_arguments(arguments, fields, fresh_seeds, out)

    def add(self, arguments: ShardArguments, digit: Digit, counted: DigitFilter, histogram: Any) -> Step:
        """Return the launch for additions to a histogram.

        :param histogram: [rows, 256]; None: the masses by the first digit, in scratch.
        """
        is_first, has_prefix = histogram is None, counted.prefixes is not None
        config = DigitConfig(
            self._max_tiles if is_first else 0, BY_WEIGHT=is_first or counted.max_logit is not None
        )
        key = config, is_first, has_prefix
        launch = self._launches.get(key)
        if launch is None:
            real = None if counted.max_logit is None else FLOAT32
            placeholders = self._digit_arguments(
                self._columns.placeholders(),
                any_ints(Digit),
                DigitFilter(INT64 if has_prefix else None, real, real),
                None if is_first else INT64,
            )
            options = {"num_warps": _DIGIT_WARPS}
            launch = Launch.compiled(add_by_digit, {"config": config}, options, placeholders)
            self._launches[key] = launch
        grid = (-(-self._shard.tiles // TILES_AT_ONCE), *row_grid(arguments.geometry.rows))
        return launch, grid, self._digit_arguments(arguments, digit, counted, histogram)

    def _survey_launch(self, max_values: int, masses: int, sums: int, has_fresh_seeds: bool) -> Launch:
        key = max_values, masses, sums, has_fresh_seeds
        launch = self._launches.get(key)
        if launch is None:
            granules, maxima = _maxima_of_granules(self._max_tiles, max_values)
            is_small = max_values == _SMALL_SURVEY_VALUES
            config = SurveyConfig(
                VECTOR=self._columns.variant.logits.vector,
                TILES=self._max_tiles,
                GRANULES=granules,
                MAXIMA=maxima,
                CANDIDATES=_SMALL_SURVEY_CANDIDATES if is_small else MAX_VALUES,
                MASSES=masses,
                SUMS=sums,
            )
            placeholders = self._survey_arguments(
                self._columns.placeholders(),
                any_ints(ShardSurveyFields),
                INT64 if has_fresh_seeds else None,
                INT32,
            )
            options = {"num_warps": _SURVEY_WARPS}
            launch = Launch.compiled(survey_columns, {"config": config}, options, placeholders)
            self._launches[key] = launch
        return launch

    def _survey_arguments(
        self, arguments: ShardArguments, fields: ShardSurveyFields, fresh_seeds: Any, out: Any
    ) -> tuple[Any, ...]:
        columns, scratch = self._columns, arguments.scratch
        return (
            arguments.logits,
            self._shard,
            fields,
            columns.temperatures(arguments),
            columns.surveyed_statistics(arguments),
            columns.moment_sums(arguments),
            SurveyScratch(*scratch[self._scratch], MAX_VALUES),
            scratch[self.masses],
            fresh_seeds,
            out,
        )

    def _digit_arguments(
        self, arguments: ShardArguments, digit: Digit, counted: DigitFilter, histogram: Any
    ) -> tuple[Any, ...]:
        columns = self._columns
        return (
            arguments.logits,
            arguments.lead,
            self._shard,
            arguments.geometry.rows,
            digit,
            columns.temperatures(arguments),
            columns.surveyed_statistics(arguments),
            counted,
            arguments.scratch[self.masses] if histogram is None else histogram,
        )


def _maxima_of_granules(max_tiles: int, max_values: int) -> tuple[int, int]:
    """Return the number of granules a maximum stands for, and a power of two from the number of maxima upwards.

    Fewer maxima are compared sooner; fewer than some multiple of K say little. The same for all numbers of tiles that a
    kernel is compiled for, from half of the most upwards.

    :param max_tiles: a power of two.
    """
    least_tiles = 1 if max_tiles == MIN_TILES else max_tiles // 2 + 1
    for granules in (16, 4, 1):
        if granules == 1 or least_tiles * GRANULES_PER_TILE.value // granules >= 4 * max_values:
            break
    while max_tiles * GRANULES_PER_TILE.value // granules > _MAX_MAXIMA:
        granules *= 4
    return granules, max_tiles * GRANULES_PER_TILE.value // granules
