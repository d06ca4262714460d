"""The interface between a sampler's kernels over a rank's columns and the exchange between ranks."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from tokendraw.vocab_parallel.moment_sums import MomentSum
from tokendraw.vocab_parallel.parameters import RowSeeds


class Bounds(NamedTuple):
    """The largest value and the threshold of each row, known to all ranks before the draw: [B, 1] float32.

    :ivar max: The largest value on any rank; NaN counts as -inf.
    :ivar threshold: A token is kept if its value is at least this.
    """

    max: Tensor
    threshold: Tensor


class Digits(NamedTuple):
    """The next 8 bits of values' keys: see :mod:`tokendraw.vocab_parallel.radix`.

    :ivar prefix: [B, 1] int64: the bits above these 8, which a value needs to be counted; None: the 8 bits are the
        first.
    :ivar shift: Number of bits below these 8.
    """

    prefix: Tensor | None
    shift: int


class Weighing(NamedTuple):
    """The weights of values in a histogram: ``exp(y)`` in integer units.

    :ivar max: [B, 1] float32: the largest value on any rank, to which ``y`` is relative.
    :ivar floor: [B, 1] float32: values below it weigh nothing.
    :ivar bits: A weight of 1 is 2 to the power ``bits`` units. Weights are rounded to the nearest unit.
    """

    max: Tensor
    floor: Tensor
    bits: int


class Argmax(NamedTuple):
    """A rank's candidates for the token of each row where all rows are greedy, of 12 bytes a row: [B, 1] each.

    :ivar max: float32: the rank's largest value; NaN counts as -inf.
    :ivar has_nan: int32: 1 or 0.
    :ivar ids: int32: the lowest id of the largest value.
    """

    max: Tensor
    has_nan: Tensor
    ids: Tensor


class Survey(NamedTuple):
    """A rank's report on each row before the draw.

    :ivar x: [B, K] float32: the rank's largest values in descending order, -inf behind the last of n < K.
    :ivar ties: [B, 1] int32: number of further values equal to the last of ``x``.
    :ivar mass: [B, 1] in the widest float: the sum of ``exp(y)``, relative to the first of ``x``, if it is needed. [B,
        256]: of the values with each first digit, where a nucleus may be searched for by digits.
    :ivar fresh: [B, 1] int64: seeds for rows that have none, of which those of rank 0 count.
    :ivar sums: [B, S] in the widest float, relative to the first of ``x``: those behind the moments that filters read;
        see :mod:`tokendraw.vocab_parallel.moment_sums`.
    """

    x: Tensor
    ties: Tensor
    mass: Tensor | None
    fresh: Tensor | None
    sums: Tensor | None = None


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

    :ivar max: [B, 1] float32: the rank's largest value; NaN counts as -inf.
    :ivar has_nan: [B, 1] int32: 1 or 0.
    :ivar score: [B, 1]: of the best whole tile, ``log W + G`` at its number in the stream TILE.
    :ivar ids: [B, 3] int32: the token drawn in that tile, and the best ones of the head and the tail: the largest ``y +
        G`` at their ids in the stream TOKEN. In greedy rows the first is the rank's argmax, the lowest id on a tie.
    :ivar log_sum: [B, 2]: log of the weight that is kept of the tiles that other ranks hold parts of.
    :ivar key: [B, 2]: ``y + G`` of the best token there.
    :ivar x: [B, 3] float32: the values of the tokens ``ids``, with logprobs.
    :ivar kept: :class:`Sums`, with logprobs.
    :ivar mass: :class:`Sums`, with logprobs whose mode or kept mass needs those of all tokens.
    :ivar raw: :class:`Sums` of the logits as given, with ``raw_logprobs`` and a temperature.
    :ivar best_x: [B, m] float32, with logprobs: the largest values in descending order, -inf behind the last of n < m.
    :ivar best_ids: [B, m] int32: their ids; of equal values the lowest comes first; V behind the last.
    """

    max: Tensor
    has_nan: Tensor
    score: Tensor
    ids: Tensor
    log_sum: Tensor
    key: Tensor
    x: Tensor | None = None
    kept: Tensor | None = None
    mass: Tensor | None = None
    raw: Tensor | None = None
    best_x: Tensor | None = None
    best_ids: Tensor | None = None


class LocalLogits(Protocol):
    """The columns [B, n] of a rank, n perhaps 0, with the parameters of a call.

    A message whose fields are columns of one buffer, one of them at the beginning of its rows, is sent without a copy:
    see :func:`tokendraw.vocab_parallel.messages.exchange`.
    """

    @property
    def logits(self) -> Tensor:
        """Return the logits, for their rows, dtype and device."""

    def argmax(self) -> Argmax:
        """Find the largest value of each row."""

    def largest(
        self, count: int, masses: int, fresh: Tensor | None, sums: tuple[MomentSum, ...] = ()
    ) -> Survey:
        """Find the largest values.

        :param count: K.
        :param masses: 0: none is wanted; 1: that of all values; 256: of those with each first digit of their keys.
        :param fresh: [B, 1] int64 or None: goes with them.
        :param sums: those wanted for moments.
        """

    def histogram(self, digits: Digits, weighing: Weighing | None) -> Tensor:
        """Sum the weights of values by a digit of their keys: [B, 256] int64.

        :param weighing: None: 1.
        """

    def draw(self, bounds: Bounds | None, seeds: RowSeeds | None, *, best: int | None) -> Draws:
        """Draw the candidates.

        :param bounds: None: no row has a filter.
        :param seeds: None: every row is greedy. They may still be on their way, so whoever draws asks as late as it
            can.
        :param best: m; None: the fields that come with logprobs are not wanted.
        """

    def count(self, least: Tensor) -> Tensor:
        """Count the values from ``least`` [B, 1] float32 on: [B] int64."""
