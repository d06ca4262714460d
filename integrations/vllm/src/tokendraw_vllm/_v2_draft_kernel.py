"""The kernel beside the draw of drafts: one launch keeps the logits, and locates parameters and noise of each row.

Reads the logits [rows, V] once and writes them once. A launch inside a captured CUDA graph reads slots, steps and
positions anew in every replay.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK_SIZE = 4096


class DraftRows(NamedTuple):
    """The rows of a draw of drafts, as tensors on the device that vLLM fills."""

    logits: Tensor
    """[rows, V], the last stride 1."""
    slots: Tensor
    """[rows] integer: slots of vLLM; -1 for rows that pad a captured batch."""
    positions: Tensor
    """[rows] integer, below 2^32: index of the token fed last."""
    steps: Tensor
    """[] or [rows] integer: index of the draft among the drafts of a verification."""
    cache: Tensor
    """[slots, K, at least V]: the logits that drafts were drawn from, in their dtype."""


@triton.jit(do_not_specialize=["logits_stride", "step_stride", "slot_stride", "draft_stride", "vocab_size"])
def cache_logits(
    logits,
    logits_stride,
    slots,
    positions,
    steps,
    step_stride,
    cache,
    slot_stride,
    draft_stride,
    row_index,
    noise_positions,
    vocab_size,
    BLOCK_SIZE: tl.constexpr,
):
    """Copy a block of a row into the cache. Padding rows copy nothing and get slot 0. Grid (rows, blocks)."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    step = tl.load(steps + row * step_stride).to(tl.int64)
    if block == 0:
        tl.store(row_index + row, tl.maximum(slot, 0))
        tl.store(noise_positions + row, tl.load(positions + row).to(tl.int64) + (step << 32))
    if slot >= 0:
        ids = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        values = tl.load(logits + row * logits_stride + ids, mask=ids < vocab_size)
        tl.store(cache + slot * slot_stride + step * draft_stride + ids, values, mask=ids < vocab_size)


def keep_logits(rows: DraftRows) -> tuple[Tensor, Tensor]:
    """Write the logits into the cache of their slots and steps.

    :returns: the slot of each row, 0 for padding, and the position of its noise, which has the step in its high word:
        both [rows] int64.
    """
    count, vocab_size = rows.logits.shape
    row_index = torch.empty(count, dtype=torch.int64, device=rows.logits.device)
    noise_positions = torch.empty_like(row_index)
    cache_logits[count, triton.cdiv(vocab_size, _BLOCK_SIZE)](
        rows.logits,
        rows.logits.stride(0),
        rows.slots.contiguous(),
        rows.positions.contiguous(),
        rows.steps,
        rows.steps.stride(0) if rows.steps.dim() else 0,
        rows.cache,
        rows.cache.stride(0),
        rows.cache.stride(1),
        row_index,
        noise_positions,
        vocab_size,
        BLOCK_SIZE=_BLOCK_SIZE,
    )
    return row_index, noise_positions


def warm_up(device: torch.device, dtype: torch.dtype) -> None:
    """Compile the kernel for logits of a dtype: it is compiled for no size."""
    ids = torch.zeros(1, dtype=torch.int64, device=device)
    logits = torch.zeros(1, 1, 1, dtype=dtype, device=device)
    keep_logits(DraftRows(logits[0], ids, ids, ids[0], logits))
