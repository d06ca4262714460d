"""The groups of arguments of kernels over the columns of one rank: see :mod:`..shared.argument_groups`."""

from __future__ import annotations

from typing import Any, NamedTuple


class Shard(NamedTuple):
    """The place of a rank's columns in the vocabulary, and in its tiles of 1024 ids.

    Column c of a row is counted from the beginning of its first tile, so that the first one there is ``lead``.
    """

    lead: Any
    """Ids of the first tile that other ranks hold before this one."""
    first_tile: Any
    """Number of the first tile in the vocabulary."""
    tiles: Any
    """Tiles of which this rank holds a part."""
    whole_first: Any
    """The first of them that is whole here: 1 if others hold a part of the first one, else 0."""
    whole_end: Any
    """The end of those that are whole here."""
    vocab_size: Any
    """V: ids on all ranks together."""


class SlotTemperatures(NamedTuple):
    """The temperatures of the requests."""

    temperature: Any
    """[slots] floating point; None where every temperature is 1."""
    row_index: Any
    """[rows] integer: the slot of each row; None: row i is slot i."""


class SurveyFields(NamedTuple):
    """The words of a survey: the first that each field has; -1: it has none."""

    width: Any
    """Words of a row."""
    x: Any
    ties: Any
    mass: Any
    fresh: Any
    count: Any
    """K: values that it tells."""
    bits: Any
    """A weight of 1 is 2 to so many units in what is added up by digits."""


class SurveyScratch(NamedTuple):
    """Scratch of the survey of each row."""

    granules: Any
    """[rows, tiles * 16] int32: the granules that may hold one of the values."""
    keys: Any
    """[rows, room] int64: the values that may be told."""
    room: Any


class Digit(NamedTuple):
    """The digit that values are added up by."""

    shift: Any
    """Bits of a key below it."""
    bits: Any
    """A weight of 1 is 2 to so many units."""


class Counted(NamedTuple):
    """Which values count, and for how much."""

    prefixes: Any = None
    """[rows] int64: the bits that their keys have to have above the digit; None: any."""
    tops: Any = None
    """[rows] float32: the value to which weights are relative; None: the largest of the rank's, if any is weighed."""
    floors: Any = None
    """[rows] float32: values below it count nothing."""


class RowBounds(NamedTuple):
    """The facts about each row that ranks have found together; all None where nothing is filtered."""

    tops: Any = None
    """[rows] float32: the largest logit on any rank."""
    thresholds: Any = None
    """[rows] float32: the least kept logit."""
    kept: Any = None
    """[rows, tiles] float32: what is kept of each tile's sum."""
