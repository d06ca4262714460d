"""Rows with a token that tells the precision of the noise.

Noise of both precisions begins with the same 32 random bits, and float64 appends 21 more: that moves a variate by less
than float32 rounds it, so that hardly a token differs. Only where the 32 bits are all but zero do the others count. At
the seeds below they move a variate by 0.06 to 0.46, and the rows are made so that the draw is decided in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw_testing import reference, reference_walk
from tokendraw_testing.reference import TILE_SIZE

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
KEPT_COUNTS: Final = (2, 500, 2000)
"""Numbers of tokens that share the mass of a row: kernels have several paths by this number."""
_NEGLIGIBLE = -200.0
_LUCK_MARGIN = 1.5
"""More than the two precisions are apart, less than 24 bits fall short of 32 at these seeds."""
_UNLIKELY_LOGIT = -12.0
"""Logit of tokens outside the tile that has to win."""


@dataclass(frozen=True)
class TellingRow:
    """A row with different tokens under float32 and float64 noise, at its seed and :data:`POSITION`."""

    seed: int
    logits: Array
    """[V] float32."""
    kept: int
    """Number of tokens with any mass to speak of, as a top-k that drops none of them."""


def telling_rows(token_stream: int, tile_stream: int) -> Iterator[TellingRow]:
    """Make rows for both levels of a draw from two streams."""
    for kept in KEPT_COUNTS:
        yield TellingRow(SEEDS[token_stream], _contested_token(token_stream, kept), kept)
        yield TellingRow(SEEDS[tile_stream], _contested_tile(tile_stream, kept), kept)


def lucky_rows(token_stream: int, tile_stream: int) -> Iterator[TellingRow]:
    """Make rows that draw token 0 or its tile with either precision, but not with noise of 24 bits, at both levels."""
    for kept in KEPT_COUNTS:
        yield TellingRow(SEEDS[token_stream], _contested_token(token_stream, kept, _LUCK_MARGIN), kept)
        yield TellingRow(SEEDS[tile_stream], _contested_tile(tile_stream, kept, _LUCK_MARGIN), kept)


def place_row(row: TellingRow, dtype: torch.dtype, size: int) -> torch.Tensor:
    """Return the row in a dtype and a vocabulary of ``size``, at least its own; the row stays as telling.

    The decisive logits are moved to zero, where the values of a dtype lie densest, by a distance that each dtype has.
    """
    shift = torch.tensor(-float(row.logits[0])).bfloat16().double()
    logits = torch.full((size,), _NEGLIGIBLE, dtype=torch.float64)
    logits[: len(row.logits)] = torch.from_numpy(row.logits).double() + shift
    return logits.to(dtype)


def _contested_token(stream: int, kept: int, luck: float = 0.0) -> Array:
    """Make a row [V] float32 whose draw depends on the noise precision: token 0, or a rival in its tile.

    :param luck: raises it, so that both draw it.
    """
    row = np.full(VOCAB_SIZE, _NEGLIGIBLE)
    row[:kept] = np.where(np.arange(kept) < TILE_SIZE, 0.0, _UNLIKELY_LOGIT)
    rivals = np.arange(1, TILE_SIZE)
    best = (row[rivals] + reference.gumbel(SEEDS[stream], POSITION, rivals, stream)).max()
    row[0] = best - _mean_noise(stream) + luck
    return row.astype(np.float32)


def _contested_tile(stream: int, kept: int, luck: float = 0.0) -> Array:
    """Make a row [V] float32 whose drawn tile depends on the noise precision: tile 0 or tile 1."""
    row = np.full(VOCAB_SIZE, _NEGLIGIBLE)
    row[: kept // 2] = row[TILE_SIZE : TILE_SIZE + kept - kept // 2] = 0.0
    first = np.arange(0, VOCAB_SIZE, TILE_SIZE)
    masses = np.log(np.add.reduceat(np.exp(row), first))
    rivals = np.arange(1, len(first))
    best = (masses[rivals] + reference.gumbel(SEEDS[stream], POSITION, rivals, stream)).max()
    row[:TILE_SIZE] += best - masses[0] - _mean_noise(stream) + luck
    return row.astype(np.float32)


def telling_draft() -> TellingRow:
    """Make a row that accepts a draft of token 0 at one precision of the noise alone."""
    seed, stream = SEEDS[reference_walk.ACCEPT], reference_walk.ACCEPT
    w0, w1, _, _ = reference.random_words(seed, POSITION, 0, stream)
    row = np.full(VOCAB_SIZE, _NEGLIGIBLE)
    row[0] = (np.log(reference.uniform(w0)) + np.log(reference.uniform(w0, w1))) / 2
    row[1] = 0.0
    return TellingRow(seed, row.astype(np.float32), kept=2)


def _mean_noise(stream: int) -> float:
    """Return the mean of the two precisions' noise at index 0."""
    variates = [
        float(reference.gumbel(SEEDS[stream], POSITION, 0, stream, dtype)) for dtype in ("fp32", "fp64")
    ]
    return sum(variates) / 2
