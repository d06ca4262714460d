"""The best tokens of a rank's columns, for log-probabilities, by ``torch.topk``."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw.plugin import best_token_ids
from tokendraw.vocab_parallel import Layout
from tokendraw_triton_gumbel.launches.topk_logprobs import as_float32, row_chunks


def best_tokens(logits: Tensor, count: int, layout: Layout) -> tuple[Tensor, Tensor]:
    """Return the largest values [B, count] and their ids, the lowest first on a tie; -inf and V behind the last."""
    missing = count - min(count, layout.ids.size)
    values, ids = [], []
    for part in row_chunks(logits):
        x = as_float32(logits[part])
        columns = best_token_ids(x, count - missing)
        values.append(pad(x.gather(-1, columns), (0, missing), value=-float("inf")))
        rank_ids = (columns + layout.ids.start).to(torch.int32)
        ids.append(pad(rank_ids, (0, missing), value=layout.vocab_size))
    return torch.cat(values), torch.cat(ids)
