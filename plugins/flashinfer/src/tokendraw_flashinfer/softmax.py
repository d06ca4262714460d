"""Computes clean probabilities in a Triton kernel, as ``probabilities.relative`` and a softmax do in nine passes.

A row is read twice, in the dtype of the logits, and written once. With many rows an H200 takes a third to a quarter of
the time (``benchmarks/results/h200_flashinfer.md``).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_LARGE_BATCH_ROWS = 128
_MAX_FLOAT32 = tl.constexpr(3.4028234663852886e38)


@triton.jit
def _softmax(
    logits,  # [rows, V] of any float, unit stride within a row
    probs,  # [rows, V] float32, contiguous
    valid,  # [rows] bool
    temperature,  # [rows] float32, or None: 1
    row_stride,  # of logits, in elements
    vocab_size: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the probabilities of a row."""
    row = tl.program_id(0).to(tl.int64)
    source, target = logits + row * row_stride, probs + row * vocab_size
    inverse = 1.0
    if temperature is not None:
        inverse = 1.0 / tl.load(temperature + row)
    lanes = tl.arange(0, BLOCK)
    top = float("-inf")
    masses = tl.zeros((BLOCK,), tl.float32)
    nans = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, vocab_size, BLOCK):
        ids = start + lanes
        x = tl.load(source + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
        nans = tl.maximum(nans, (x != x).to(tl.int32))
        x = tl.minimum(tl.where(x != x, float("-inf"), x), _MAX_FLOAT32)
        above = tl.maximum(top, tl.max(x, 0))
        shift = tl.where(above == float("-inf"), 0.0, above)
        masses = masses * tl.exp((top - shift) * inverse) + tl.exp((x - shift) * inverse)
        top = above
    empty = top == float("-inf")
    tl.store(valid + row, tl.where(empty, False, tl.max(nans, 0) == 0))
    scale = 1.0 / tl.where(empty, 1.0, tl.sum(masses, 0))
    shift = tl.where(empty, 0.0, top)
    for start in range(0, vocab_size, BLOCK):
        ids = start + lanes
        x = tl.load(source + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
        x = tl.minimum(tl.where(x != x, float("-inf"), x), _MAX_FLOAT32)
        p = tl.exp((x - shift) * inverse) * scale
        p = tl.where(empty, tl.where(ids == 0, 1.0, 0.0), p)
        tl.store(target + ids, p, mask=ids < vocab_size)


def softmax(logits: Tensor, temperature: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute probabilities at the temperatures of the rows, whatever the logits hold.

    NaN counts as -inf, +inf as the largest float32, and a row without any logit has all its mass on token 0.

    :param logits: [rows, V] float32, bfloat16 or float16, any row stride. Not modified.
    :param temperature: [rows] float32, positive, with a finite reciprocal; None: 1.
    :returns: [rows, V] float32, contiguous; and [rows] bool, False where the row held NaN or nothing above -inf.
    """
    rows, vocab_size = logits.shape
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    probs = torch.empty(rows, vocab_size, dtype=torch.float32, device=logits.device)
    valid = torch.empty(rows, dtype=torch.bool, device=logits.device)
    block, warps = configuration(rows, logits.element_size())
    _softmax[(rows,)](
        logits, probs, valid, temperature, logits.stride(0), vocab_size, BLOCK=block, num_warps=warps
    )
    return probs, valid


def configuration(rows: int, width: int) -> tuple[int, int]:
    """Return logits a step and warps a program, as measured on an H200.

    :param width: bytes a logit.
    """
    if rows < _LARGE_BATCH_ROWS:
        return 8192, 32
    return (4096, 16) if width == 4 else (8192, 16)
