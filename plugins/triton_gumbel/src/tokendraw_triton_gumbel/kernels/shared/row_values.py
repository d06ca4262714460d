"""Groups of scalars of one row, made in a kernel and passed to its helpers."""

from __future__ import annotations

from typing import Any, NamedTuple


class RowAddress(NamedTuple):
    """Address and length of one row of logits in memory."""

    base: Any
    vocab_size: Any


class RowScale(NamedTuple):
    """Scale and origin of a row: a logit x weighs ``exp((x - max_logit) / T)``."""

    max_logit: Any
    """The largest logit; finite wherever a filter is at work."""
    scale: Any
    """``log2(e) / T``, as :func:`~.weights.times` takes it."""
    inverse: Any
    """``1 / T``, likewise."""
    mass: Any
    """The sum of all weights of the row."""


class RowFilters(NamedTuple):
    """The filters of a row."""

    k: Any
    """k in [1, V), or 0 if top-k is off."""
    p: Any
    """float64; 1 if top-p is off."""
    floor: Any
    """The least logit that min-p and filters from moments keep; -inf if all are off."""
    joint: Any
    """Whether top-p counts the mass of the whole row, whatever the others keep."""


class NoiseKey(NamedTuple):
    """The arguments of a row's noise beside the token, int64 each."""

    seed: Any
    position: Any
