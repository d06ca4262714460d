"""Log-probabilities of the drawn token and of the N best, and the drawn token's rank.

Only values at the ids that are returned are computed. Of the row as a whole the logarithm of its mass is enough, which
the draw had to find anyway.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import LogprobsTensors
from tokendraw.plugin import LogprobsMode, best_token_ids, pad_logprobs
from tokendraw_native.row_params import RowParams
from tokendraw_native.row_stats import RowStats, chunks
from tokendraw_native.rows import INF, clean, real_dtype, scaled


def log_kept_mass(stats: RowStats, params: RowParams) -> Tensor:
    """Return the log of the kept share of the temperature-scaled mass, [rows] float32.

    It is 0 in greedy rows, whose one token has all of it.
    """
    assert stats.mass is not None  # see ``row_stats(masses=True)``
    share = _log_kept(stats) - stats.mass.log()
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
    token = token.unsqueeze(-1)
    least = _least_shown(stats, params, mode)
    ranks, best = [], []
    for rows, part in chunks(logits):
        x = clean(part)
        if ranked:
            ranks.append((x >= x.gather(-1, token[rows])).sum(-1))
        visible = _visible(x, token[rows], least[rows], params.chunk(rows), mode)
        best.append(best_token_ids(visible, width))
    ids = torch.cat((token, torch.cat(best)), -1)
    values = _values(clean(logits.gather(-1, ids)), stats, params, mode)
    if params.greedy is not None and not mode.startswith("raw"):
        values = torch.where(params.greedy, torch.where(ids == token, 0.0, -INF), values)
    values = torch.where(stats.max > -INF, values, -INF).to(torch.float32)
    ids, values = pad_logprobs(ids, values, asked)
    return LogprobsTensors(ids, values, torch.cat(ranks) if ranked else None)


def _log_kept(stats: RowStats) -> Tensor:
    return stats.tile_weights.sum(-1, keepdim=True).log()


def _least_shown(stats: RowStats, params: RowParams, mode: LogprobsMode) -> Tensor:
    """Return the least logit that a mode shows as more than -inf, [rows, 1] float32.

    Below it lie the tokens that a filter dropped, and those whose quotient float32 does not hold, as beside +inf.
    Tokens shown as -inf are ordered by their ids.
    """
    if mode == "raw_logits":
        return torch.full_like(stats.max, -INF)
    temperature = torch.ones_like(params.temperature) if mode.startswith("raw") else params.temperature
    least = (stats.max.to(temperature.dtype) - torch.finfo(torch.float32).max * temperature).to(torch.float32)
    return torch.maximum(least, stats.threshold) if mode.startswith("processed") else least


def _visible(x: Tensor, token: Tensor, least: Tensor, params: RowParams, mode: LogprobsMode) -> Tensor:
    """Return the values that rank the best tokens, with -inf for those that the mode shows as -inf."""
    visible = torch.where(x >= least, x, -INF)
    if params.greedy is not None and not mode.startswith("raw"):
        is_token = torch.arange(x.shape[-1], device=x.device) == token
        visible = torch.where(params.greedy & ~is_token, -INF, visible)
    return visible


def _values(x: Tensor, stats: RowStats, params: RowParams, mode: LogprobsMode) -> Tensor:
    """Return what ``mode`` shows of the values ``x`` [rows, n]."""
    assert stats.mass is not None  # see ``row_stats(masses=True)``
    assert stats.raw_mass is not None
    if mode == "raw_logits":
        return x.to(real_dtype(x.device))
    if mode == "raw_logprobs":
        return scaled(x, stats.max, torch.ones_like(params.temperature)) - stats.raw_mass.log()
    y = scaled(x, stats.max, params.inverse_temperature)
    if mode == "temperature_logprobs":
        return y - stats.mass.log()
    if mode == "processed_logprobs":
        y = y - _log_kept(stats)
    return torch.where(x >= stats.threshold, y, -INF)
