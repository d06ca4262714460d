"""Kernels of Triton: a read at the speed of the memory, and what does less than edits of logits. Needs triton."""

# ruff: noqa: ANN001, ANN202, N803
# mypy: ignore-errors
# The language of kernels has no types, and its constants are in capitals.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def read(words: Tensor, block: int, warps: int) -> Tensor:
    """Fold every ``block`` words into a single word by xor.

    :param words: [N] int32.
    """
    count = words.numel()
    folded = torch.empty(triton.cdiv(count, block), dtype=torch.int32, device=words.device)
    _xor_blocks[(len(folded),)](words, folded, count, BLOCK=block, num_warps=warps)
    return folded


@triton.jit
def _xor_blocks(words, folded, count, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    read = tl.load(words + at, mask=at < count, other=0)
    tl.store(folded + program, tl.xor_sum(read))


_IDS, _WARPS = 128, 4


def launch(logits: Tensor, ids: Tensor) -> None:
    """Launch a program without work for every 128 ids, as :func:`scatter` does.

    :param ids: [B, D] int32.
    """
    _empty[_grid(ids)](logits, num_warps=_WARPS)


def scatter(logits: Tensor, row_index: Tensor, ids: Tensor) -> None:
    """Add 1 to the logits of some ids: a slot, its ids, and their logits are read one after the other.

    :param logits: [B, V].
    :param row_index: [B] integer: the row of ``ids`` for each row of the logits.
    :param ids: [B, D] int32.
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
    column = tl.program_id(0) % parts * IDS + tl.arange(0, IDS)
    is_id = column < count
    token_id = tl.load(ids + tl.load(row_index + row) * count + column, mask=is_id, other=0)
    address = logits + row.to(tl.int64) * stride + token_id
    tl.store(address, tl.load(address, mask=is_id, other=0) + 1, mask=is_id)
