"""The object that ``tokendraw.load("pack_sm90_w4")`` returns."""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import Tensor

from tokendraw._torch.untraced import untraced
from tokendraw.backends.description.weight_layouts import Format, Layout
from tokendraw.calls.call import Call
from tokendraw.calls.provider import Provider
from tokendraw.operations.pack_sm90_w4.calls import (
    OMITTED,
    PackScales,
    PackWeights,
    UnpackScales,
    UnpackWeights,
)

_LayoutName: TypeAlias = Layout | Literal["upstream"]


class Sm90W4Packer(Provider):
    """Packs 4-bit weights and their scales for FlashInfer's SM90 mixed-input GEMM: see docs/sm90-w4.md.

    Each method returns a new tensor. ``layout`` is ``v1``, ``v2``, or ``upstream`` for that of the installed
    FlashInfer; neither it nor ``format`` has a default.
    """

    @untraced
    def pack_weights(
        self, weights: Tensor, *, format: Format = OMITTED, layout: _LayoutName = OMITTED
    ) -> Tensor:
        """Pack weights [E, N, K / 2] uint8 as a checkpoint has them; the shape stays."""
        return self._repack(PackWeights(weights, format=format, layout=layout))

    @untraced
    def unpack_weights(
        self, packed: Tensor, *, format: Format = OMITTED, layout: _LayoutName = OMITTED
    ) -> Tensor:
        """Unpack weights [E, N, K / 2] uint8; the shape stays."""
        return self._repack(UnpackWeights(packed, format=format, layout=layout))

    @untraced
    def pack_scales(self, scales: Tensor, *, layout: _LayoutName = OMITTED) -> Tensor:
        """Pack scales [E, N, K / 32] uint8: [E, K / 128, 4 N] (v1) or [E, N / 64, K / 128, 16, 16] (v2)."""
        return self._repack(PackScales(scales, layout=layout))

    @untraced
    def unpack_scales(self, packed: Tensor, *, layout: _LayoutName = OMITTED) -> Tensor:
        """Unpack scales: [E, N, K / 32] uint8."""
        return self._repack(UnpackScales(packed, layout=layout))

    def _repack(self, call: Call) -> Tensor:
        output: Tensor = self._dispatcher.dispatch(call)
        return output
