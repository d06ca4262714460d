"""Seeded rows that tell rounding: near ties, and rows with a token that tells the precision of the noise.

Noise of both precisions begins with the same 32 random bits, and float64 appends 21 more: that moves a variate by less
than float32 rounds it, so that hardly a token differs. Only where the 32 bits are all but zero do the others count. At
the seeds below they move a variate by 0.06 to 0.46, and the rows are made so that the draw is decided in between.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.random import Generator

from tokendraw import SamplingParams
from tokendraw.plugin import GumbelDtype
from tokendraw_testing import cases, reference, reference_walk
from tokendraw_testing.kit.subject import RowSubject
from tokendraw_testing.reference import TILE_SIZE, Array

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
LUCK: Final = 1.5
"""More than the two precisions are apart, less than 24 bits fall short of 32 at these seeds."""
_UNLIKELY_LOGIT = -12.0
"""Logit of tokens outside the tile that has to win."""

LEAST_LEAD: Final = 2e-4
"""Ten times the lead that float32 may swap."""
_MOST_Y_CHANGE: Final = 1.0
"""Most that the rival's y is changed by."""
_ATTEMPTS: Final = 8


@dataclass(frozen=True)
class TellingRow:
    """A row with different tokens under float32 and float64 noise, at its seed and :data:`POSITION`."""

    seed: int
    logits: Array
    """[V] float32."""
    kept: int
    """Number of tokens with any mass to speak of, as a top-k that drops none of them."""


def telling_rows(token_stream: int, tile_stream: int) -> Iterator[TellingRow]:
    """Make rows for both levels of a draw from two streams, and lucky ones.

    Luck raises token 0 and its tile, so that both precisions draw it: :data:`LUCK` is more than noise of 24 bits can
    make up for.
    """
    for luck, kept in itertools.product((0.0, LUCK), KEPT_COUNTS):
        yield TellingRow(SEEDS[token_stream], _contested(token_stream, kept, luck, is_tile=False), kept)
        yield TellingRow(SEEDS[tile_stream], _contested(tile_stream, kept, luck, is_tile=True), kept)


def _contested(stream: int, kept: int, luck: float, *, is_tile: bool) -> Array:
    """Make a row [V] float32 whose draw depends on the noise precision: token 0 or a rival in its tile, or tile 0.

    :param luck: raises it, so that both draw it.
    """
    row = np.full(VOCAB_SIZE, _NEGLIGIBLE)
    if is_tile:
        row[: kept // 2] = row[TILE_SIZE : TILE_SIZE + kept - kept // 2] = 0.0
        scores = np.log(np.add.reduceat(np.exp(row), np.arange(0, VOCAB_SIZE, TILE_SIZE)))
    else:
        row[:kept] = np.where(np.arange(kept) < TILE_SIZE, 0.0, _UNLIKELY_LOGIT)
        scores = row[:TILE_SIZE].copy()
    rivals = np.arange(1, len(scores))
    best = (scores[rivals] + reference.gumbel(SEEDS[stream], POSITION, rivals, stream)).max()
    precisions = [float(reference.gumbel(SEEDS[stream], POSITION, 0, stream, n)) for n in ("fp32", "fp64")]
    row[: TILE_SIZE if is_tile else 1] += best - scores[0] - sum(precisions) / 2 + luck
    return row.astype(np.float32)


def telling_draft() -> TellingRow:
    """Make a row that accepts a draft of token 0 at one precision of the noise alone."""
    seed, stream = SEEDS[reference_walk.ACCEPT], reference_walk.ACCEPT
    w0, w1, _, _ = reference.random_words(seed, POSITION, 0, stream)
    row = np.full(VOCAB_SIZE, _NEGLIGIBLE)
    row[0] = (np.log(reference.uniform(w0)) + np.log(reference.uniform(w0, w1))) / 2
    row[1] = 0.0
    return TellingRow(seed, row.astype(np.float32), kept=2)


def make_near_tie(
    site: cases.Site, params: SamplingParams, rng: Generator, dtype: GumbelDtype
) -> cases.CrossedRequest | None:
    """Make a seeded request with a rival in the drawn tile little more than :data:`LEAST_LEAD` behind.

    The logits are one on top and a bulk far below it, where a dtype of few bits has the coarsest steps. The value of
    one token of the bulk is then set to the one of the dtype that comes nearest to the winner.

    :returns: None where no value of the dtype comes near enough.
    """
    request = {name: getattr(params, name) for name in cases.NO_FILTERS}
    for seed, position in zip(*cases.random_seeds(rng, _ATTEMPTS), strict=True):
        row = cases.crossed_row({"site": site, "design": cases.DEEP_BULK, **request}, rng, "value")
        winner, _ = reference.draw(row.prepared, seed, position, dtype)
        rival, value = _rival(row, winner, seed, position, dtype)
        logits = row.logits.clone()
        logits[rival] = value
        row = replace(row, logits=logits)
        token, lead = reference.draw(row.prepared, seed, position, dtype)
        if token == winner and LEAST_LEAD / 2 < lead < 50 * LEAST_LEAD and row.is_settled:
            return cases.CrossedRequest(row, replace(params, seed=seed), position)
    return None


def _rival(
    row: cases.CrossedRow, winner: int, seed: int, position: int, dtype: GumbelDtype
) -> tuple[int, float]:
    """Find the token of the winner's tile, and its value, with a score closest to the winner's from below."""
    start = winner // reference.TILE_SIZE * reference.TILE_SIZE
    ids = np.arange(start, min(start + reference.TILE_SIZE, row.site.size))
    y, temperature = row.prepared.y[ids], row.params.temperature
    noise = reference.gumbel(seed, position, ids, reference.TOKEN, dtype)
    best = y[winner - start] + noise[winner - start]
    ideal_logits = row.sorted_logits.top + temperature * (best - LEAST_LEAD - noise)
    values = cases.round_to_dtype(ideal_logits, row.site.torch_dtype).double().numpy()
    new_y = (values - row.sorted_logits.top) / temperature
    lead = best - new_y - noise
    is_usable = (lead >= LEAST_LEAD) & (np.abs(new_y - y) < _MOST_Y_CHANGE) & (new_y < 0) & (ids != winner)
    index = int(np.where(is_usable, lead, np.inf).argmin())
    return int(ids[index]), float(values[index])


def placed_requests(
    subject: RowSubject, site: cases.Site, rows: Iterable[TellingRow], has_top_k: bool
) -> Iterator[tuple[SamplingParams, torch.Tensor]]:
    """Yield the seeded request and the logits of each row: without a filter, and with top-k as far as it is served.

    The decisive logits are moved to zero, where the values of a dtype lie densest, by a distance that each dtype has.
    """
    limit = subject.capabilities.max_top_k
    for row in rows:
        shift = torch.tensor(-float(row.logits[0])).bfloat16().double()
        logits = torch.full((site.size,), _NEGLIGIBLE, dtype=torch.float64)
        logits[: len(row.logits)] = torch.from_numpy(row.logits).double() + shift
        for k in (0, row.kept) if has_top_k and row.kept <= (limit or row.kept) else (0,):
            params = SamplingParams(seed=row.seed, top_k=k, filter_order=subject.filter_order)
            yield params, logits.to(site.torch_dtype)


def telling_requests(
    subject: RowSubject, site: cases.Site, has_top_k: bool, streams: tuple[int, int] = reference.SAMPLE
) -> list[cases.CrossedRequest]:
    """Make seeded requests whose tokens tell the precision of the noise of tokens and of tiles, from two streams."""
    name, batch = "a row that tells noise", list[cases.CrossedRequest]()
    for params, logits in placed_requests(subject, site, telling_rows(*streams), has_top_k):
        row = cases.row_of(subject.capabilities, site, name, logits, replace(params, seed=None))
        batch.append(cases.CrossedRequest(row, params, POSITION))
    return batch
