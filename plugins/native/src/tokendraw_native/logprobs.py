"""Log-probabilities of the drawn token and of the N best, and the drawn token's rank.

Only values at the ids that are returned are computed; of the row as a whole the logarithm of its mass is enough,
which the draw had to find anyway.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import LogprobsTensors
from tokendraw.plugin import LogprobsMode, best_token_ids, pad_logprobs
from tokendraw_native.request import Request
from tokendraw_native.rows import INF, clean, real_dtype, scaled
from tokendraw_native.survey import Survey, chunks


def log_kept_mass(found: Survey, request: Request) -> Tensor:
    """[rows] float32: the kept share of the temperature-scaled mass; 0 for greedy rows, whose one token has it all."""
    assert found.mass is not None  # surveyed with masses
    share = _log_kept(found) - found.mass.log()
    if request.greedy is not None:
        share = torch.where(request.greedy, 0.0, share)
    return share.squeeze(-1).to(torch.float32)


def logprobs(
    logits: Tensor,
    token: Tensor,
    found: Survey,
    request: Request,
    mode: LogprobsMode,
    width: int,
    wanted: Tensor | None,
    *,
    ranked: bool = True,
) -> LogprobsTensors:
    """Look up the drawn and the best tokens.

    :param token: [rows] int64, the drawn ones.
    :param width: N, how many best tokens every row gets, at most V.
    :param wanted: [rows] int64, how many of them each row asked for (-1: all), or None for all N.
    :param ranked: whether ranks are wanted.
    """
    token = token.unsqueeze(-1)
    floor = _least_shown(found, request, mode)
    ranks, best = [], []
    for rows, part in chunks(logits):
        x = clean(part)
        if ranked:
            ranks.append((x >= x.gather(-1, token[rows])).sum(-1))
        seen = _visible(x, token[rows], floor[rows], request.chunk(rows), mode)
        best.append(best_token_ids(seen, width))
    ids = torch.cat((token, torch.cat(best)), -1)
    values = _values(clean(logits.gather(-1, ids)), found, request, mode)
    if request.greedy is not None and not mode.startswith("raw"):
        values = torch.where(request.greedy, torch.where(ids == token, 0.0, -INF), values)
    values = torch.where(found.top > -INF, values, -INF).to(torch.float32)
    ids, values = pad_logprobs(ids, values, wanted)
    return LogprobsTensors(ids, values, torch.cat(ranks) if ranked else None)


def _log_kept(found: Survey) -> Tensor:
    return found.tile_weights.sum(-1, keepdim=True).log()


def _least_shown(found: Survey, request: Request, mode: LogprobsMode) -> Tensor:
    """[rows, 1] float32: the least logit that a mode shows as more than -inf.

    Less than that is what a filter dropped, and a quotient that float32 does not hold, as beside +inf. What is shown as
    -inf stands in the order of its ids.
    """
    if mode == "raw_logits":
        return torch.full_like(found.top, -INF)
    degrees = torch.ones_like(request.temperature) if mode.startswith("raw") else request.temperature
    least = (found.top.to(degrees.dtype) - torch.finfo(torch.float32).max * degrees).to(torch.float32)
    return torch.maximum(least, found.floor) if mode.startswith("processed") else least


def _visible(x: Tensor, token: Tensor, floor: Tensor, request: Request, mode: LogprobsMode) -> Tensor:
    """The values by which the best are ranked: what a mode does not see is -inf."""
    seen = torch.where(x >= floor, x, -INF)
    if request.greedy is not None and not mode.startswith("raw"):
        one = torch.arange(x.shape[-1], device=x.device) == token
        seen = torch.where(request.greedy & ~one, -INF, seen)
    return seen


def _values(x: Tensor, found: Survey, request: Request, mode: LogprobsMode) -> Tensor:
    """What ``mode`` shows of the values ``x`` [rows, n]."""
    assert found.mass is not None  # surveyed with masses
    assert found.raw_mass is not None
    if mode == "raw_logits":
        return x.to(real_dtype(x.device))
    if mode == "raw_logprobs":
        return scaled(x, found.top, torch.ones_like(request.temperature)) - found.raw_mass.log()
    y = scaled(x, found.top, request.inverse_temperature)
    if mode == "temperature_logprobs":
        return y - found.mass.log()
    if mode == "processed_logprobs":
        y = y - _log_kept(found)
    return torch.where(x >= found.floor, y, -INF)
