"""The best tokens of a rank's columns, for log-probabilities, by ``torch.topk``. It waits for nothing."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw.plugin import best_token_ids
from tokendraw.vocab_parallel import Layout

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
