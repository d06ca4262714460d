"""Seeded rows that tell rounding: near ties, and rows whose token depends on the precision of the noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.plugin import GumbelDtype
from tokendraw_testing import reference
from tokendraw_testing.crossing.comparison import CrossedRequest
from tokendraw_testing.crossing.factors import Site
from tokendraw_testing.crossing.rows import LARGEST_Y_SHIFT, CrossedRow, round_to_dtype, row_of
from tokendraw_testing.rows.draws import random_seeds
from tokendraw_testing.rows.noise_precision import POSITION, lucky_rows, place_row, telling_rows
from tokendraw_testing.rows.subjects import RowSubject

Array = NDArray[Any]

LEAST_LEAD: Final = 2e-4
"""Ten times the lead that float32 may swap."""
_MOST_Y_CHANGE: Final = 1.0
"""Most that the rival's y is changed by."""
_ATTEMPTS: Final = 8


def make_near_tie(
    site: Site, params: SamplingParams, rng: Generator, dtype: GumbelDtype
) -> CrossedRequest | None:
    """Make a seeded request with a rival in the drawn tile little more than :data:`LEAST_LEAD` behind.

    The logits are one on top and a bulk far below it, where a dtype of few bits has the coarsest steps. The value of
    one token of the bulk is then set to the one of the dtype that comes nearest to the winner.

    :param dtype: precision of the noise.
    :returns: None where no value of the dtype comes near enough.
    """
    for seed, position in zip(*random_seeds(rng, _ATTEMPTS), strict=True):
        y = np.minimum(-np.log(site.size) - 0.5 + 0.2 * rng.standard_normal(site.size), 0.0)
        y[rng.integers(site.size)] = 0.0
        top = (
            round_to_dtype(np.array(LARGEST_Y_SHIFT * params.temperature), site.torch_dtype).double().numpy()
        )
        logits = round_to_dtype(top + params.temperature * y, site.torch_dtype)
        row = CrossedRow(site, "a near tie", logits, params, "value")
        winner, _ = reference.draw(row.prepared, seed, position, dtype)
        rival, value = _rival(row, winner, seed, position, dtype)
        adjusted_logits = logits.clone()
        adjusted_logits[rival] = value
        row = replace(row, logits=adjusted_logits)
        token, lead = reference.draw(row.prepared, seed, position, dtype)
        if token == winner and LEAST_LEAD / 2 < lead < 50 * LEAST_LEAD and row.is_settled:
            return CrossedRequest(row, replace(params, seed=seed), position)
    return None


def _rival(row: CrossedRow, winner: int, seed: int, position: int, dtype: GumbelDtype) -> tuple[int, float]:
    """Find the token of the winner's tile, and its value, with a score closest to the winner's from below."""
    start = winner // reference.TILE_SIZE * reference.TILE_SIZE
    ids = np.arange(start, min(start + reference.TILE_SIZE, row.site.size))
    y, temperature = row.prepared.y[ids], row.params.temperature
    noise = reference.gumbel(seed, position, ids, reference.TOKEN, dtype)
    best = y[winner - start] + noise[winner - start]
    ideal_logits = row.sorted_logits.top + temperature * (best - LEAST_LEAD - noise)
    values = round_to_dtype(ideal_logits, row.site.torch_dtype).double().numpy()
    new_y = (values - row.sorted_logits.top) / temperature
    lead = best - new_y - noise
    is_usable = (lead >= LEAST_LEAD) & (np.abs(new_y - y) < _MOST_Y_CHANGE) & (new_y < 0) & (ids != winner)
    index = int(np.where(is_usable, lead, np.inf).argmin())
    return int(ids[index]), float(values[index])


def telling_requests(
    subject: RowSubject, site: Site, streams: tuple[int, int], per_row: bool = False
) -> list[CrossedRequest]:
    """Make seeded requests whose tokens tell the precision of the noise, without a filter and with top-k.

    :param streams: of the noise of tokens and of tiles.
    :param per_row: whether top-k needs to be served per row.
    """
    capabilities, batch = subject.capabilities, list[CrossedRequest]()
    has_top_k = ("top_k", "per_row") in capabilities.filters if per_row else subject.has("top_k")
    for row in (*telling_rows(*streams), *lucky_rows(*streams)):
        for k in (0, row.kept):
            if k and (not has_top_k or k > (capabilities.max_top_k or k)):
                continue
            params = SamplingParams(top_k=k, filter_order=subject.filter_order)
            logits = place_row(row, site.torch_dtype, site.size)
            crossed = row_of(capabilities, site, "a row that tells noise", logits, params)
            batch.append(CrossedRequest(crossed, replace(params, seed=row.seed), POSITION))
    return batch
