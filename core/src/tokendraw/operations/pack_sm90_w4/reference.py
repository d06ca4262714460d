"""The layouts, byte by byte from their formulas, on a CPU: the slow reference of proofs and kit.

E experts have N rows of K columns, two columns a byte, the first in the low half. A row is 16 b + 8 m + r, a column of
bytes 32 p + 16 M + 4 d + i, with r in 0..7, d and i in 0..3, and m and M one bit each. In every layout the four bytes i
of a packed row are a word that two rows of natural bytes make, 16 b + r and 16 b + 8 + r, by moving their bits.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import torch
from torch import Tensor

from tokendraw.backends.description.weight_layouts import Format, Layout

_Runs: TypeAlias = tuple[tuple[tuple[int, int], int], ...]
"""((source, width), target) of every run of bits in a word."""
V1_FP4_BITS: Final[_Runs] = tuple(
    ((source + half, 4), target + half)
    for half in (0, 16)
    for source, target in ((0, 0), (8, 4), (4, 8), (12, 12))
)
V2_FP4_BITS: Final[_Runs] = (
    ((7, 1), 31), ((4, 3), 22), ((3, 1), 15), ((0, 3), 6),
    ((15, 1), 28), ((12, 3), 19), ((11, 1), 12), ((8, 3), 3),
    ((23, 1), 25), ((20, 3), 16), ((19, 1), 9), ((16, 3), 0),
    ((31, 1), 30), ((28, 1), 29), ((29, 2), 26), ((27, 1), 14), ((24, 1), 13), ((25, 2), 10),
)  # fmt: skip
INT4_BITS: Final[_Runs] = (((0, 32), 0),)
FP4_FP8_BITS: Final[_Runs] = (
    *(((bit, 3), bit) for bit in range(0, 32, 4)),
    *(
        ((source, 1), target)
        for source, target in zip(range(3, 32, 4), (7, 15, 23, 31, 3, 11, 19, 27), strict=True)
    ),
)
"""Only the signs move."""


def packed_weights(weights: Tensor, format: Format, layout: Layout) -> Tensor:
    """Pack weights [E, N, K / 2] uint8 on a CPU: a tensor of the same shape.

    :raises ValueError: there is no such format in this layout.
    """
    if format == "fp4_fp8" and layout == "v1":
        raise ValueError("'format' needs fp4 or int4 in the layout v1, found 'fp4_fp8'. Use the layout v2.")
    runs = {"fp4": V1_FP4_BITS if layout == "v1" else V2_FP4_BITS, "int4": INT4_BITS, "fp4_fp8": FP4_FP8_BITS}
    _, rows, columns = weights.shape
    b, m, r, p, M, d = _indices(rows // 16, 2, 8, columns // 32, 2, 4)  # noqa: N806 (the formula's letter)
    first = 32 * p + 16 * M + 8 * m
    if format == "fp4":  # byte i is of row 8 (i % 2), column 4 (i // 2) + d
        sources = [(8 * (i % 2), first + 4 * (i // 2) + d) for i in range(4)]
    else:  # byte i is of row 8 (i // 2), column 2 d + i % 2
        sources = [(8 * (i // 2), first + 2 * d + i % 2) for i in range(4)]
    natural = weights.to(torch.int64)
    zero = torch.zeros((), dtype=torch.int64, device="cpu")
    word = sum(
        (natural[:, 16 * b + row + r, column] << 8 * i for i, (row, column) in enumerate(sources)), zero
    )
    bits = ((word >> source & (1 << width) - 1) << target for (source, width), target in runs[format])
    moved = sum(bits, zero)
    out = torch.empty_like(weights)
    for i in range(4):
        out[:, 16 * b + 8 * m + r, 32 * p + 16 * M + 4 * d + i] = (moved >> 8 * i & 255).to(torch.uint8)
    return out


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


def _indices(*sizes: int) -> tuple[Tensor, ...]:
    """Make every combination of indices below ``sizes``."""
    return torch.meshgrid(*(torch.arange(size, device="cpu") for size in sizes), indexing="ij")
