"""Log-probabilities of the drawn token and of more best tokens than a kernel keeps, by ``torch.topk``."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import SamplingMetadata
from tokendraw.plugin import LogprobsMode, best_token_ids, pad_logprobs

_LOGITS_AT_ONCE = 1 << 23
"""Most logits that ``torch.topk`` gets at once: 40 bytes of scratch each, as measured on a CPU."""
_INF = float("inf")
_LARGEST = torch.finfo(torch.float32).max


def describe_many(
    logits: Tensor,
    m: SamplingMetadata,
    token_ids: Tensor,
    maxima: Tensor,
    sums: Tensor,
    floors: Tensor,
    log_kept_mass: Tensor,
    mode: LogprobsMode,
    num_best: int,
) -> tuple[Tensor, Tensor]:
    """Return ids and values [rows, 1 + N] of logits [rows, V] for any N, some rows at a time. Waits for nothing.

    :param token_ids: [rows] int64, the drawn tokens.
    :param maxima: [rows, tiles] float32, of tiles of 1024 ids; NaN counts as -inf.
    :param sums: [rows, tiles] float32: sum of ``exp((x - maximum) / T)``, or how many +inf; the sign says nothing. T is
        1 in raw modes.
    :param floors: [rows] float32: what is kept is ``x >= floor``.
    :param log_kept_mass: [rows] float32.
    :param num_best: N.
    """
    logits = logits.detach()
    (rows, vocab_size), width = logits.shape, 1 + num_best
    ids = torch.empty((rows, width), dtype=torch.int64, device=logits.device)
    values = torch.empty((rows, width), dtype=torch.float32, device=logits.device)
    temperature, wanted = m.per_row("temperature"), m.per_row("logprobs")
    if temperature is None or mode.startswith("raw"):
        temperature = torch.ones(rows, dtype=torch.float64, device=logits.device)
    step = max(1, _LOGITS_AT_ONCE // vocab_size)
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        token, floor = token_ids[part, None], floors[part, None]
        degrees = temperature[part, None].to(torch.float64)
        greedy = ~(degrees > 0)
        inverse = torch.where(greedy, 1.0, degrees).clamp(max=1.7e308).reciprocal().clamp(max=1.7e308)
        x = torch.empty(logits[part].shape, dtype=torch.float32, device=logits.device).copy_(logits[part])
        x.nan_to_num_(nan=-_INF, posinf=_INF, neginf=-_INF)
        top = maxima[part].amax(-1, keepdim=True)
        drawn = x.gather(-1, token)
        if mode != "raw_logits":  # what float32 shows as -inf is -inf to the order, too
            least = top - _LARGEST * torch.where(greedy, 1.0, degrees)
            x = torch.where(x >= least.to(torch.float32), x, -_INF)
        if mode.startswith("processed"):
            x = torch.where(x >= floor, x, -_INF)
        x = torch.where(greedy, -_INF, x).scatter_(-1, token, drawn)
        best = best_token_ids(x, num_best)
        chosen = torch.cat((token, best), -1)
        x = x.gather(-1, chosen)
        if mode != "raw_logits":
            y = _scaled(x, top, inverse)
            if mode.endswith("logprobs"):
                weights = sums[part].abs() * _scaled(maxima[part], top, inverse).exp()
                y -= weights.sum(-1, keepdim=True).log()
            if mode == "processed_logprobs":
                y -= log_kept_mass[part, None]
            y.clamp_(max=0.0)  # rounded sums may leave more
            x = torch.where(greedy & (chosen == token), 0.0, y)
        x = torch.where(top > -_INF, x, -_INF)
        chosen, x = pad_logprobs(chosen, x, None if wanted is None else wanted[part])
        ids[part] = chosen
        values[part] = x
    return ids, values


def _scaled(x: Tensor, top: Tensor, inverse: Tensor) -> Tensor:
    """``(x - max x) / T`` in float64: 0 at the maximum, an infinite one too."""
    return torch.where(x == top, 0.0, (x.to(torch.float64) - top) * inverse)
