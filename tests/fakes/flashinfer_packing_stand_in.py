"""FlashInfer's functions that pack weights for SM90, on a CPU: both layouts, and a release that has neither."""

from typing import Any

import torch
from torch import Tensor

CALLS: list[dict[str, Any]] = []
"""Arguments of the calls that packed weights, since the list was last cleared."""

_V1 = """
import flashinfer_packing_stand_in as stand_in

def interleave_moe_scales_for_sm90_mixed_gemm(scales, group_size=32):
    if scales.dim() != 3:
        raise ValueError("scales must be 3D")
    experts, rows, groups = scales.shape
    packed = scales.reshape(experts, rows, groups // 4, 4).permute(0, 2, 1, 3).contiguous()
    return packed.reshape(experts, groups // 4, rows * 4)


def interleave_moe_weights_for_sm90_mixed_gemm(
    weight,
    quant_type="fp4",
):
    numbers = {"fp4": 1, "int4": 0}
    if quant_type not in numbers:
        raise ValueError(f"quant_type must be one of {list(numbers)}")
    return stand_in.pack(weight, numbers[quant_type], "v1")

def other(): pass
"""
_V2 = (
    _V1.replace('{"fp4": 1, ', '{"fp4": 1, "fp4_fp8": 2, ')
    .replace('"v1"', '"v2"')
    .replace(
        "    packed = scales.reshape(experts, rows, groups // 4, 4).permute(0, 2, 1, 3).contiguous()\n"
        "    return packed.reshape(experts, groups // 4, rows * 4)",
        "    folded = scales.reshape(experts, rows // 64, 4, 16, groups // 4, 4).permute(0, 1, 4, 3, 2, 5)\n"
        "    return folded.contiguous().reshape(experts, rows // 64, groups // 4, 16, 16)",
    )
)
_EXPORTS = """
from .{module} import (
    interleave_moe_scales_for_sm90_mixed_gemm,
    interleave_moe_weights_for_sm90_mixed_gemm,
)
"""
MODULES = {
    "v1": {
        "flashinfer.fused_moe": _EXPORTS.format(module="core"),
        "flashinfer.fused_moe.core": _V1,
    },
    "v2": {
        "flashinfer.fused_moe": _EXPORTS.format(module="prepare"),
        "flashinfer.fused_moe.core": "from .prepare import interleave_moe_scales_for_sm90_mixed_gemm\n",
        "flashinfer.fused_moe.prepare": _V2,
    },
    None: {
        "flashinfer.fused_moe": "from .core import cutlass_fused_moe\n",
        "flashinfer.fused_moe.core": "def cutlass_fused_moe(input):\n    raise AssertionError\n",
    },
}
"""Modules by layout, as ``fake_dist`` takes them beside ``flashinfer`` itself."""

_FP4_BITS = (
    *(
        (7, 1, 31),
        (4, 3, 22),
        (3, 1, 15),
        (0, 3, 6),
        (15, 1, 28),
        (12, 3, 19),
        (11, 1, 12),
        (8, 3, 3),
        (23, 1, 25),
    ),
    *(
        (20, 3, 16),
        (19, 1, 9),
        (16, 3, 0),
        (31, 1, 30),
        (28, 1, 29),
        (29, 2, 26),
        (27, 1, 14),
        (24, 1, 13),
        (25, 2, 10),
    ),
)
_SIGNS = {3: 7, 7: 15, 11: 23, 15: 31, 19: 3, 23: 11, 27: 19, 31: 27}
_FP8_BITS = [(bit, 1, _SIGNS.get(bit, bit)) for bit in range(32)]


def pack(weight: Tensor, quant_type: int, layout: str) -> Tensor:
    """As the kernels, bit by bit; they count 16 rows and 64 weights of a row as one tile."""
    CALLS.append({"weight": weight, "quant_type": quant_type, "layout": layout})
    assert weight.is_contiguous()
    assert weight.data_ptr() % 2 == 0, "the kernels load two bytes at once"
    experts, rows, columns = weight.shape
    tiles = weight.view(experts, rows // 16, 2, 8, columns // 32, 2, 2, 2, 4).long()  # h r p M m c d
    lower, upper = tiles[:, :, 0], tiles[:, :, 1]
    if quant_type == 1 and layout == "v1":
        low = lower & 15 | (upper & 15) << 4
        high = lower >> 4 | upper & 0xF0
        packed = torch.stack([low, high], -1).permute(0, 1, 5, 2, 3, 4, 7, 6, 8)
    elif quant_type == 1:
        words = [lower[..., 0, :], upper[..., 0, :], lower[..., 1, :], upper[..., 1, :]]
        packed = _bytes(_moved(_joined(words), _FP4_BITS)).permute(0, 1, 5, 2, 3, 4, 6, 7)
    else:
        # A unit is two bytes, so what counted 2 x 4 bytes (c, d) counts 4 units of them.
        halves = tiles.view(experts, rows // 16, 2, 8, columns // 32, 2, 2, 4, 2)
        words = _joined([halves[:, :, h, ..., byte] for h in (0, 1) for byte in (0, 1)])
        packed = _bytes(_moved(words, _FP8_BITS) if quant_type == 2 else words).permute(
            0, 1, 5, 2, 3, 4, 6, 7
        )
    return packed.reshape(weight.shape).to(torch.uint8)


def _joined(four: list[Tensor]) -> Tensor:
    return sum(byte << 8 * place for place, byte in enumerate(four))


def _moved(words: Tensor, bits: Any) -> Tensor:
    return sum((words >> source & (1 << width) - 1) << target for source, width, target in bits)


def _bytes(words: Tensor) -> Tensor:
    return torch.stack([words >> shift & 255 for shift in (0, 8, 16, 24)], -1)
