"""Packs weights and scales by FlashInfer's own functions.

Properties that their documentation leaves out:

* The kernels start on the current device, wherever the weights lie, and their start is not checked. So the device
  of the weights is made the current device first.
* They read two bytes at once in the formats int4 and fp4_fp8, so weights at an odd address are copied first.
* They count the weights before a row in 32 bits, so experts of 2^31 weights or more are refused.
* In layout v1 they look at neither the number of rows nor that of columns, and write outside of the packed tensor if
  they are no multiples of 16 and 64. The core has checked both before it calls.
"""

from __future__ import annotations

import importlib

import torch
from torch import Tensor

from tokendraw import PluginError
from tokendraw.sm90_w4 import Format, Layout, probe_flashinfer
from tokendraw_flashinfer.packing import SCALES, WEIGHTS, Packing

_ALIGNMENT = 2
"""Bytes that a kernel loads at once."""
_MAX_EXPERT_WEIGHTS = 2**31
"""Bound of N K, the weights of an expert."""


class FlashInferPacker:
    """FlashInfer's packing functions. Made by ``tokendraw.load("pack_sm90_w4", "flashinfer")``.

    :raises PluginError: the functions do not pack into the layout of their source.
    """

    def __init__(self) -> None:
        packing, probe = Packing.installed(), probe_flashinfer()
        if probe.layout is None:
            raise PluginError(probe.reason)
        if probe.layout != packing.layout:
            raise PluginError(
                f"needs the layout {packing.layout}, which the source of FlashInfer says, "
                f"found that its scale function packs into {probe.layout}; reinstall flashinfer-python"
            )
        self._layout, self._formats = probe.layout, packing.formats
        module = importlib.import_module("flashinfer.fused_moe")
        self._pack_weights, self._pack_scales = getattr(module, WEIGHTS), getattr(module, SCALES)

    @torch.no_grad()
    def pack_weights(self, weights: Tensor, *, format: Format, layout: Layout) -> Tensor:
        """Pack weights [E, N, K / 2] uint8; see :class:`tokendraw.plugin.Sm90W4PackerBackend`.

        :raises PluginError: the format or the layout is not advertised, or an expert is too large for the kernels.
        """
        self._check(layout, format)
        rows, bytes_per_row = weights.shape[1:]
        if 2 * rows * bytes_per_row >= _MAX_EXPERT_WEIGHTS:
            raise PluginError(f"needs fewer than 2^31 weights in an expert, found {2 * rows * bytes_per_row}")
        if weights.data_ptr() % _ALIGNMENT:
            weights = weights.clone()
        with torch.cuda.device(weights.get_device()):  # -1, on a CPU, changes nothing
            packed: Tensor = self._pack_weights(weights, format)
        return packed

    @torch.no_grad()
    def pack_scales(self, scales: Tensor, *, layout: Layout) -> Tensor:
        """Pack scales [E, N, K / 32] uint8; see :class:`tokendraw.plugin.Sm90W4PackerBackend`.

        :raises PluginError: the layout is not advertised.
        """
        self._check(layout)
        packed: Tensor = self._pack_scales(scales)
        return packed

    def _check(self, layout: Layout, format: Format | None = None) -> None:
        if layout != self._layout or format not in (None, *self._formats):
            requested = layout if format is None else f"{format} in {layout}"
            raise PluginError(f"needs {', '.join(self._formats)} in {self._layout}, found {requested}")
