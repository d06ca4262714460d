"""The draw: an exact sample from the softmax of the kept tokens, in two levels.

The vocabulary is cut into tiles of 1024 consecutive ids. With ``W_t`` the weight of the kept tokens of tile t,

1. the tile is ``argmax_t  log W_t + G(seed, position, t, TILE)``,
2. the token is ``argmax_i  y_i + G(seed, position, i, TOKEN)`` among the kept tokens of that tile,

the lowest number on a tie. A Gumbel maximum is distributed by the log-sum-exp of its members and is independent of
which member attained it (Maddison, Tarlow and Minka, "A* Sampling", 2014), so this is exact, and it costs one noise
variate a tile and 1024 more where the one-level form costs one a logit.

A verification draws in the same two levels from its residual, and a draft from its own logits, each with streams of its
own.

Greedy rows take the same road without noise: their floor is the maximum, so the first tile that keeps anything and
the first kept token in it are the argmax, the lowest id on a tie.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from tokendraw import philox
from tokendraw._capabilities import GumbelDtype
from tokendraw_native.request import Noise, Request
from tokendraw_native.rows import INF, clean, scaled
from tokendraw_native.survey import Survey, tile_sums

TILE = philox.TILE_SIZE


class Streams(NamedTuple):
    """Where the noise of the two levels comes from: one for all rows, or [rows, 1] int64."""

    token: int | Tensor
    tile: int | Tensor


SAMPLE: Final = Streams(philox.TOKEN, philox.TILE)
RESIDUAL: Final = Streams(philox.RESIDUAL_TOKEN, philox.RESIDUAL_TILE)
DRAFT: Final = Streams(philox.DRAFT_TOKEN, philox.DRAFT_TILE)


def draw(
    logits: Tensor,
    survey: Survey,
    request: Request,
    noise: Noise | None,
    dtype: GumbelDtype,
    streams: Streams = SAMPLE,
) -> Tensor:
    """Draw one token a row: [rows] int64.

    :param logits: [rows, V] as given; one tile of each row is read again unless the survey brought its tokens along.
    :param noise: None: nobody looks at rows that are not greedy.
    """
    tile = draw_tile(survey.tile_weights, request, noise, dtype, streams)
    if survey.head is not None:
        ids, x = survey.head
        candidate = ids // TILE == tile
    else:
        ids, candidate = _ids_of(tile, logits.shape[-1])
        x = clean(_gather(logits, ids))
    candidate &= x >= survey.floor
    y = scaled(x, survey.top, request.inverse_temperature)
    token = draw_token(ids, y, candidate, request, noise, dtype, streams)
    return torch.where(survey.top > -INF, token, 0).squeeze(-1)


def draw_or_recover(
    logits: Tensor,
    survey: Survey,
    weight: Tensor,
    is_plain: Tensor,
    request: Request,
    noise: Noise,
    dtype: GumbelDtype,
    recovering: Streams,
) -> Tensor:
    """Draw one token a row: [rows] int64. Rows share one pass of noise, of which each takes its own stream.

    :param weight: [rows, V]: what a token is recovered by, in proportion, with the streams ``recovering``.
    :param is_plain: [rows] bool: rows that :func:`draw` from their logits instead.
    """
    is_plain = is_plain.unsqueeze(-1)
    streams = Streams(
        *(torch.where(is_plain, own, other) for own, other in zip(SAMPLE, recovering, strict=True))
    )
    weights = torch.where(is_plain, survey.tile_weights, tile_sums(weight))
    ids, candidate = _ids_of(draw_tile(weights, request, noise, dtype, streams), logits.shape[-1])
    x, own = clean(_gather(logits, ids)), _gather(weight, ids)
    y = torch.where(is_plain, scaled(x, survey.top, request.inverse_temperature), own.log())
    candidate &= torch.where(is_plain, x >= survey.floor, own > 0)
    token = draw_token(ids, y, candidate, request, noise, dtype, streams)
    return torch.where(is_plain & (survey.top == -INF), 0, token).squeeze(-1)


def draw_tile(
    weights: Tensor, request: Request, noise: Noise | None, dtype: GumbelDtype, streams: Streams
) -> Tensor:
    """[rows, 1] int64 from the ``W_t`` [rows, tiles]."""
    tiles = torch.arange(weights.shape[-1], device=weights.device)
    score = weights.log()
    if noise is not None:
        score = score + noise.gumbel(tiles, streams.tile, dtype)
    if request.greedy is not None:
        score = torch.where(request.greedy, (weights > 0).to(score.dtype), score)
    return score.argmax(-1, keepdim=True)


def draw_token(
    ids: Tensor,
    y: Tensor,
    candidate: Tensor,
    request: Request,
    noise: Noise | None,
    dtype: GumbelDtype,
    streams: Streams,
) -> Tensor:
    """[rows, 1] int64 from the ``y`` [rows, n] of the tokens ``ids``, of which ``candidate`` says who takes part."""
    score = y if noise is None else y + noise.gumbel(ids, streams.token, dtype)
    if request.greedy is not None:
        score = torch.where(request.greedy, 0.0, score)
    score = torch.where(candidate, score, -INF)
    best = score == score.amax(-1, keepdim=True)
    return torch.where(best, ids, torch.iinfo(ids.dtype).max).amin(-1, keepdim=True)


def _ids_of(tile: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """The ids [rows, n] of a tile [rows, 1], and which of them are tokens."""
    ids = tile * TILE + torch.arange(min(TILE, vocab_size), device=tile.device)
    return ids, ids < vocab_size


def _gather(values: Tensor, ids: Tensor) -> Tensor:
    return values.gather(-1, ids.clamp(max=values.shape[-1] - 1))
