"""Says what a sampler computes of the columns that a rank holds: the seam between its kernels and the messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor


class Seeds(NamedTuple):
    """Holds what the random numbers of each row come from, the same on every rank: [B, 1] int64."""

    seed: Tensor
    position: Tensor


AwaitSeeds: TypeAlias = Callable[[], Seeds]
"""Returns the seeds once they are there. They may still be on their way, so whoever draws asks as late as it can."""


class Bounds(NamedTuple):
    """Holds what all ranks know of each row before it is drawn from: [B, 1] float32."""

    max: Tensor
    """The largest value on any rank; NaN counts as -inf."""
    threshold: Tensor
    """A token is kept if its value is at least this."""


class Digits(NamedTuple):
    """The next 8 bits of values' keys: see :mod:`tokendraw.vocab_parallel.radix`."""

    prefix: Tensor | None
    """[B, 1] int64: the bits above them, which a value has to have to be counted; None: there are none."""
    shift: int
    """Number of bits below them."""


class Weighing(NamedTuple):
    """Says what values weigh in a histogram: ``exp(y)`` in integer units."""

    max: Tensor
    """[B, 1] float32: the largest value on any rank, to which ``y`` is relative."""
    floor: Tensor
    """[B, 1] float32: values below it weigh nothing."""
    bits: int
    """A weight of 1 is 2 to this many units. Rounded to the nearest."""


class Sums(NamedTuple):
    """Sums of weights over a rank's columns, in the widest float, [B, 1] each."""

    kept: Tensor
    """Sum of ``exp(y)`` over the kept tokens."""
    mass: Tensor
    """Sum of ``exp(y)`` over all."""
    raw: Tensor
    """Sum of ``exp(x - max x)`` over all."""


class Draws(NamedTuple):
    """A rank's candidates for the token of each row, of 40 bytes a row with noise in float32.

    ``y = (x - max x) / T`` is relative to ``Bounds.max`` where that is given, else to the rank's own ``max``. A
    candidate that is not there has a score, key or log-sum of -inf. The columns of ``ids`` and ``x`` are: whole tiles,
    head, tail; those of ``log_sum`` and ``key``: head, tail. Scores and keys are float32, or float64 with noise in
    float64.
    """

    max: Tensor
    """[B, 1] float32: the rank's largest value; NaN counts as -inf."""
    has_nan: Tensor
    """[B, 1] int32: 1 or 0."""
    score: Tensor
    """[B, 1]: of the best whole tile, ``log W + G`` at its number in the stream TILE."""
    ids: Tensor
    """[B, 3] int32: the token drawn in that tile, and the best ones of the head and the tail: the largest ``y + G`` at
    their ids in the stream TOKEN. In greedy rows the first is the rank's argmax, the lowest id on a tie."""
    log_sum: Tensor
    """[B, 2]: log of the weight that is kept of the tiles that other ranks hold parts of."""
    key: Tensor
    """[B, 2]: ``y + G`` of the best token there."""
    x: Tensor | None = None
    """[B, 3] float32: the values of the tokens ``ids``, with logprobs."""
    kept: Tensor | None = None
    """:class:`Sums`, with logprobs."""
    mass: Tensor | None = None
    raw: Tensor | None = None
    best_x: Tensor | None = None
    """[B, m] float32, with logprobs: the largest values in descending order, -inf behind the last of n < m."""
    best_ids: Tensor | None = None
    """[B, m] int32: their ids; of equal values the lowest comes first; V behind the last."""


class LocalLogits(Protocol):
    """The columns [B, n] of a rank, n perhaps 0, under one call's parameters."""

    def argmax(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``max`` and ``has_nan`` as in :class:`Draws`, and the lowest id of the largest: [B, 1] int32."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the logits."""
        ...

    def largest(self, count: int, masses: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return ``x``, ``ties`` and ``mass`` as in :class:`tokendraw.vocab_parallel.thresholds.Survey`.

        :param count: K.
        :param masses: 0: none is wanted; 1: that of all values; 256: of those with each first digit of their keys.
        """
        ...

    def histogram(self, digits: Digits, weighing: Weighing | None) -> Tensor:
        """Add up what values weigh by a digit of their keys: [B, 256] int64.

        :param weighing: None: 1.
        """
        ...

    def draw(self, bounds: Bounds | None, seeds: AwaitSeeds | None, *, best: int | None) -> Draws:
        """Draw the candidates.

        :param bounds: None: no row has a filter.
        :param seeds: None: every row is greedy.
        :param best: m; None: the fields that come with logprobs are not wanted.
        """
        ...

    def count(self, least: Tensor) -> Tensor:
        """Count the values that are at least ``least`` [B, 1] float32: [B] int64."""
        ...
