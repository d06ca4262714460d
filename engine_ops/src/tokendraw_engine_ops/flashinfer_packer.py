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
from tokendraw_engine_ops.operations import Format, Layout
from tokendraw_engine_ops.sm90_w4 import MODULE, SCALES, WEIGHTS, probe_flashinfer

_MAX_EXPERT_WEIGHTS = 2**31


class FlashInferPacker:
    """FlashInfer's packing functions.

    :raises PluginError: the functions do not pack into the layout ``promised`` by their source or version.
    """

    def __init__(self, promised: Layout | None) -> None:
        probe = probe_flashinfer()
        if probe.layout is None:
            raise PluginError(probe.reason)
        if probe.layout != promised:
            raise PluginError(
                f"needs the layout {promised}, which the source or version of FlashInfer says, "
                f"found that its scale function packs into {probe.layout}; reinstall flashinfer-python"
            )
        module = importlib.import_module(MODULE)
        self._pack_weights, self._pack_scales = getattr(module, WEIGHTS), getattr(module, SCALES)

    @torch.no_grad()
    def pack_weights(self, weights: Tensor, *, format: Format, layout: Layout) -> Tensor:
        rows, bytes_per_row = weights.shape[1:]
        if 2 * rows * bytes_per_row >= _MAX_EXPERT_WEIGHTS:
            raise PluginError(f"needs fewer than 2^31 weights in an expert, found {2 * rows * bytes_per_row}")
        if weights.data_ptr() % 2:
            weights = weights.clone()
        with torch.cuda.device(weights.get_device()):  # -1, on a CPU, changes nothing
            packed: Tensor = self._pack_weights(weights, format)
        return packed

    @torch.no_grad()
    def pack_scales(self, scales: Tensor, *, layout: Layout) -> Tensor:
        packed: Tensor = self._pack_scales(scales)
        return packed
