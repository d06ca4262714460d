"""The k largest values and the argmax of rows, and the search behind top-k and top-p.

On a CPU ``topk`` and ``argmax`` take 20 times as long as ``amax``. So there the maxima of blocks come first, and
only the blocks that can hold a result are read again.

The search finds the largest value from which upwards the weights add up to a target: with weight 1 and target k that is
the k-th largest value, with weight exp(y) and target p Z the smallest value of the nucleus. On a GPU a sort is the
fastest that torch has. On a CPU numpy sorts several rows in a fifth of the time that torch takes, if value and id of
each token are one integer. The sort of a whole vocabulary would take most of the time of a call, so there the search
goes by bins: the upper 16 bits of the distance from the maximum, a float32 that is not negative, are the number of one
of 32,640 bins, which are ordered like the distances. A histogram of the weight says in which bin the target is reached,
and only the members of that bin are sorted. Both ways are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw.plugin import numpy_is_usable
from tokendraw.probabilities import first_reaching, threshold_of_sorted
from tokendraw_native.row_threads import Buffers, map_chunks
from tokendraw_native.rows import INF, CleanedLogits

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
        last = torch.arange(x.shape[-1] - tail, x.shape[-1], device=x.device)
        ids = torch.cat((ids, last.expand(len(x), -1)), -1)
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


# The search behind top-k and top-p.

_NUM_BINS = 1 << 15
_MAX_SORTED_VOCAB = 1 << 13
"""Largest vocabulary that a sort handles faster than the bins do, on a CPU too."""
_MIN_PACKED_VALUES = 1 << 12
"""Least number of values for which packing pays."""
_MAX_BIN_SHARE = 1 / 16
"""Share of all values in a bin, above which picking out its members costs more than sorting all values."""


def threshold_of(rows: CleanedLogits, weight: Tensor, target: Tensor, buffers: Buffers) -> Tensor:
    """Return the largest value v where the weight of ``x >= v`` is at least ``target``, or comes nearest to it.

    :param weight: [rows, V], non-negative, positive at the maximum.
    :param target: [rows, 1]; 0 or less finds the maximum.
    :returns: [rows, 1] float32, a value of the row.
    """
    if rows.x.device.type == "cpu" and rows.x.shape[-1] > _MAX_SORTED_VOCAB and len(rows.x):
        threshold = _search_bins(rows, weight, target, buffers)
        if threshold is not None:
            return threshold
    order = descending_order(rows.x)
    rank = first_reaching(weight.gather(-1, order).cumsum(-1), target)
    return rows.x.gather(-1, order.gather(-1, rank))


def descending_order(x: Tensor) -> Tensor:
    """Return the ids [rows, n] int64 of the values of each row, the largest first; ties in any order.

    :param x: [rows, n] float32 without NaN.
    """
    is_small = len(x) == 1 or x.numel() < _MIN_PACKED_VALUES
    if x.device.type != "cpu" or is_small or not numpy_is_usable():
        return x.argsort(-1, descending=True)
    bits = (x + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # as integers, in the order of the floats
    packed = torch.empty(*x.shape, 2, dtype=torch.int32, device=x.device)
    torch.bitwise_not(ascending, out=packed[..., 1])
    packed[..., 0] = torch.arange(x.shape[-1], dtype=torch.int32, device=x.device)
    order = packed.view(torch.int64).squeeze(-1)
    order.numpy().sort(-1)
    return order.bitwise_and_(0xFFFFFFFF)


def _search_bins(rows: CleanedLogits, weight: Tensor, target: Tensor, buffers: Buffers) -> Tensor | None:
    """Search by bins; None if the last bin holds too many values. Its shapes depend on the data: for CPUs only."""
    x = rows.x
    x_max = rows.max + 0.0  # -0.0 less 0.0 would be a negative distance
    distance = torch.sub(x_max, x, out=buffers.like("distance", x))
    if not rows.finite:
        distance.nan_to_num_(nan=0.0, posinf=INF)  # infinity minus itself
    bins = buffers.like("bins", x, torch.int64).copy_(distance.view(torch.uint16)[:, 1::2])
    histogram = buffers.take("histogram", len(x), _NUM_BINS, weight.dtype)
    running = histogram.zero_().scatter_add_(-1, bins, weight).cumsum_(-1)
    bin_index = first_reaching(running, target)
    above = torch.where(bin_index > 0, running.gather(-1, (bin_index - 1).clamp_(min=0)), 0.0)

    mask = torch.ge(distance, _bin_floor(bin_index), out=buffers.like("mask", x))
    mask -= torch.ge(distance, _bin_floor(bin_index + 1), out=buffers.like("next", x))
    cells = _sparse_nonzero(mask)
    return None if cells is None else _search_cells(cells, x, weight, target - above)


def _sparse_nonzero(mask: Tensor) -> Tensor | None:
    """Return ``mask.nonzero()`` [n, 2] of a matrix of 0 and 1, skipping blocks of zeros; None if many are 1."""
    rows, size = mask.shape
    end = size // _BLOCK_COLUMNS * _BLOCK_COLUMNS
    blocks, tail = mask[:, :end].view(rows, -1, _BLOCK_COLUMNS), mask[:, end:]
    counts = blocks.sum(-1)
    if counts.sum() + tail.sum() > _MAX_BIN_SHARE * mask.numel():
        return None
    row, block = counts.nonzero().unbind(-1)
    hit, column = blocks[row, block].nonzero().unbind(-1)
    cells = torch.stack((row[hit], block[hit] * _BLOCK_COLUMNS + column), -1)
    tail_cells = tail.nonzero() + torch.tensor([0, end], dtype=torch.int64, device=tail.device)
    return torch.cat((cells, tail_cells))


def _bin_floor(bin_index: Tensor) -> Tensor:
    """Return the least distance in a bin; NaN above the bin of infinity, so no value is as large."""
    return (bin_index << 16).to(torch.int32).view(torch.float32)


def _search_cells(cells: Tensor, x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Search among the values at ``cells`` [n, 2], at least one a row."""
    row, column = cells[cells[:, 0].argsort(stable=True)].unbind(-1)
    counts = row.bincount(minlength=len(x))
    index = torch.arange(len(cells), device=cells.device)
    rank = index - (counts.cumsum(0) - counts)[row]  # of a cell within its row
    values = x.new_full((len(x), int(counts.max())), -INF)
    values[row, rank] = x[row, column]
    masses = weight.new_zeros(values.shape)
    masses[row, rank] = weight[row, column]
    values, order = values.sort(-1, descending=True)
    return threshold_of_sorted(values, masses.gather(-1, order), target)
