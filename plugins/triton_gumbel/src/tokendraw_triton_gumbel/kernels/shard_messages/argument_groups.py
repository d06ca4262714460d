"""Groups of arguments of the kernels for messages of ranks: see :mod:`..shared.argument_groups`."""

from __future__ import annotations

from typing import Any, NamedTuple


class Sizes(NamedTuple):
    """Sizes of the gathered words, [ranks, rows, width] int32."""

    ranks: Any
    rows: Any
    width: Any
    vocab_size: Any
    """V of all ranks together."""


class DrawFields(NamedTuple):
    """Index of the first word of each field of :class:`tokendraw.vocab_parallel.Draws` in a row."""

    max: Any
    has_nan: Any
    score: Any
    ids: Any
    log_sum: Any
    key: Any
    is_relative: Any
    """1 if scores, log-sums and keys are relative to the rank's own maximum, else 0; not an index."""


class SurveyFields(NamedTuple):
    """Index of the first word of each field of :class:`tokendraw.vocab_parallel.Survey` in a row; -1 if absent."""

    x: Any
    ties: Any
    mass: Any
    fresh: Any
    sums: Any
    count: Any
    """K, the number of columns of ``x``; not an index."""
    bits: Any
    """A weight of 1 is ``2 ** bits`` units in the histograms; not an index."""


class SharedTiles(NamedTuple):
    """Tiles divided among several ranks: see :class:`tokendraw.vocab_parallel.Layout`."""

    tiles: Any
    """[count] int64."""
    parts: Any
    """[count, most] int64."""


class SharedSizes(NamedTuple):
    """Number of shared tiles, and of their parts."""

    count: Any
    most: Any
    """Parts of a tile, at most."""


class MergedDraws(NamedTuple):
    """The tokens of the rows."""

    token_ids: Any
    """[rows] int64."""
    valid: Any
    """[rows] bool."""


class RowSearch(NamedTuple):
    """The state of the search for the threshold of each row, all [rows]."""

    max: Any
    """float32: the largest value on any rank."""
    threshold: Any
    """float32: the threshold of the filters applied so far."""
    floor: Any
    """float32: the nucleus counts values from here upwards; inf if the nucleus is found or off."""
    prefix: Any
    """int64: the upper bits of the threshold's key, as far as known."""
    target: Any
    """int64: the remaining target among values with these upper bits."""


class DigitStep(NamedTuple):
    """One step of a search by digits."""

    of_nucleus: Any
    """1: weights are searched for top-p; 0: counts for top-k."""
    is_first: Any
    is_last: Any
    missing: Any
    """Number of unknown bits of the key after this step."""
