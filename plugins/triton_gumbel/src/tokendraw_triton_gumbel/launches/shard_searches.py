"""The launches by which ranks find thresholds: what each says of its columns, and its histograms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tokendraw.vocab_parallel import BINS
from tokendraw_triton_gumbel.kernels.shards.add_by_digit import TILES_AT_ONCE, add_by_digit
from tokendraw_triton_gumbel.kernels.shards.argument_groups import (
    Digit,
    DigitFilter,
    SurveyFields,
    SurveyScratch,
)
from tokendraw_triton_gumbel.kernels.shards.survey_columns import survey_columns
from tokendraw_triton_gumbel.kernels.shared.configs import DigitConfig, SurveyConfig
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE, VECTORS
from tokendraw_triton_gumbel.launches.compiled import Pointer, is_interpreted
from tokendraw_triton_gumbel.launches.geometry import grid_of_rows
from tokendraw_triton_gumbel.launches.launch import Launch, Step
from tokendraw_triton_gumbel.launches.scratch import ROWS, Scratch
from tokendraw_triton_gumbel.launches.shard_words import Words

if TYPE_CHECKING:
    from tokendraw_triton_gumbel.launches.shards import ShardLaunches, ShardOperands

MOST_VALUES = 1024
"""Largest K."""
LEAST_TILES = 64
"""Kernels are compiled for a power of two of tiles, from this upwards."""
_FEW_VALUES, _FEW_CANDIDATES = 64, 128
_MOST_MAXIMA = 2048
_REAL, _WHOLE, _LONG = (Pointer(dtype, aligned=False) for dtype in (torch.float32, torch.int32, torch.int64))


class ShardSearches:
    """The launches of one variant of a sharded call with filters, compiled when they are first needed."""

    def __init__(self, launches: ShardLaunches, scratch: Scratch, most_tiles: int) -> None:
        self._launches, self._tiles, self._most_tiles = launches, launches.variant.shard.tiles, most_tiles
        self._known: dict[object, Launch] = {}
        granules = self._tiles * GRANULES_PER_TILE.value
        self._scratch = scratch.reserve_group(
            [(torch.int32, granules, ROWS), (torch.int64, MOST_VALUES, ROWS)]
        )
        self.masses = scratch.reserve(torch.int64, BINS, ROWS)
        """Set to 0 by the pass over the logits."""

    def survey(
        self, operands: ShardOperands, words: Words, count: int, bits: int, fresh: Any, out: Any
    ) -> Step:
        """Return the launch that tells the K largest values.

        :param words: the layout of what is written to ``out``.
        :param bits: a weight of 1 is 2 to so many units of the masses by digit.
        :param fresh: [rows] int64, or None.
        """
        masses = words.columns("mass")
        launch = self._survey(_FEW_VALUES if count <= _FEW_VALUES else MOST_VALUES, masses, fresh is not None)
        places = (words.place(name) for name in ("x", "ties", "mass", "fresh"))
        fields = SurveyFields(words.width, *places, count, bits)
        return launch, (operands.places.rows, 1, 1), self._survey_arguments(operands, fields, fresh, out)

    def add(self, operands: ShardOperands, step: Digit, counted: DigitFilter, histogram: Any) -> Step:
        """Return the launch that adds to a histogram.

        :param histogram: [rows, 256]; None: that of the masses by the first digit.
        """
        is_own = histogram is None
        config = DigitConfig(
            self._most_tiles if is_own else 0, BY_WEIGHT=is_own or counted.max_logit is not None
        )
        has_prefix = counted.prefixes is not None
        found = self._known.get((config, is_own, has_prefix))
        if found is None:
            real, long = None if counted.max_logit is None else _REAL, _LONG if has_prefix else None
            example = self._digit_arguments(
                self._launches.example(),
                Digit(3, 3),
                DigitFilter(long, real, real),
                None if is_own else _LONG,
            )
            found = self._compiled(add_by_digit, config, 1, example)
            self._known[config, is_own, has_prefix] = found
        grid = (-(-self._tiles // TILES_AT_ONCE), *grid_of_rows(operands.places.rows))
        return found, grid, self._digit_arguments(operands, step, counted, histogram)

    def _survey(self, most: int, masses: int, has_fresh: bool) -> Launch:
        found = self._known.get((most, masses, has_fresh))
        if found is None:
            per_maximum, maxima = _division(self._most_tiles, most)
            config = SurveyConfig(
                VECTOR=VECTORS[str(self._launches.variant.logits.dtype)[6:]],
                TILES=self._most_tiles,
                GRANULES=per_maximum,
                MAXIMA=maxima,
                CANDIDATES=_FEW_CANDIDATES if most == _FEW_VALUES else MOST_VALUES,
                MASSES=masses,
            )
            fields = SurveyFields(*[3] * len(SurveyFields._fields))
            fresh = _LONG if has_fresh else None
            example = self._survey_arguments(self._launches.example(), fields, fresh, _WHOLE)
            found = self._known[most, masses, has_fresh] = self._compiled(survey_columns, config, 4, example)
        return found

    def _survey_arguments(
        self, operands: ShardOperands, fields: SurveyFields, fresh: Any, out: Any
    ) -> tuple[Any, ...]:
        launches, pieces = self._launches, operands.pieces
        return (
            operands.logits,
            launches.variant.shard,
            fields,
            launches.slots(operands),
            launches.surveyed(operands),
            SurveyScratch(*pieces[self._scratch], MOST_VALUES),
            pieces[self.masses],
            fresh,
            out,
        )

    def _digit_arguments(
        self, operands: ShardOperands, step: Digit, counted: DigitFilter, histogram: Any
    ) -> tuple[Any, ...]:
        launches = self._launches
        return (
            operands.logits,
            operands.lead,
            launches.variant.shard,
            operands.places.rows,
            step,
            launches.slots(operands),
            launches.surveyed(operands),
            counted,
            operands.pieces[self.masses] if histogram is None else histogram,
        )

    def _compiled(self, kernel: Any, config: object, warps: int, example: Sequence[Any]) -> Launch:
        found = Launch(kernel, {"config": config}, {"num_warps": warps})
        if not is_interpreted():
            found.compile(example)
        return found


def _division(most_tiles: int, most: int) -> tuple[int, int]:
    """Return how many granules one maximum stands for, and a power of two from the number of maxima upwards.

    The fewer, the sooner they are compared; of less than some multiple of K they say little. The same for all numbers
    of tiles that a kernel is compiled for, from half of the most upwards.

    :param most_tiles: a power of two.
    """
    least = 1 if most_tiles == LEAST_TILES else most_tiles // 2 + 1
    for each in (16, 4, 1):
        if each == 1 or least * GRANULES_PER_TILE.value // each >= 4 * most:
            break
    while most_tiles * GRANULES_PER_TILE.value // each > _MOST_MAXIMA:
        each *= 4
    return each, most_tiles * GRANULES_PER_TILE.value // each
