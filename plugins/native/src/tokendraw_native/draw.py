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
the first kept token in it are the argmax, the lowest id on a tie. Where all rows are greedy, :func:`draw_greedy` finds
it without tiles.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from tokendraw import philox
from tokendraw.plugin import GumbelDtype
from tokendraw_native.largest import first_largest
from tokendraw_native.request import Noise, Request
from tokendraw_native.rows import INF, clean, load, scaled
from tokendraw_native.scratch import Scratch
from tokendraw_native.survey import Head, Survey, chunks, tile_sums

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
    if survey.head is not None:
        return _draw_of_head(survey.head, survey, request, noise, dtype, streams)
    tile = draw_tile(survey.tile_weights, request, noise, dtype, streams)
    ids, beyond = _ids_of(tile, logits.shape[-1])
    x = clean(_gather(logits, ids), finite=survey.finite)
    dropped = _either(beyond, x < survey.floor if request.filters else None)
    y = scaled(x, survey.top, request.inverse_temperature, finite=survey.finite)
    token = draw_token(ids, y, dropped, request, noise, dtype, streams)
    return (token if survey.finite else torch.where(survey.top > -INF, token, 0)).squeeze(-1)


def _draw_of_head(
    head: Head, survey: Survey, request: Request, noise: Noise | None, dtype: GumbelDtype, streams: Streams
) -> Tensor:
    """As :func:`draw`. The tokens are known before the tile is, so the noise of both levels takes one call."""
    rows, tiles = survey.tile_weights.shape
    of_tile = of_token = None
    if noise is not None and tiles == 1:
        of_token = noise.gumbel(head.ids, streams.token, dtype)
    elif noise is not None:
        index = torch.cat((torch.arange(tiles).expand(rows, -1), head.ids), -1)
        stream = torch.where(torch.arange(index.shape[-1]) < tiles, streams.tile, streams.token)
        both = noise.gumbel(index, stream, dtype)
        of_tile, of_token = both[:, :tiles], both[:, tiles:]
    tile = _best_tile(survey.tile_weights, of_tile, request)
    dropped = _either(head.x < survey.floor, None if tiles == 1 else head.tile != tile)
    score = _scores(head.y, of_token, dropped, request)
    best = score == score.amax(-1, keepdim=True)
    return torch.where(best, head.ids, torch.iinfo(torch.int64).max).amin(-1)


def draw_greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The argmax of each row, [rows] int64, and whether the row is valid, [rows] bool."""
    scratch, found = Scratch(logits.device), []
    for _, part in chunks(logits):
        rows = load(part, scratch)
        found.append((first_largest(rows.x), rows.valid.squeeze(-1)))
    token, valid = found[0] if len(found) == 1 else map(torch.cat, zip(*found, strict=True))
    return token, valid


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
    ids, beyond = _ids_of(draw_tile(weights, request, noise, dtype, streams), logits.shape[-1])
    x, own = clean(_gather(logits, ids), finite=survey.finite), _gather(weight, ids)
    y = scaled(x, survey.top, request.inverse_temperature, finite=survey.finite)
    y = torch.where(is_plain, y, own.log())
    dropped = _either(beyond, torch.where(is_plain, x < survey.floor, own <= 0))
    token = draw_token(ids, y, dropped, request, noise, dtype, streams)
    return torch.where(is_plain & (survey.top == -INF), 0, token).squeeze(-1)


def draw_tile(
    weights: Tensor, request: Request, noise: Noise | None, dtype: GumbelDtype, streams: Streams
) -> Tensor:
    """[rows, 1] int64 from the ``W_t`` [rows, tiles]."""
    rows, tiles = weights.shape
    if tiles == 1:
        return torch.zeros(rows, 1, dtype=torch.int64, device=weights.device)
    index = torch.arange(tiles, device=weights.device)
    return _best_tile(weights, noise.gumbel(index, streams.tile, dtype) if noise else None, request)


def draw_token(
    ids: Tensor,
    y: Tensor,
    dropped: Tensor | None,
    request: Request,
    noise: Noise | None,
    dtype: GumbelDtype,
    streams: Streams,
) -> Tensor:
    """[rows, 1] int64 from the ``y`` [rows, n] of successive tokens ``ids``, less those that are ``dropped``."""
    score = _scores(y, noise.gumbel(ids, streams.token, dtype) if noise else None, dropped, request)
    return ids[..., :1] + score.argmax(-1, keepdim=True)  # of equal ones the first


def _best_tile(weights: Tensor, noise: Tensor | None, request: Request) -> Tensor:
    score = weights.log()
    if noise is not None:
        score += noise
    if request.greedy is not None:
        score = torch.where(request.greedy, (weights > 0).to(score.dtype), score)
    return score.argmax(-1, keepdim=True)


def _scores(y: Tensor, noise: Tensor | None, dropped: Tensor | None, request: Request) -> Tensor:
    """[rows, n]: the largest is drawn."""
    score = y if noise is None else y + noise
    if request.greedy is not None:
        score = torch.where(request.greedy, 0.0, score)
    return score if dropped is None else score.masked_fill(dropped, -INF)


def _either(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return one if other is None else other
    return one | other


def _ids_of(tile: Tensor, vocab_size: int) -> tuple[Tensor, Tensor | None]:
    """The ids [rows, n] of a tile [rows, 1], and which of them are no tokens; None: all are."""
    ids = torch.arange(min(TILE, vocab_size), device=tile.device)
    if vocab_size <= TILE:
        return ids.expand(len(tile), -1), None
    ids = tile * TILE + ids
    return ids, ids >= vocab_size if vocab_size % TILE else None


def _gather(values: Tensor, ids: Tensor) -> Tensor:
    if values.shape[-1] <= TILE:
        return values  # one tile is all there is
    return values.gather(-1, ids if values.shape[-1] % TILE == 0 else ids.clamp(max=values.shape[-1] - 1))
