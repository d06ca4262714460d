"""The groups in which the kernels for messages of ranks take their arguments: see :mod:`..shared.argument_groups`."""

from __future__ import annotations

from typing import Any, NamedTuple


class Sizes(NamedTuple):
    """The sizes of what was received: ``words`` are [ranks, rows, width] int32."""

    ranks: Any
    rows: Any
    width: Any
    vocab_size: Any
    """V of all ranks together."""


class DrawFields(NamedTuple):
    """Where in a row the words of a field of :class:`tokendraw.vocab_parallel.Draws` begin."""

    max: Any
    has_nan: Any
    score: Any
    ids: Any
    log_sum: Any
    key: Any
    is_relative: Any
    """Not where it lies, but whether scores, log-sums and keys are relative to the rank's own maximum: 1 or 0."""


class SurveyFields(NamedTuple):
    """Likewise of :class:`tokendraw.vocab_parallel.Survey`; -1 where a field is not there."""

    x: Any
    ties: Any
    mass: Any
    fresh: Any
    count: Any
    """Not where it lies, but K, the number of columns of ``x``."""
    bits: Any
    """Nor this: a weight of 1 is 2 to so many units in the histograms that follow."""


class SharedTiles(NamedTuple):
    """The tiles of which several ranks hold a part: see :class:`tokendraw.vocab_parallel.Layout`."""

    tiles: Any
    """[count] int64."""
    parts: Any
    """[count, most] int64."""


class SharedSizes(NamedTuple):
    """How many they are."""

    count: Any
    most: Any
    """Parts of a tile, at most."""


class MergedDraws(NamedTuple):
    """The tokens."""

    token_ids: Any
    """[rows] int64."""
    valid: Any
    """[rows] bool."""


class RowSearch(NamedTuple):
    """The state of the search for the threshold of each row, all [rows]."""

    max: Any
    """float32: the largest value on any rank."""
    threshold: Any
    """float32: that of the filters so far."""
    floor: Any
    """float32: values below it do not count where a nucleus is searched for; inf if it is found or not asked for."""
    prefix: Any
    """int64: bits of the key that is searched for, from above."""
    target: Any
    """int64: what is left to reach among the values that have them."""


class DigitStep(NamedTuple):
    """One step of a search."""

    of_nucleus: Any
    """1: weights are searched for top-p; 0: counts for top-k."""
    is_first: Any
    is_last: Any
    missing: Any
    """Bits of a key that are missing after this step."""
