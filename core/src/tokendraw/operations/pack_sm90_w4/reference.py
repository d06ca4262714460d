"""The layouts, byte by byte from their formulas, on a CPU: the slow reference of proofs and kit.

E experts have N rows of K columns, two columns a byte, the first in the low half. A row is 16 b + 8 h + r, a column of
bytes 32 p + 16 M + 8 m + 4 c + d, with r in 0..7, d in 0..3, and h, M, m, c one bit each.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from tokendraw.backends.description.weight_layouts import Format, Layout

V2_FP4_BITS: Final = (
    ((7, 1), 31), ((4, 3), 22), ((3, 1), 15), ((0, 3), 6),
    ((15, 1), 28), ((12, 3), 19), ((11, 1), 12), ((8, 3), 3),
    ((23, 1), 25), ((20, 3), 16), ((19, 1), 9), ((16, 3), 0),
    ((31, 1), 30), ((28, 1), 29), ((29, 2), 26), ((27, 1), 14), ((24, 1), 13), ((25, 2), 10),
)  # fmt: skip
"""((source, width), target) of every run of bits in a word of fp4."""
FP4_FP8_SIGNS: Final = {3: 7, 7: 15, 11: 23, 15: 31, 19: 3, 23: 11, 27: 19, 31: 27}
"""Source and target of the sign bits in a word of fp4_fp8; the other bits stay."""


def packed_weights(weights: Tensor, format: Format, layout: Layout) -> Tensor:
    """Pack weights [E, N, K / 2] uint8 on a CPU: a tensor of the same shape.

    :raises ValueError: there is no such format in this layout.
    """
    if format == "fp4":
        return _v1_fp4(weights) if layout == "v1" else _v2_fp4(weights)
    if format == "fp4_fp8" and layout == "v1":
        raise ValueError("'format' needs fp4 or int4 in the layout v1, found 'fp4_fp8'. Use the layout v2.")
    return _units_of_16_bits(weights, signs=FP4_FP8_SIGNS if format == "fp4_fp8" else {})


def packed_scales(scales: Tensor, layout: Layout) -> Tensor:
    """Pack scales [E, N, K / 32] uint8 on a CPU: [E, K / 128, 4 N] (v1) or [E, N / 64, K / 128, 16, 16] (v2)."""
    experts, rows, groups = scales.shape
    if layout == "v1":
        n, kb, g = _indices(rows, groups // 4, 4)
        out = scales.new_empty(experts, groups // 4, 4 * rows)
        out[:, kb, 4 * n + g] = scales[:, n, 4 * kb + g]
        return out
    rb, s, f, kb, g = _indices(rows // 64, 4, 16, groups // 4, 4)
    out = scales.new_empty(experts, rows // 64, groups // 4, 16, 16)
    out[:, rb, kb, f, 4 * s + g] = scales[:, 64 * rb + 16 * s + f, 4 * kb + g]
    return out


def _v1_fp4(weights: Tensor) -> Tensor:
    _, rows, columns = weights.shape
    b, m, r, p, M, d, c = _indices(rows // 16, 2, 8, columns // 32, 2, 4, 2)  # noqa: N806 (the formula's letter)
    column = 32 * p + 16 * M + 8 * m + 4 * c + d
    first, second = weights[:, 16 * b + r, column], weights[:, 16 * b + 8 + r, column]
    out = torch.empty_like(weights)
    row, byte_index = 16 * b + 8 * m + r, 32 * p + 16 * M + 4 * d + 2 * c
    out[:, row, byte_index] = first % 16 + second % 16 * 16
    out[:, row, byte_index + 1] = first // 16 + second // 16 * 16
    return out


def _v2_fp4(weights: Tensor) -> Tensor:
    _, rows, columns = weights.shape
    b, m, r, p, M, d = _indices(rows // 16, 2, 8, columns // 32, 2, 4)  # noqa: N806
    word = 0
    for byte_index, (h, c) in enumerate(((0, 0), (1, 0), (0, 1), (1, 1))):
        value = weights[:, 16 * b + 8 * h + r, 32 * p + 16 * M + 8 * m + 4 * c + d]
        word = word + value.to(torch.int64) * 256**byte_index
    moved = sum((word // 2**source % 2**width) * 2**target for (source, width), target in V2_FP4_BITS)
    out = torch.empty_like(weights)
    for byte_index in range(4):
        value = moved // 256**byte_index % 256
        out[:, 16 * b + 8 * m + r, 32 * p + 16 * M + 4 * d + byte_index] = value.to(torch.uint8)
    return out


def _units_of_16_bits(weights: Tensor, signs: dict[int, int]) -> Tensor:
    experts, rows, columns = weights.shape
    units = weights.to(torch.int64).view(experts, rows, columns // 2, 2)
    unit = units[..., 0] + 256 * units[..., 1]
    b, m, r, p, M, d = _indices(rows // 16, 2, 8, columns // 32, 2, 4)  # noqa: N806
    column = 16 * p + 8 * M + 4 * m + d
    word = unit[:, 16 * b + r, column] + unit[:, 16 * b + 8 + r, column] * 2**16
    stay = sum(word // 2**bit % 2 * 2**bit for bit in range(32) if bit not in signs)
    moved = stay + sum(word // 2**source % 2 * 2**target for source, target in signs.items())
    out = torch.empty_like(weights)
    for h in range(2):
        for byte_index in range(2):
            value = moved // 256 ** (2 * h + byte_index) % 256
            out[:, 16 * b + 8 * m + r, 2 * (16 * p + 8 * M + 2 * d + h) + byte_index] = value.to(torch.uint8)
    return out


def _indices(*sizes: int) -> tuple[Tensor, ...]:
    """Make every combination of indices below ``sizes``."""
    return torch.meshgrid(*(torch.arange(size) for size in sizes), indexing="ij")
