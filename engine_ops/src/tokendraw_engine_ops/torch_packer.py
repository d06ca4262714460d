"""Packs and unpacks weights by torch's own functions, piece by piece, on any device; on a GPU by a fused kernel.

A piece of rows and its copies stay below an expert, so that no device needs room for all of them twice. A CPU computes
with one thread: threads that wait for each other dozens of times a piece are slower on a busy machine.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from tokendraw.plugin import one_thread
from tokendraw_engine_ops import fused_packer
from tokendraw_engine_ops.words import ALL_BITS, WORDS, Shifts, Words

_PIECE_BYTES: Final = {"cpu": 1 << 18}
"""Bytes of a piece, by type of device: few enough for the cache of a core."""
_DEVICE_PIECE_BYTES: Final = 1 << 24
"""Bytes of a piece where a launch takes microseconds."""


class TorchPacker:
    """Packs and unpacks every format and layout on any device."""

    def __init__(self, device: torch.device) -> None:
        self._is_fused = _is_fused(device)

    def pack_weights(self, weights: Tensor, *, format: str, layout: str) -> Tensor:
        return self._repack(weights, WORDS[format, layout], back=False)

    def unpack_weights(self, packed: Tensor, *, format: str, layout: str) -> Tensor:
        return self._repack(packed, WORDS[format, layout], back=True)

    def _repack(self, weights: Tensor, words: Words, *, back: bool) -> Tensor:
        if not weights.numel():
            return torch.empty_like(weights)
        if self._is_fused and fused_packer.is_aligned(weights):
            return fused_packer.repack(weights, words, back=back)
        return repack(weights, words, back=back)

    def pack_scales(self, scales: Tensor, *, layout: str) -> Tensor:
        experts, rows, groups = scales.shape
        if layout == "v1":
            natural = scales.view(experts, rows, groups // 4, 4).transpose(1, 2)
            return _dense(natural).view(experts, groups // 4, 4 * rows)
        natural = scales.view(experts, rows // 64, 4, 16, groups // 4, 4)
        return _dense(natural.permute(0, 1, 4, 3, 2, 5)).view(experts, rows // 64, groups // 4, 16, 16)

    def unpack_scales(self, packed: Tensor, *, layout: str) -> Tensor:
        if layout == "v1":
            experts, blocks, values = packed.shape
            rows = packed.view(experts, blocks, values // 4, 4).transpose(1, 2)
            return _dense(rows).view(experts, values // 4, 4 * blocks)
        experts, row_blocks, blocks, *_ = packed.shape
        rows = packed.view(experts, row_blocks, blocks, 16, 4, 4).permute(0, 1, 4, 3, 2, 5)
        return _dense(rows).view(experts, 64 * row_blocks, 4 * blocks)


def _dense(tensor: Tensor) -> Tensor:
    """Copy always: of few blocks the natural order is the packed one."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _is_fused(device: torch.device) -> bool:
    """Whether torch compiles fused kernels for the device; found by packing a sample."""
    if device.type != "cuda":  # ROCm's are called so too
        return False
    words, weights = WORDS["int4", "v1"], torch.arange(16 * 32, device=device).to(torch.uint8).view(1, 16, 32)
    try:
        fused = fused_packer.repack(weights, words, back=False)
    except (RuntimeError, ImportError, AttributeError):
        return False  # no jiterator, no NVRTC, or none for such a device
    return torch.equal(fused, repack(weights, words, back=False))


def repack(weights: Tensor, words: Words, *, back: bool) -> Tensor:
    """Pack or unpack weights [E, N, K / 2] uint8, dense: a new tensor of the same shape."""
    result, moves = torch.empty_like(weights), words.moves(back=back)
    groups, cells = weights.shape[0] * weights.shape[1] // 16, 8 * (weights.shape[2] // 16)
    natural, packed = (result, weights) if back else (weights, result)
    # By group of 16 rows, ``h``, row and 16 bytes of columns, half of these, and byte.
    rows = natural.view(groups, 2, cells, 2, 8)
    # By group of 16 rows, half, row and 16 bytes of columns, and byte of four words.
    target = packed.view(groups, 2, cells, 16)
    limit = min(_PIECE_BYTES.get(weights.device.type, _DEVICE_PIECE_BYTES), weights[0].numel() // 4)
    step = max(1, limit // (32 * cells))
    with one_thread():
        for start in range(0, groups, step):
            piece, source = target[start : start + step], rows[start : start + step]
            if back:
                moved = _move_bits(piece.clone(), moves)
                for position, (h, byte) in enumerate(words.byte_order):
                    source[:, h, :, :, byte] = moved[..., position].transpose(1, 2)
            else:
                moving = torch.empty_like(piece)
                for position, (h, byte) in enumerate(words.byte_order):
                    moving[..., position] = source[:, h, :, :, byte].transpose(1, 2)
                piece.copy_(_move_bits(moving, moves))
    return result


def _move_bits(source_words: Tensor, shifts: Shifts) -> Tensor:
    """Move the bits of words [..., 16] uint8."""
    if shifts == ((0, ALL_BITS),):
        return source_words
    words = source_words.view(torch.int32)
    shifted, result = torch.empty_like(words), torch.zeros_like(words)
    for shift, mask in shifts:
        move = torch.bitwise_left_shift if shift > 0 else torch.bitwise_right_shift
        move(words, abs(shift), out=shifted)
        result |= shifted.bitwise_and_(mask - (mask >> 31 << 32))  # the mask as int32 has it
    return result.view(torch.uint8)
