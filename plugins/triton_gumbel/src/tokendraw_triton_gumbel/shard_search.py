"""What ranks ask for rarely, by plain PyTorch on the device: it waits for nothing, and takes some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw.plugin import best_token_ids
from tokendraw.vocab_parallel import BINS, DIGIT_BITS, Digits, Layout, Weighing, keys

_LOGITS_AT_ONCE = 1 << 23
"""Most logits that are looked at at once: some 40 bytes of scratch each."""
_INF = float("inf")


def _chunks(logits: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield some rows at a time as float32, NaN as -inf."""
    step = max(1, _LOGITS_AT_ONCE // logits.shape[1])
    for start in range(0, len(logits), step):
        part = slice(start, min(start + step, len(logits)))
        x = torch.empty(logits[part].shape, dtype=torch.float32, device=logits.device).copy_(logits[part])
        yield part, x.nan_to_num_(nan=-_INF, posinf=_INF, neginf=-_INF)


def largest_values(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest values of logits [B, n], [B, count] in descending order, and how many more tie with the last.

    -inf stands behind the last of n < count.
    """
    values, ties = [], []
    for _, x in _chunks(logits):
        best = x.topk(min(count, x.shape[1]))[0]
        last = best[:, -1:]
        ties.append((x == last).sum(-1, keepdim=True) - (best == last).sum(-1, keepdim=True))
        values.append(pad(best, (0, count - best.shape[1]), value=-_INF))
    return torch.cat(values), torch.cat(ties).to(torch.int32)


def best_tokens(logits: Tensor, count: int, layout: Layout) -> tuple[Tensor, Tensor]:
    """Return the largest values [B, count] and their ids, the lowest first on a tie; -inf and V behind the last."""
    missing = count - min(count, layout.ids.size)
    values, ids = [], []
    for _, x in _chunks(logits):
        columns = best_token_ids(x, count - missing)
        values.append(pad(x.gather(-1, columns), (0, missing), value=-_INF))
        own = (columns + layout.ids.start).to(torch.int32)
        ids.append(pad(own, (0, missing), value=layout.vocab_size))
    return torch.cat(values), torch.cat(ids)


def mass_by_first_digit(logits: Tensor, tops: Tensor, inverse_temperature: Tensor) -> Tensor:
    """Add up ``exp((x - top) / T)`` by the first digit of the values' keys: [B, 256] float64."""
    found = []
    for part, x in _chunks(logits):
        weight = _weights(x, tops[part], inverse_temperature[part])
        sums = weight.new_zeros(len(x), BINS)
        found.append(sums.scatter_add_(-1, keys(x) >> (32 - DIGIT_BITS), weight))
    return torch.cat(found)


def histogram(
    logits: Tensor, digits: Digits, weighing: Weighing | None, inverse_temperature: Tensor
) -> Tensor:
    """Add up what values weigh by a digit of their keys: [B, 256] int64."""
    found = []
    for part, x in _chunks(logits):
        digit = keys(x) >> digits.shift
        if digits.prefix is not None:
            digit -= digits.prefix[part] << DIGIT_BITS
        digit = torch.where((digit >= 0) & (digit < BINS), digit, BINS)
        units = torch.ones_like(digit)
        if weighing is not None:
            weight = _weights(x, weighing.max[part], inverse_temperature[part])
            units = weight.mul_(2.0**weighing.bits).round_().to(torch.int64) * (x >= weighing.floor[part])
        sums = torch.zeros(len(x), BINS + 1, dtype=torch.int64, device=x.device)
        found.append(sums.scatter_add_(-1, digit, units)[:, :BINS])
    return torch.cat(found)


def _weights(x: Tensor, tops: Tensor, inverse_temperature: Tensor) -> Tensor:
    y = (x.to(torch.float64) - tops) * inverse_temperature
    return y.nan_to_num_(nan=0.0, neginf=-_INF).exp_()
