"""Verifications with tokens that tell the precision of each variate: acceptance, residual, bonus token."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw_testing import reference, reference_walk
from tokendraw_testing.rows.noise_precision import (
    POSITION,
    VOCAB_SIZE,
    TellingRow,
    place_row,
    telling_draft,
    telling_rows,
)
from tokendraw_testing.verify.draft_batch import DraftBatch

Array = NDArray[Any]

MakeRows: TypeAlias = Callable[[int, int], Iterable[TellingRow]]
"""Makes rows that tell noise of the streams of tokens and of tiles."""
SAMPLE = (reference.TOKEN, reference.TILE)
RESIDUAL = (reference_walk.RESIDUAL_TOKEN, reference_walk.RESIDUAL_TILE)
DRAFT = (reference_walk.DRAFT_TOKEN, reference_walk.DRAFT_TILE)
"""Streams of the tokens and of the tiles of a draw."""
_REJECTED_DRAFT = VOCAB_SIZE - 1
"""A draft that no telling row has any mass for."""
_ACCEPTED_DRAFT = 3
"""A draft with all the mass of its row."""


def telling_batch(
    params: SamplingParams, dtype: str = "float32", *, filtered: bool, rows: MakeRows = telling_rows
) -> DraftBatch:
    """Make requests with one draft each, drawn for certain, whose tokens depend on a single variate.

    :param params: of all of them, but for their seeds.
    :param dtype: of the logits, by its torch name.
    :param rows: which ones, those of either precision of the noise or those of luck.
    :param filtered: whether each has a top-k that drops the tokens without mass.
    """
    requests = [
        (telling_draft(), 0, False),
        *((row, _REJECTED_DRAFT, False) for row in rows(*RESIDUAL)),
        *((row, _ACCEPTED_DRAFT, True) for row in rows(*SAMPLE)),
    ]
    sure_row = _sure_row(_ACCEPTED_DRAFT)
    logits = [place_row(row, getattr(torch, dtype), VOCAB_SIZE).float().numpy() for row, *_ in requests]
    return DraftBatch(
        target=[
            np.stack([sure_row, x] if bonus else [x, sure_row])
            for x, (*_, bonus) in zip(logits, requests, strict=True)
        ],
        draft=[_sure_row(draft)[None] for _, draft, _ in requests],
        probs=[np.exp(_sure_row(draft))[None] for _, draft, _ in requests],
        ids=[[draft] for _, draft, _ in requests],
        params=[replace(params, seed=row.seed, top_k=row.kept if filtered else 0) for row, _, _ in requests],
        dtype=dtype,
        first=[POSITION - 1 if bonus else POSITION for _, _, bonus in requests],
    )


def _sure_row(token: int) -> Array:
    """Make logits [V] float32 with all the mass on one token."""
    return np.where(np.arange(VOCAB_SIZE) == token, 0.0, -1000.0).astype(np.float32)
