"""Log-probabilities of the drawn token and of the N best, and the drawn token's rank.

Only values at the ids that are returned are computed. Of the row as a whole the logarithm of its mass is enough, which
the draw had to find anyway.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import LogprobsTensors
from tokendraw.plugin import (
    LogprobsMode,
    RowMasses,
    best_token_ids,
    least_shown,
    mode_values,
    pad_logprobs,
)
from tokendraw_native.buffers import Buffers
from tokendraw_native.row_params import RowParams
from tokendraw_native.row_stats import RowStats
from tokendraw_native.row_threads import by_chunks
from tokendraw_native.rows import INF, clean


def log_kept_mass(stats: RowStats, params: RowParams) -> Tensor:
    """Return the log of the kept share of the temperature-scaled mass, [rows] float32, at most 0.

    It is 0 in greedy rows, whose one token has all of it.
    """
    row = _masses(stats)
    share = (row.kept.log() - row.mass.log()).clamp_(max=0.0)
    if params.greedy is not None:
        share = torch.where(params.greedy, 0.0, share)
    return share.squeeze(-1).to(torch.float32)


def logprobs(
    logits: Tensor,
    token: Tensor,
    stats: RowStats,
    params: RowParams,
    mode: LogprobsMode,
    width: int,
    asked: Tensor | None,
    *,
    ranked: bool = True,
) -> LogprobsTensors:
    """Look up the drawn and the best tokens.

    :param token: [rows] int64, the drawn ones.
    :param width: N, how many best tokens every row gets, at most V.
    :param asked: [rows] int64, how many of them each row asked for (-1: all), or None for all N.
    :param ranked: whether ranks are wanted.
    """
    token, row = token.unsqueeze(-1), _masses(stats)
    least = least_shown(row, params.temperature, mode)

    def chunk_ids(rows: slice, _: Buffers) -> tuple[Tensor, Tensor | None]:
        x = clean(logits[rows])
        rank = (x >= x.gather(-1, token[rows])).sum(-1) if ranked else None
        visible = _visible(x, token[rows], least[rows], params.chunk(rows), mode)
        return best_token_ids(visible, width), rank

    best, ranks = zip(*by_chunks(chunk_ids, len(logits), logits), strict=True)
    ids = torch.cat((token, torch.cat(best)), -1)
    values = mode_values(clean(logits.gather(-1, ids)), row, params.inverse_temperature, mode)
    if params.greedy is not None and not mode.startswith("raw"):
        values = torch.where(params.greedy, torch.where(ids == token, 0.0, -INF), values)
    values = torch.where(stats.max > -INF, values, -INF).to(torch.float32)
    ids, values = pad_logprobs(ids, values, asked)
    return LogprobsTensors(ids, values, torch.cat(ranks) if ranked else None)


def _masses(stats: RowStats) -> RowMasses:
    assert stats.mass is not None  # see ``row_stats(masses=True)``
    assert stats.raw_mass is not None
    kept = stats.tile_weights.sum(-1, keepdim=True)
    return RowMasses(stats.max, stats.threshold, kept, stats.mass, stats.raw_mass)


def _visible(x: Tensor, token: Tensor, least: Tensor, params: RowParams, mode: LogprobsMode) -> Tensor:
    """Return the values that rank the best tokens, with -inf for those that the mode shows as -inf."""
    visible = torch.where(x >= least, x, -INF)
    if params.greedy is not None and not mode.startswith("raw"):
        is_token = torch.arange(x.shape[-1], device=x.device) == token
        visible = torch.where(params.greedy & ~is_token, -INF, visible)
    return visible
