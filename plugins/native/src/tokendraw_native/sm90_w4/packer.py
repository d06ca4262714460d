"""The native packer: weights by a fused kernel where torch compiles it, else by torch's functions."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw_native.sm90_w4 import eager, fused
from tokendraw_native.sm90_w4.words import WORDS


class NativePacker:
    """Packs and unpacks every format and layout on any device. See ``tokendraw.plugin.Sm90W4PackerBackend``."""

    def __init__(self, device: torch.device) -> None:
        self._is_fused = fused.is_supported(device)

    def pack_weights(self, weights: Tensor, *, format: str, layout: str) -> Tensor:
        """Pack weights [E, N, K / 2] uint8: a new tensor of the same shape."""
        words = WORDS[format, layout]
        if not weights.numel():
            return torch.empty_like(weights)
        return fused.pack(weights, words) if self._can_fuse(weights) else eager.pack(weights, words)

    def unpack_weights(self, packed: Tensor, *, format: str, layout: str) -> Tensor:
        """Unpack weights [E, N, K / 2] uint8: a new tensor of the same shape."""
        words = WORDS[format, layout]
        if not packed.numel():
            return torch.empty_like(packed)
        return fused.unpack(packed, words) if self._can_fuse(packed) else eager.unpack(packed, words)

    def pack_scales(self, scales: Tensor, *, layout: str) -> Tensor:
        """Pack scales [E, N, K / 32] uint8: [E, K / 128, 4 N] (v1) or [E, N / 64, K / 128, 16, 16] (v2)."""
        experts, rows, groups = scales.shape
        if layout == "v1":
            natural = scales.view(experts, rows, groups // 4, 4).transpose(1, 2)
            return natural.reshape(experts, groups // 4, 4 * rows)
        natural = scales.view(experts, rows // 64, 4, 16, groups // 4, 4)
        return natural.permute(0, 1, 4, 3, 2, 5).reshape(experts, rows // 64, groups // 4, 16, 16)

    def unpack_scales(self, packed: Tensor, *, layout: str) -> Tensor:
        """Unpack scales: [E, N, K / 32] uint8."""
        if layout == "v1":
            experts, blocks, values = packed.shape
            rows = packed.view(experts, blocks, values // 4, 4).transpose(1, 2)
            return rows.reshape(experts, values // 4, 4 * blocks)
        experts, row_blocks, blocks, *_ = packed.shape
        rows = packed.view(experts, row_blocks, blocks, 16, 4, 4).permute(0, 1, 4, 3, 2, 5)
        return rows.reshape(experts, 64 * row_blocks, 4 * blocks)

    def _can_fuse(self, weights: Tensor) -> bool:
        return self._is_fused and fused.is_aligned(weights)
