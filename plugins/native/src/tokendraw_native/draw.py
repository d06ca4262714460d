"""The draw: an exact sample from the softmax of the kept tokens, in two levels.

The vocabulary is cut into tiles of 1024 consecutive ids. With ``W_t`` the weight of the kept tokens of tile t,

1. the tile is ``argmax_t  log W_t + G(seed, position, t, TILE)``,
2. the token is ``argmax_i  y_i + G(seed, position, i, TOKEN)`` among the kept tokens of that tile,

the lowest number on a tie. A Gumbel maximum is distributed by the log-sum-exp of its members and is independent of
which member attained it (Maddison, Tarlow and Minka, "A* Sampling", 2014), so this is exact. It costs one noise variate
a tile and 1024 more, where one level costs one a logit.

A verification draws in the same two levels from its residual, and a draft from its own logits, each with streams of its
own.

Greedy rows take the same two levels without noise: their threshold is the maximum, so the first tile that keeps
anything and the first kept token in it are the argmax, the lowest id on a tie. Where all rows are greedy,
:func:`draw_greedy` finds it without tiles.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from tokendraw import philox
from tokendraw.plugin import GumbelDtype
from tokendraw.row_parameters import RowParameters
from tokendraw_native.row_stats import RowStats, TopTokens, tile_sums
from tokendraw_native.row_threads import Buffers, map_chunks
from tokendraw_native.rows import INF, Noise, clean, load, scale
from tokendraw_native.search import LIGHT_CHUNK_LOGITS, argmax

TILE = philox.TILE_SIZE


class Streams(NamedTuple):
    """The streams of random numbers of the two levels, for the batch or by row ([rows, 1] int64)."""

    token: int | Tensor
    tile: int | Tensor


SAMPLE: Final = Streams(philox.TOKEN, philox.TILE)
RESIDUAL: Final = Streams(philox.RESIDUAL_TOKEN, philox.RESIDUAL_TILE)
DRAFT: Final = Streams(philox.DRAFT_TOKEN, philox.DRAFT_TILE)


def draw(
    logits: Tensor,
    stats: RowStats,
    params: RowParameters,
    noise: Noise | None,
    dtype: GumbelDtype,
    streams: Streams = SAMPLE,
) -> Tensor:
    """Draw a token in each row: [rows] int64.

    :param logits: [rows, V] as given. One tile of each row is read, none if ``stats`` has the kept tokens themselves.
    :param noise: None: all rows whose tokens are used are greedy.
    """
    if stats.top_tokens is not None:
        return _draw_top_tokens(stats.top_tokens, stats, params, noise, dtype, streams)
    tile = draw_tile(stats.tile_weights, params, noise, dtype, streams)
    ids, outside = _tile_ids(tile, logits.shape[-1])
    x = clean(_gather(logits, ids), finite=stats.finite)
    drop_mask = union(outside, stats.drops(x) if params.may_drop_tokens else None)
    y = scale(x, stats.peak, params.inverse_temperature, finite=stats.finite)
    token = draw_token(ids, y, drop_mask, params, noise, dtype, streams)
    return (token if stats.finite else torch.where(stats.max > -INF, token, 0)).squeeze(-1)


def _draw_top_tokens(
    top: TopTokens,
    stats: RowStats,
    params: RowParameters,
    noise: Noise | None,
    dtype: GumbelDtype,
    streams: Streams,
) -> Tensor:
    """Draw as :func:`draw` does. The tokens are known before the tile, so one call makes the noise of both levels."""
    rows, tiles = stats.tile_weights.shape
    tile_noise = token_noise = None
    if noise is not None and tiles == 1:
        token_noise = noise.gumbel(top.ids, streams.token, dtype)
    elif noise is not None:
        index = torch.cat((torch.arange(tiles, device=top.ids.device).expand(rows, -1), top.ids), -1)
        is_tile = torch.arange(index.shape[-1], device=index.device) < tiles
        stream = torch.where(is_tile, streams.tile, streams.token)
        variates = noise.gumbel(index, stream, dtype)
        tile_noise, token_noise = variates[:, :tiles], variates[:, tiles:]
    tile = _best_tile(stats.tile_weights, tile_noise, params)
    drop_mask = union(top.x < stats.threshold, None if tiles == 1 else top.tile != tile)
    score = scores(top.y, token_noise, drop_mask, params)
    best = score == score.amax(-1, keepdim=True)
    return torch.where(best, top.ids, torch.iinfo(torch.int64).max).amin(-1)


def draw_greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the argmax of each row, [rows] int64, and whether the row is valid, [rows] bool."""

    def chunk_argmax(part: slice, buffers: Buffers) -> tuple[Tensor, Tensor]:
        rows = load(logits[part], buffers)
        return argmax(rows.x), rows.valid.squeeze(-1)

    parts = map_chunks(chunk_argmax, len(logits), logits, LIGHT_CHUNK_LOGITS)
    token, valid = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
    return token, valid


def draw_or_recover(
    logits: Tensor,
    stats: RowStats,
    residual: Tensor,
    is_plain: Tensor,
    params: RowParameters,
    noise: Noise,
    dtype: GumbelDtype,
    residual_streams: Streams,
) -> Tensor:
    """Draw a token in each row, [rows] int64, from the logits or from a residual. One call makes the noise of all rows.

    :param residual: [rows, V]: weights in proportion to which a token is recovered.
    :param is_plain: [rows] bool: rows that :func:`draw` from their logits instead.
    """
    is_plain = is_plain.unsqueeze(-1)
    pairs = zip(SAMPLE, residual_streams, strict=True)
    streams = Streams(*(torch.where(is_plain, sample, recovery) for sample, recovery in pairs))
    weights = torch.where(is_plain, stats.tile_weights, tile_sums(residual))
    ids, outside = _tile_ids(draw_tile(weights, params, noise, dtype, streams), logits.shape[-1])
    x, weight = clean(_gather(logits, ids), finite=stats.finite), _gather(residual, ids)
    y = scale(x, stats.peak, params.inverse_temperature, finite=stats.finite)
    y = torch.where(is_plain, y, weight.log())
    drop_mask = union(outside, torch.where(is_plain, stats.drops(x), weight <= 0))
    token = draw_token(ids, y, drop_mask, params, noise, dtype, streams)
    return torch.where(is_plain & (stats.max == -INF), 0, token).squeeze(-1)


def draw_tile(
    weights: Tensor, params: RowParameters, noise: Noise | None, dtype: GumbelDtype, streams: Streams
) -> Tensor:
    """Draw a tile a row, [rows, 1] int64, from the ``W_t`` [rows, tiles]."""
    rows, tiles = weights.shape
    if tiles == 1:
        return torch.zeros(rows, 1, dtype=torch.int64, device=weights.device)
    index = torch.arange(tiles, device=weights.device)
    return _best_tile(weights, noise.gumbel(index, streams.tile, dtype) if noise else None, params)


def draw_token(
    ids: Tensor,
    y: Tensor,
    drop_mask: Tensor | None,
    params: RowParameters,
    noise: Noise | None,
    dtype: GumbelDtype,
    streams: Streams,
) -> Tensor:
    """Draw a token in each row, [rows, 1] int64, by the ``y`` [rows, n] of successive ``ids`` outside ``drop_mask``."""
    score = scores(y, noise.gumbel(ids, streams.token, dtype) if noise else None, drop_mask, params)
    return ids[..., :1] + score.argmax(-1, keepdim=True)  # the lowest id of a tie


def _best_tile(weights: Tensor, noise: Tensor | None, params: RowParameters) -> Tensor:
    score = weights.log()
    if noise is not None:
        score += noise
    if params.greedy is not None:
        score = torch.where(params.greedy, (weights > 0).to(score.dtype), score)
    return score.argmax(-1, keepdim=True)


def scores(y: Tensor, noise: Tensor | None, drop_mask: Tensor | None, params: RowParameters) -> Tensor:
    """Return scores [rows, n]; the token of the largest score is drawn."""
    score = y if noise is None else y + noise
    if params.greedy is not None:
        score = torch.where(params.greedy, 0.0, score)
    return score if drop_mask is None else score.masked_fill(drop_mask, -INF)


def union(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Return the union of two masks. None is a mask that is False everywhere."""
    if first is None or second is None:
        return first if second is None else second
    return first | second


def _tile_ids(tile: Tensor, vocab_size: int) -> tuple[Tensor, Tensor | None]:
    """Return the ids [rows, n] of a tile [rows, 1], and a mask of ids outside the vocabulary (None: all are inside)."""
    ids = torch.arange(min(TILE, vocab_size), device=tile.device)
    if vocab_size <= TILE:
        return ids.expand(len(tile), -1), None
    ids = tile * TILE + ids
    return ids, ids >= vocab_size if vocab_size % TILE else None


def _gather(values: Tensor, ids: Tensor) -> Tensor:
    if values.shape[-1] <= TILE:
        return values  # one tile is all there is
    return values.gather(-1, ids if values.shape[-1] % TILE == 0 else ids.clamp(max=values.shape[-1] - 1))
