"""Groups of arguments of the kernels over the columns of one rank: see :mod:`..shared.argument_groups`."""

from __future__ import annotations

from typing import Any, NamedTuple


class Shard(NamedTuple):
    """The place of a rank's columns in the vocabulary, and in its tiles of 1024 ids.

    Columns of a row are numbered from the beginning of the first tile, so that the rank's first column is ``lead``.
    """

    lead: Any
    """Number of ids of the first tile on other ranks, before this rank's."""
    first_tile: Any
    """Number of the first tile in the vocabulary."""
    tiles: Any
    """Number of tiles with a column of this rank."""
    whole_first: Any
    """The first full tile of this rank: 1 if another rank holds a part of the first tile, else 0."""
    whole_end: Any
    """The end of the full tiles."""
    vocab_size: Any
    """V: ids on all ranks together."""


class SlotTemperatures(NamedTuple):
    """The temperatures of the requests."""

    temperature: Any
    """[slots] floating point; None where every temperature is 1."""
    row_index: Any
    """[rows] integer: the slot of each row; None: row i is slot i."""


class ShardSurveyFields(NamedTuple):
    """Index of the first word of each field of a survey; -1 without the field."""

    width: Any
    """Words of a row."""
    x: Any
    ties: Any
    mass: Any
    fresh: Any
    sums: Any
    """Those behind moments, 2 words each."""
    count: Any
    """K: number of values in the survey."""
    bits: Any
    """A weight of 1 is 2 to so many units in what is added up by digits."""


class SurveyScratch(NamedTuple):
    """Scratch of the survey of each row."""

    granules: Any
    """[rows, tiles * 16] int32: the granules that may hold a value of the survey."""
    keys: Any
    """[rows, room] int64: the candidates for the survey."""
    room: Any


class Digit(NamedTuple):
    """The digit of a histogram."""

    shift: Any
    """Number of bits of a key below the digit."""
    bits: Any
    """A weight of 1 is ``2 ** bits`` units."""


class DigitFilter(NamedTuple):
    """Filter and weights of the values in a histogram."""

    prefixes: Any = None
    """[rows] int64: required bits of the keys above the digit; None: any."""
    max_logit: Any = None
    """[rows] float32: the origin of weights; None: the rank's largest logit, if weights are needed."""
    threshold: Any = None
    """[rows] float32: lower limit of the counted values."""


class RowBounds(NamedTuple):
    """The largest logit and the threshold of each row over all ranks; all None without filters."""

    max_logit: Any = None
    """[rows] float32: the largest logit on any rank."""
    threshold: Any = None
    """[rows] float32: the least kept logit."""
    kept_weight: Any = None
    """[rows, tiles] float32: the kept weight of each tile."""
