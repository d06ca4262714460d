"""Log-probabilities of the drawn token and of more best tokens than a kernel can order.

PyTorch sorts the keys that a kernel has listed or, for an even larger N, ``torch.topk`` takes all logits.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tokendraw import SamplingMetadata
from tokendraw.plugin import LogprobsMode, best_token_ids, pad_logprobs

_LOGITS_AT_ONCE = 1 << 23
"""Upper limit of logits or keys that PyTorch gets at once: 40 bytes of scratch each, as measured on a CPU."""
_INF = float("inf")
_LARGEST = torch.finfo(torch.float32).max
_INT32_MAX = torch.iinfo(torch.int32).max


def topk_logprobs(
    logits: Tensor,
    m: SamplingMetadata,
    token_ids: Tensor,
    maxima: Tensor,
    sums: Tensor,
    thresholds: Tensor,
    log_kept_mass: Tensor,
    mode: LogprobsMode,
    num_best: int,
    keys: Tensor | None,
    kept: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """Return ids and values [rows, 1 + N] of logits [rows, V] for any N, some rows at a time. Waits for nothing.

    :param token_ids: [rows] int64, the drawn tokens.
    :param maxima: [rows, tiles] float32, of tiles of 1024 ids; NaN counts as -inf.
    :param sums: [rows, tiles] float32: sum of ``exp((x - maximum) / T)``, or how many +inf; the sign says nothing. T is
        1 in raw modes.
    :param thresholds: [rows] float32: ``x >= threshold`` is kept.
    :param log_kept_mass: [rows] float32.
    :param num_best: N.
    :param kept: ceilings [rows, 1], and the logarithms of the masses kept below these, where values are shares of them;
        else None.
    :param keys: [rows, room] int64, as :func:`.list_best_keys` leaves them; None: all logits are ordered here.
    """
    logits = logits.detach()
    rows, width = logits.shape[0], 1 + num_best
    ids = torch.empty((rows, width), dtype=torch.int64, device=logits.device)
    values = torch.empty((rows, width), dtype=torch.float32, device=logits.device)
    temperatures, requested = m.per_row("temperature"), m.per_row("logprobs")
    if temperatures is None or mode.startswith("raw"):
        temperatures = torch.ones(rows, dtype=torch.float64, device=logits.device)
    every_id = torch.arange(logits.shape[1], device=logits.device)
    for part in row_chunks(logits if keys is None else keys):
        token = token_ids[part, None].clamp(
            0, logits.shape[1] - 1
        )  # nothing is read at what a failed draw left
        temperature = temperatures[part, None].to(torch.float64)
        is_greedy = ~(temperature > 0)
        temperature = torch.where(is_greedy, 1.0, temperature)
        inverse = temperature.clamp(max=1.7e308).reciprocal().clamp(max=1.7e308)
        max_logit = peak = maxima[part].amax(-1, keepdim=True)
        if kept is not None:
            peak = torch.fmin(max_logit, kept[0][part])
        lowest = torch.full_like(max_logit, -_INF)
        if mode != "raw_logits":  # what float32 shows as -inf is -inf to the order, too
            lowest = (peak - _LARGEST * temperature).to(torch.float32)
        if mode.startswith("processed"):
            lowest = torch.maximum(lowest, thresholds[part, None])
        if keys is None:
            x = _visible(as_float32(logits[part]), every_id, token, lowest, is_greedy)
            columns = torch.cat((token, best_token_ids(x, num_best)), -1)
            x = x.gather(-1, columns)
        else:
            best = keys[part].sort(-1, descending=True).values[:, :num_best]
            order = every_id[:num_best]
            greedy_ids = torch.where(order == 0, token, order - (order <= token).to(torch.int64))
            best_ids = torch.where(is_greedy, greedy_ids, (best & _INT32_MAX) ^ _INT32_MAX)
            columns = torch.cat((token, best_ids), -1)
            x = as_float32(logits[part].gather(-1, columns))
            x = _visible(x, columns, token, lowest, is_greedy)
        if mode != "raw_logits":
            y = _scaled(x, peak, inverse)
            if mode.endswith("logprobs"):
                weights = sums[part].abs() * _scaled(maxima[part], max_logit, inverse).exp()
                log_mass = weights.sum(-1, keepdim=True).log()
                if mode == "processed_logprobs":
                    log_mass += log_kept_mass[part, None]
                if kept is not None:
                    log_mass = torch.where(peak < max_logit, kept[1][part], log_mass)
                y -= log_mass
            y.clamp_(max=0.0)  # rounded sums may leave more
            x = torch.where(is_greedy & (columns == token), 0.0, y)
        x = torch.where(max_logit > -_INF, x, -_INF)
        ids[part], values[part] = pad_logprobs(columns, x, None if requested is None else requested[part])
    return ids, values


def row_chunks(logits: Tensor) -> Iterator[slice]:
    """Yield slices of the rows of logits [rows, V], few enough to be ordered at once."""
    step = max(1, _LOGITS_AT_ONCE // logits.shape[1])
    for start in range(0, len(logits), step):
        yield slice(start, min(start + step, len(logits)))


def as_float32(logits: Tensor) -> Tensor:
    """Return a copy of logits in float32, with -inf for NaN."""
    x = torch.empty(logits.shape, dtype=torch.float32, device=logits.device).copy_(logits)
    return x.nan_to_num_(nan=-_INF, posinf=_INF, neginf=-_INF)


def _visible(x: Tensor, ids: Tensor, token: Tensor, lowest: Tensor, is_greedy: Tensor) -> Tensor:
    """Return logits with -inf for those below ``lowest`` and, in greedy rows, for all but the drawn token."""
    return torch.where((x >= lowest) & (~is_greedy | (ids == token)), x, -_INF)


def _scaled(x: Tensor, max_logit: Tensor, inverse: Tensor) -> Tensor:
    """``(x - max x) / T`` in float64: 0 at the maximum, even if infinite."""
    return torch.where(x == max_logit, 0.0, (x.to(torch.float64) - max_logit) * inverse)
