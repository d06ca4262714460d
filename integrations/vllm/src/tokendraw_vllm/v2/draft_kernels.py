"""The kernels of drawn drafts: one keeps their logits beside the draw, two compute their probabilities from these.

:func:`keep_logits` reads the logits [rows, V] once and writes them once. A launch inside a captured CUDA graph reads
slots, steps and positions anew in every replay. :func:`draft_probabilities` reads the kept logits twice.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK_SIZE = 4096
_PROBS_BLOCK_SIZE, _PROBS_WARPS = 8192, 8


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


class JudgedRows(NamedTuple):
    """The rows of the target that judge a draft, as tensors on the device, and the logits that the drafts came from."""

    rows: Tensor
    """[D] int64: the rows in the batch."""
    slot_of_row: Tensor
    """[L] integer: slot of vLLM."""
    step_of_row: Tensor
    """[L] integer: index of the row in its request."""
    temperature: Tensor
    """[slots] float32."""
    cache: Tensor
    """[slots, K, V]: as in :class:`DraftRows`."""


@triton.jit
def _scaled_logits(rows, slots, steps, temperature, cache, slot_stride, draft_stride, ids, vocab_size):
    """Return a block of the logits of a draft over its temperature, a greedy one over 1; -inf behind the last."""
    row = tl.load(rows + tl.program_id(0).to(tl.int64))
    slot = tl.maximum(tl.load(slots + row).to(tl.int64), 0)
    step = tl.load(steps + row).to(tl.int64)
    divisor = tl.load(temperature + slot)
    divisor = tl.where(divisor == 0.0, 1.0, divisor)
    logits = cache + slot * slot_stride + step * draft_stride
    return tl.load(logits + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32) / divisor


@triton.jit(
    do_not_specialize=["slot_stride", "draft_stride", "vocab_size"],
    do_not_specialize_on_alignment=["rows", "slots", "steps", "temperature", "sums"],
)
def block_sums(
    rows,
    slots,
    steps,
    temperature,
    cache,
    slot_stride,
    draft_stride,
    sums,
    vocab_size,
    BLOCK_SIZE: tl.constexpr,
):
    """Write the maximum of a block of logits, and the sum of exponentials above the maximum. Grid (D, blocks)."""
    ids = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = _scaled_logits(rows, slots, steps, temperature, cache, slot_stride, draft_stride, ids, vocab_size)
    maximum = tl.max(x, 0)
    shift = tl.where(maximum == float("-inf"), 0.0, maximum)
    place = sums + 2 * (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1))
    tl.store(place, maximum)
    tl.store(place + 1, tl.sum(tl.exp(x - shift), 0))


@triton.jit(
    do_not_specialize=["slot_stride", "draft_stride", "vocab_size"],
    do_not_specialize_on_alignment=["rows", "slots", "steps", "temperature", "sums", "probs"],
)
def write_probabilities(
    rows,
    slots,
    steps,
    temperature,
    cache,
    slot_stride,
    draft_stride,
    sums,
    probs,
    vocab_size,
    BLOCKS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Write a block of the softmax, from what :func:`block_sums` wrote. Grid (D, blocks).

    :param BLOCKS: a power of two, at least the number of blocks.
    """
    ids = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = _scaled_logits(rows, slots, steps, temperature, cache, slot_stride, draft_stride, ids, vocab_size)
    count, draft = tl.num_programs(1), tl.program_id(0).to(tl.int64)
    blocks = tl.arange(0, BLOCKS)
    places, is_block = sums + 2 * (draft * count + blocks), blocks < count
    maxima = tl.load(places, mask=is_block, other=float("-inf"))
    maximum = tl.max(maxima, 0)
    parts = tl.load(places + 1, mask=is_block, other=0.0) * tl.exp(maxima - maximum)
    values = tl.exp(x - maximum) / tl.sum(parts, 0)
    tl.store(probs + draft * vocab_size + ids, values, mask=ids < vocab_size)


def draft_probabilities(judged: JudgedRows) -> Tensor:
    """Return the probabilities that drafts were drawn with: [D, V] float32. A greedy one counts as at temperature 1.

    A row with NaN, with +inf or with nothing above -inf is NaN.
    """
    count, vocab_size = judged.rows.shape[0], judged.cache.shape[2]
    blocks = triton.cdiv(vocab_size, _PROBS_BLOCK_SIZE)
    probs = torch.empty(count, vocab_size, dtype=torch.float32, device=judged.cache.device)
    sums = probs.new_empty(count, blocks, 2)
    inputs = (*judged, judged.cache.stride(0), judged.cache.stride(1), sums)
    grid, named = (count, blocks), {"BLOCK_SIZE": _PROBS_BLOCK_SIZE, "num_warps": _PROBS_WARPS}
    if count:
        block_sums[grid](*inputs, vocab_size, **named)
        write_probabilities[grid](*inputs, probs, vocab_size, BLOCKS=triton.next_power_of_2(blocks), **named)
    return probs


def warm_up(device: torch.device, dtype: torch.dtype, vocab_size: int) -> None:
    """Compile the kernels for logits of a dtype, with ids of rows in either integer dtype."""
    ids, temperature = (
        torch.zeros(1, dtype=torch.int64, device=device),
        torch.ones(1, device=device, dtype=torch.float32),
    )
    logits = torch.zeros(1, 1, vocab_size, dtype=dtype, device=device)
    keep_logits(DraftRows(logits[0], ids, ids, ids[0], logits))
    for slots, steps in product((ids, ids.to(torch.int32)), repeat=2):
        draft_probabilities(JudgedRows(ids, slots, steps, temperature, logits))
