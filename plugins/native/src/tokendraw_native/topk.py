"""The k largest values and the argmax of rows.

On a CPU ``topk`` and ``argmax`` take 20 times as long as ``amax``. So there the maxima of blocks come first, and
only the blocks that can hold a result are read again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw_native.row_threads import map_chunks

_BLOCK_COLUMNS = 64
LIGHT_CHUNK_LOGITS = 1 << 21
"""Logits of a chunk where a row takes a tenth of a millisecond. In shorter chunks a preempted helper costs more than it
gains."""
_MAX_DIRECT_VOCAB = 1 << 14
"""Largest vocabulary that is read as a whole: up to here blocks cost more than they save."""


def topk(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Do the same as ``x.topk(n)`` of [rows, V]: values and ids [rows, n], NaN first, equal values in any order."""
    if not _has_blocks(x) or n * 2 * _BLOCK_COLUMNS > x.shape[-1]:
        values, ids = x.topk(n)
        return values, ids
    # A value among the n largest lies in a block whose maximum is, or behind the last block.
    ids = _block_ids(_block_maxima(x).topk(n).indices)
    tail = x.shape[-1] % _BLOCK_COLUMNS
    if tail:
        ids = torch.cat(
            (ids, torch.arange(x.shape[-1] - tail, x.shape[-1], device=x.device).expand(len(x), -1)), -1
        )
    values, columns = x.gather(-1, ids).topk(n)
    return values, ids.gather(-1, columns)


def topk_by_chunks(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Do the same as :func:`topk`, by chunks of rows."""
    parts = map_chunks(lambda part, _: topk(x[part], n), len(x), x, LIGHT_CHUNK_LOGITS)
    if len(parts) == 1:
        return parts[0]
    values, ids = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(ids)


def argmax(x: Tensor) -> Tensor:
    """Return the lowest id of the largest value of each row, [rows]; ``x`` [rows, V > 0] has no NaN."""
    if not _has_blocks(x):
        return x.argmax(-1)
    ids = _block_ids(_block_maxima(x).argmax(-1, keepdim=True))  # of equal ones the first
    values = x.gather(-1, ids)
    column = values.argmax(-1, keepdim=True)
    result = ids.gather(-1, column)
    tail = x.shape[-1] % _BLOCK_COLUMNS
    if tail:
        top, last = x[:, -tail:].max(-1, keepdim=True)
        result = torch.where(top > values.gather(-1, column), last + (x.shape[-1] - tail), result)
    return result.squeeze(-1)


def _has_blocks(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.shape[-1] > _MAX_DIRECT_VOCAB


def _block_maxima(x: Tensor) -> Tensor:
    """Return the largest value of each full block, [rows, V // 64], NaN where the block holds NaN."""
    rows, vocab_size = x.shape
    blocks = vocab_size // _BLOCK_COLUMNS
    return x[:, : blocks * _BLOCK_COLUMNS].view(rows, blocks, _BLOCK_COLUMNS).amax(-1)


def _block_ids(blocks: Tensor) -> Tensor:
    """Return the ids [rows, n * 64] in some blocks [rows, n]."""
    columns = torch.arange(_BLOCK_COLUMNS, device=blocks.device)
    return (blocks.unsqueeze(-1) * _BLOCK_COLUMNS + columns).flatten(1)
