"""Rows whose token tells the precision of the noise that it was drawn with.

Noise of both precisions begins with the same 32 random bits, and float64 appends 21 more: that moves a variate by less
than float32 rounds it, so that hardly a token differs. Only where the 32 bits are all but zero do the others count. At
the seeds below they move a variate by 0.06 to 0.46, and the rows are made so that the draw is decided in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tokendraw.testing import reference, reference_walk
from tokendraw.testing.reference import TILE_SIZE

Array = NDArray[Any]

POSITION: Final = 1
SEEDS: Final[Mapping[int, int]] = {
    reference.TOKEN: 887881469,
    reference.TILE: 3963784509,
    reference_walk.ACCEPT: 872608941,
    reference_walk.RESIDUAL_TOKEN: 3110196443,
    reference_walk.RESIDUAL_TILE: 2038651399,
    reference_walk.DRAFT_TOKEN: 1732370834,
    reference_walk.DRAFT_TILE: 2437599125,
}
"""Seeds, by stream, whose first word at index 0 and :data:`POSITION` is 0, 1 or 2: the best of the first 2**32."""
VOCAB_SIZE: Final = 2100
KEPT: Final = (2, 500, 2000)
"""Numbers of tokens that share the mass of a row: kernels draw in other ways from few than from many."""
_NEGLIGIBLE = -200.0
_UNLIKELY = -12.0
"""Logit of tokens of another tile than the one that has to win."""


@dataclass(frozen=True)
class TellingRow:
    """A row of which float32 noise draws another token than float64 noise, at its seed and :data:`POSITION`."""

    seed: int
    logits: Array
    """[V] float32."""
    kept: int
    """Number of tokens with any mass to speak of, as a top-k that drops none of them."""


def telling_rows(token_stream: int, tile_stream: int) -> Iterator[TellingRow]:
    """Make rows for both levels of a draw from these streams."""
    for kept in KEPT:
        yield TellingRow(SEEDS[token_stream], _contested_token(token_stream, kept), kept)
        yield TellingRow(SEEDS[tile_stream], _contested_tile(tile_stream, kept), kept)


def _contested_token(stream: int, kept: int) -> Array:
    """Make a row [V] float32 in which one precision of the noise draws token 0, the other another of its tile."""
    row = np.full(VOCAB_SIZE, _NEGLIGIBLE)
    row[:kept] = np.where(np.arange(kept) < TILE_SIZE, 0.0, _UNLIKELY)
    rivals = np.arange(1, TILE_SIZE)
    row[0] = (row[rivals] + reference.gumbel(SEEDS[stream], POSITION, rivals, stream)).max() - _between(
        stream
    )
    return row.astype(np.float32)


def _contested_tile(stream: int, kept: int) -> Array:
    """Make a row [V] float32 in which one precision of the noise draws from tile 0, the other from tile 1."""
    row = np.full(VOCAB_SIZE, _NEGLIGIBLE)
    row[: kept // 2] = row[TILE_SIZE : TILE_SIZE + kept - kept // 2] = 0.0
    first = np.arange(0, VOCAB_SIZE, TILE_SIZE)
    masses = np.log(np.add.reduceat(np.exp(row), first))
    rivals = np.arange(1, len(first))
    best = (masses[rivals] + reference.gumbel(SEEDS[stream], POSITION, rivals, stream)).max()
    row[:TILE_SIZE] += best - masses[0] - _between(stream)
    return row.astype(np.float32)


def telling_draft() -> TellingRow:
    """Make a row that accepts a draft of token 0, drawn for certain, at one precision of the noise alone."""
    seed, stream = SEEDS[reference_walk.ACCEPT], reference_walk.ACCEPT
    w0, w1, _, _ = reference.random_words(seed, POSITION, 0, stream)
    row = np.full(VOCAB_SIZE, _NEGLIGIBLE)
    row[0] = (np.log(reference.uniform(w0)) + np.log(reference.uniform(w0, w1))) / 2
    row[1] = 0.0
    return TellingRow(seed, row.astype(np.float32), kept=2)


def _between(stream: int) -> float:
    """Return the middle of what the two precisions make of the noise at index 0."""
    made = [float(reference.gumbel(SEEDS[stream], POSITION, 0, stream, dtype)) for dtype in ("fp32", "fp64")]
    return sum(made) / 2
