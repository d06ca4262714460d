"""Plans pages and packs weights by torch's own functions, on any device, and packs them by FlashInfer's.

A CPU computes with one thread: on a busy machine a second one costs more than it gains a plan, and threads that wait
for each other dozens of times a piece of weights are slower.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
from typing import Final

import torch
from torch import Tensor

from tokendraw import PluginError
from tokendraw.plugin import one_thread
from tokendraw_engine_ops.operations import Format, Layout
from tokendraw_engine_ops.pack import RUNS, scales_shape
from tokendraw_engine_ops.paged_kv import LARGEST, PagedKVPlan
from tokendraw_engine_ops.sm90_w4 import MODULE, SCALES, WEIGHTS, probe_flashinfer

_CPU_PIECE_BYTES: Final = 1 << 18  # few enough for the cache of a core
_GPU_PIECE_BYTES: Final = 1 << 24  # enough for launches that take microseconds


class TorchPlanner:
    """Plans the pages of a batch by about a dozen operations, without a wait for the device."""

    @torch.inference_mode()  # in which buffers may be written to that were made in it
    def plan(
        self,
        seq_lens: Tensor,
        block_table: Tensor,
        page_size: int,
        page_indices: bool,
        pad: int,
        out: PagedKVPlan,
    ) -> PagedKVPlan:
        requests, columns = block_table.shape
        with one_thread() if seq_lens.is_cpu else contextlib.nullcontext():
            lengths = seq_lens.clamp(0, min(columns * page_size, LARGEST))
            before_last = (lengths - 1).div_(page_size, rounding_mode="floor")  # pages; -1 without a token
            out.page_indptr[:1].zero_()
            ends = torch.cumsum(before_last + 1, 0, dtype=torch.int32, out=out.page_indptr[1:])
            torch.sub(lengths, before_last.clamp_(min=0), alpha=page_size, out=out.last_page_len)
            if out.page_indices is not None and block_table.numel():
                slots = torch.arange(requests * columns, dtype=torch.int32, device=ends.device)
                # A slot behind the last page reads some page of the last request, and is padded afterwards.
                request = torch.searchsorted(ends, slots, right=True).clamp_(max=requests - 1)
                column = (slots - out.page_indptr.index_select(0, request)).clamp_(max=columns - 1)
                torch.take(block_table, torch.add(column, request, alpha=columns), out=out.page_indices)
                out.page_indices.masked_fill_(slots >= ends[-1:], pad)
        return out


class TorchPacker:
    """Packs and unpacks every format and layout, piece by piece.

    A piece of rows and its copies stay below two experts, so that no device needs room for all of them twice.
    """

    def pack_weights(self, weights: Tensor, *, format: Format, layout: Layout) -> Tensor:
        return _repack(weights, format, layout, back=False)

    def unpack_weights(self, packed: Tensor, *, format: Format, layout: Layout) -> Tensor:
        return _repack(packed, format, layout, back=True)

    def pack_scales(self, scales: Tensor, *, layout: Layout) -> Tensor:
        packed = scales.new_empty(scales_shape(scales.shape, layout, back=False))
        blocks = _blocks(scales, layout)
        packed.view(blocks.shape).copy_(blocks)
        return packed

    def unpack_scales(self, packed: Tensor, *, layout: Layout) -> Tensor:
        scales = packed.new_empty(scales_shape(packed.shape, layout, back=True))
        blocks = _blocks(scales, layout)
        blocks.copy_(packed.view(blocks.shape))
        return scales


def _blocks(scales: Tensor, layout: Layout) -> Tensor:
    """View scales in natural order as the packed ones stand."""
    experts, rows, groups = scales.shape
    if layout == "v1":
        return scales.view(experts, rows, groups // 4, 4).transpose(1, 2)
    return scales.view(experts, rows // 64, 4, 16, groups // 4, 4).permute(0, 1, 4, 3, 2, 5)


def _repack(weights: Tensor, format: Format, layout: Layout, *, back: bool) -> Tensor:
    result = torch.empty_like(weights)
    if not weights.numel():
        return result
    experts, rows, columns = weights.shape
    groups, halves = experts * rows // 16, (2, 4, 1) if format == "fp4" else (1, 4, 2)
    natural, packed = (result, weights) if back else (weights, result)
    in_rows = packed.view(groups, 16 * columns)
    # By group of 16 rows, half of the rows, row, 16 bytes of columns, half of these, and the bytes of a half: units
    # that stand four apart make a word. Then in packed order, four words of a half: d, unit, half of the rows, byte.
    in_words = natural.view(groups, 2, 8, columns // 16, 2, *halves).permute(0, 4, 2, 3, 6, 5, 1, 7)
    limit = min(_CPU_PIECE_BYTES if weights.is_cpu else _GPU_PIECE_BYTES, weights[0].numel() // 2)
    step = max(1, limit // (16 * columns))
    with one_thread():
        for own, piece in zip(torch.split(in_words, step), torch.split(in_rows, step), strict=True):
            if back:
                _copy(_move_bits(piece.clone(), format, layout, back=True).view(own.shape), own)
            else:
                words = torch.empty_like(piece)
                _copy(own, words.view(own.shape))
                piece.copy_(_move_bits(words, format, layout, back=False))
    return result


def _copy(source: Tensor, target: Tensor) -> None:
    """Copy in one launch; on a CPU byte by byte of four words, since its loops are fast where they are long."""
    if not target.is_cpu:
        target.copy_(source)
        return
    for d, unit, half, byte in itertools.product(*map(range, target.shape[4:])):
        target[..., d, unit, half, byte].copy_(source[..., d, unit, half, byte])


def _move_bits(source_words: Tensor, format: Format, layout: Layout, *, back: bool) -> Tensor:
    """Move the bits of words, uint8, by :data:`RUNS`: those that go equally far in one shift."""
    masks = {0: 2**32 - 1}
    for source, width, target in (run[::-1] if back else run for run in RUNS[format, layout]):
        bits = (2**width - 1) << target
        masks[0] &= ~bits
        masks[target - source] = masks.get(target - source, 0) | bits
    if len(masks) == 1:
        return source_words
    words = source_words.view(torch.int32)
    shifted, result = torch.empty_like(words), torch.zeros_like(words)
    for shift, mask in masks.items():
        move = torch.bitwise_left_shift if shift > 0 else torch.bitwise_right_shift
        move(words, abs(shift), out=shifted)
        result |= shifted.bitwise_and_(mask - (mask >> 31 << 32))  # the mask as int32 has it
    return result.view(torch.uint8)


class FlashInferPacker:
    """FlashInfer's packing functions, with what their documentation leaves out.

    * The kernels start on the current device, wherever the weights lie, and their start is not checked. So the device
      of the weights is made the current device first.
    * They read two bytes at once in the formats int4 and fp4_fp8, so weights at an odd address are copied first.
    * They count the weights before a row in 32 bits, so experts of 2^31 weights or more are refused.
    * In layout v1 they look at neither the number of rows nor that of columns, and write outside of the packed tensor
      if they are no multiples of 16 and 64. The core has checked both before it calls.

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
        if 2 * rows * bytes_per_row >= 2**31:
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
