"""The least that edits of logits can cost on a device: kernels of Triton that do less than any of them."""

# ruff: noqa: ANN001, ANN202, N803
# mypy: ignore-errors
# The language of kernels has no types, and its constants are in capitals.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_IDS, _WARPS = 128, 4


def empty(logits: Tensor, ids: Tensor) -> None:
    """Launch a program without work for every 128 ids, as :func:`scatter` does.

    :param ids: [rows, D] int32.
    """
    _empty[_grid(ids)](logits, num_warps=_WARPS)


def scatter(logits: Tensor, row_index: Tensor, ids: Tensor) -> None:
    """Add 1 to the logits of some ids: a slot, its ids, and their logits are read one after the other.

    :param logits: [rows, V].
    :param row_index: [rows] integer: the row of ``ids`` that belongs to each.
    :param ids: [rows, D] int32.
    """
    _scatter[_grid(ids)](logits, logits.stride(0), row_index, ids, ids.shape[1], IDS=_IDS, num_warps=_WARPS)


def _grid(ids: Tensor) -> tuple[int]:
    rows, count = ids.shape
    return (rows * triton.cdiv(count, _IDS),)


@triton.jit
def _empty(logits):
    pass


@triton.jit
def _scatter(logits, stride, row_index, ids, count, IDS: tl.constexpr):
    parts = tl.cdiv(count, IDS)
    row = tl.program_id(0) // parts
    at = tl.program_id(0) % parts * IDS + tl.arange(0, IDS)
    found = tl.load(ids + tl.load(row_index + row) * count + at, mask=at < count, other=0)
    place = logits + row.to(tl.int64) * stride + found
    tl.store(place, tl.load(place, mask=at < count, other=0) + 1, mask=at < count)
