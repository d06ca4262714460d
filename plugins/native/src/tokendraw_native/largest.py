"""The k largest values and the argmax of rows.

On a CPU ``topk`` and ``argmax`` take 20 times as long as ``amax``. So there the maxima of blocks come first, and
only the blocks that can hold a result are read again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw_native.row_threads import by_chunks

_BLOCK = 64
LIGHT_CHUNK_LOGITS = 1 << 21
"""Logits of a chunk where a row takes a tenth of a millisecond: in a shorter one a preempted helper costs more than it
gains."""
_SHORT = 1 << 14
"""Largest vocabulary of which one look at every value costs less."""


def largest(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Do the same as ``x.topk(n)`` of [rows, V]: values and ids [rows, n], NaN first, equal values in any order."""
    if not _has_blocks(x) or n * 2 * _BLOCK > x.shape[-1]:
        values, ids = x.topk(n)
        return values, ids
    # A value among the n largest lies in a block whose maximum is, or behind the last block.
    ids = _ids_in(_maxima(x).topk(n).indices)
    rest = x.shape[-1] % _BLOCK
    if rest:
        ids = torch.cat((ids, torch.arange(x.shape[-1] - rest, x.shape[-1]).expand(len(x), -1)), -1)
    values, places = x.gather(-1, ids).topk(n)
    return values, ids.gather(-1, places)


def largest_of_rows(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Do the same as :func:`largest`, by chunks of rows."""
    parts = by_chunks(lambda part, _: largest(x[part], n), len(x), x, LIGHT_CHUNK_LOGITS)
    if len(parts) == 1:
        return parts[0]
    values, ids = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(ids)


def first_largest(x: Tensor) -> Tensor:
    """Return the lowest id of the largest value of each row, [rows]; ``x`` [rows, V > 0] has no NaN."""
    if not _has_blocks(x):
        return x.argmax(-1)
    ids = _ids_in(_maxima(x).argmax(-1, keepdim=True))  # of equal ones the first
    values = x.gather(-1, ids)
    place = values.argmax(-1, keepdim=True)
    found = ids.gather(-1, place)
    rest = x.shape[-1] % _BLOCK
    if rest:
        top, last = x[:, -rest:].max(-1, keepdim=True)
        found = torch.where(top > values.gather(-1, place), last + (x.shape[-1] - rest), found)
    return found.squeeze(-1)


def _has_blocks(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.shape[-1] > _SHORT


def _maxima(x: Tensor) -> Tensor:
    """Return the largest value of each whole block, [rows, V // 64], NaN where it has one."""
    rows, vocab_size = x.shape
    blocks = vocab_size // _BLOCK
    return x[:, : blocks * _BLOCK].view(rows, blocks, _BLOCK).amax(-1)


def _ids_in(blocks: Tensor) -> Tensor:
    """Return the ids [rows, n * 64] in some blocks [rows, n]."""
    return (blocks.unsqueeze(-1) * _BLOCK + torch.arange(_BLOCK)).flatten(1)
