"""The sizes of a run of the kit: quick or full, on a CPU or on an accelerator, or tiny, in an interpreter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

_WIDE_VOCAB_SIZE = 1 << 14
_SMALL_REMAINDERS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 48, 63)
_REMAINDERS = (
    *_SMALL_REMAINDERS,
    *(1024 + r for r in (0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 15, 63, 1024)),
    *((1 << 16) + r for r in (0, 1, 2, 3, 5, 9, 1024)),
    *((1 << 17) + r for r in (0, 1, 6)),
    *((1 << 18) + r for r in (1, 3, 6)),
)
_CROSSED_SIZES = (33, 1025, 5003, 65_543, 131_113)
"""Vocabularies of less than a tile, of a few tiles, and on the two sides of 2**17; each leaves a remainder by 4."""
_FULL_CROSSED_SIZES = (2, 33, 1025, 5003, 20_011, 65_543, 131_113, (1 << 18) + 3)
_TAILS = ((12.0, 100), (14.0, 100), (17.0, 100), (18.0, 100), (20.5, 100))
_FULL_CPU_TAILS = (*_TAILS[:4], (20.5, 15))
_QUICK_CPU_TAILS = (*_TAILS[:2], (17.0, 20))


@dataclass(frozen=True, kw_only=True)
class Effort:
    """The sizes of a run. Counts of draws are those of a first look.

    :ivar quick: Whether the run is the quick one.
    :ivar draws: Draws from a vocabulary of one tile, where each costs next to nothing.
    :ivar tiled_draws: Draws from a vocabulary of a few tiles.
    :ivar tails: Gaps below the head with the number of tail tokens to expect; a draw of one costs about exp(gap)
        logits.
    :ivar elements: Logits in one call.
    :ivar batch_sizes: Batch sizes B that lines draw.
    :ivar batch_rows: Rows of the largest batch, in which noise is looked for that repeats.
    :ivar tail_vocab_size: Vocabulary size V in which rare tokens of the tail are counted.
    :ivar limit_rows: Rows of a vocabulary as large as the sampler takes.
    :ivar most_draws: Draws of a check that asks for a number of its own; None: as many as it asks for.
    :ivar fewer: Divisor of the rows of an exact check.
    :ivar interpreted: Whether kernels run in an interpreter: threads and memory beyond 2**31 elements tell nothing
        there, and requests share a batch, instead of taking turns, and few of them are judged by their draws.
    :ivar crossed_sizes: Vocabularies that dtypes, values and requests are crossed with.
    :ivar crossed_rows: Most cases of a covering table that are looked at; None: all of it.
    :ivar remainders: Vocabularies whose last ids are looked at.
    :ivar crossed_batch: Rows of a large batch of crossed requests.
    """

    quick: bool
    draws: int
    tiled_draws: int
    tails: tuple[tuple[float, int], ...]
    elements: int
    batch_sizes: tuple[int, ...] = (0, 1, 2, 7, 8, 9, 64, 65, 1000)
    batch_rows: int = (1 << 16) + (1 << 14)
    tail_vocab_size: int = (1 << 18) + 1
    limit_rows: int = 64
    most_draws: int | None = None
    fewer: int = 1
    interpreted: bool = False
    crossed_sizes: tuple[int, ...] = _CROSSED_SIZES
    crossed_rows: int | None = None
    remainders: tuple[int, ...] = _REMAINDERS
    crossed_batch: int = 300

    @classmethod
    def of(cls, *, quick: bool, device_type: str) -> Self:
        """Return the effort for a device: a quick run takes a minute on two idle cores, a full run minutes."""
        on_cpu = device_type == "cpu"
        return cls(
            quick=quick,
            draws=20_000 if quick else 100_000,
            tiled_draws=4_000 if quick else 16_000,
            tails=(_QUICK_CPU_TAILS if quick else _FULL_CPU_TAILS) if on_cpu else _TAILS,
            elements=1 << 22 if on_cpu else 1 << 27,
            crossed_sizes=_CROSSED_SIZES if quick else _FULL_CROSSED_SIZES,
        )

    @classmethod
    def tiny(cls) -> Self:
        """Return the effort for kernels in an interpreter, at tens of milliseconds a row: every property in 5,000 rows.

        Exact demands cost little and keep most of their power. Statistics of a few dozen draws see only what is
        grossly wrong, such as noise that is used twice: exact binomials and the two looks of a run keep the rate of
        false alarms, so fewer draws miss more and accuse no more.
        """
        return cls(
            quick=True,
            draws=32,
            tiled_draws=24,
            tails=((8.0, 12),),
            elements=1 << 20,
            batch_sizes=(0, 1, 2, 5, 9),
            batch_rows=96,
            tail_vocab_size=4097,
            limit_rows=1,
            most_draws=24,
            fewer=16,
            interpreted=True,
            crossed_sizes=(33, 1025, 2051),
            crossed_rows=24,
            remainders=(1, 3, 33, 1025, 1031),
            crossed_batch=9,
        )

    def rows(self, count: int, least: int = 1) -> int:
        """Scale the number of rows of an exact check to the effort."""
        return max(least, count // self.fewer)

    def skips(self, size: int, turn: int) -> bool:
        """Whether a quick run leaves out a call for this vocabulary: two of three calls for wide vocabularies."""
        return self.quick and size > _WIDE_VOCAB_SIZE and turn % 3 > 0

    def by_width(self, size: int, narrow: int, wide: int) -> int:
        """Return the first of two numbers for a vocabulary that is not wide, else the second."""
        return narrow if size <= _WIDE_VOCAB_SIZE else wide

    def copies(self, most: int, size: int) -> int:
        """Return the copies of a row in a batch, ``most`` of them in a full run."""
        return 1 if self.fewer > 1 else self.by_width(size, most, 1)

    def draws_of(self, count: int) -> int:
        """Limit the number of draws of a statistical check to the effort."""
        return count if self.most_draws is None else min(count, self.most_draws)
