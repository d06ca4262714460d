"""Reads a buffer at the speed of the memory. Needs triton."""

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
