"""Packed weights: the description of the four methods of ``tokendraw.load("pack_sm90_w4")``, and their reference.

E experts have N rows of K columns, two columns a byte, the first in the low half.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import Tensor

from tokendraw import InvalidInputError, InvalidParameterError
from tokendraw.plugin import check_device, check_dtype, check_plain
from tokendraw_engine_ops import sm90_w4
from tokendraw_engine_ops.operations import FORMATS, PACK, Format, Layout
from tokendraw_engine_ops.tensor_function import TensorFunction, tensor_operation

_Layout: TypeAlias = Layout | Literal["upstream"]
ROWS: Final[dict[Layout, int]] = {"v1": 16, "v2": 64}
"""The rows N of weights and scales are a multiple of this."""
COLUMNS: Final[dict[Layout, int]] = {"v1": 64, "v2": 128}
"""The columns K of weights are a multiple of this; those of scales are one of 128 in either layout."""
RUNS: Final[dict[tuple[str, str], tuple[tuple[int, int, int], ...]]] = {
    ("fp4", "v1"): ((4, 4, 8), (8, 4, 4), (20, 4, 24), (24, 4, 20)),
    ("fp4", "v2"): (
        (7, 1, 31), (4, 3, 22), (3, 1, 15), (0, 3, 6), (15, 1, 28), (12, 3, 19), (11, 1, 12), (8, 3, 3), (23, 1, 25),
        (20, 3, 16), (19, 1, 9), (16, 3, 0), (31, 1, 30), (28, 1, 29), (29, 2, 26), (27, 1, 14), (24, 1, 13),
        (25, 2, 10),
    ),
    ("int4", "v1"): (),
    ("int4", "v2"): (),
    ("fp4_fp8", "v2"): (
        (3, 1, 7), (7, 1, 15), (11, 1, 23), (15, 1, 31), (19, 1, 3), (23, 1, 11), (27, 1, 19), (31, 1, 27),
    ),
}  # fmt: skip
"""By format and layout (source, width, target): bits of a packed word of 32 that move together; all others stay.

Rows are paired 8 apart, in groups of 16: rows 0 to 7 of a group are ``h = 0``, the others ``h = 1``. Columns come in 16
bytes, two halves of 8. A half of both rows, 16 bytes in all, becomes 16 consecutive bytes of one packed row, 4 words.
Word ``d`` has, lowest bits first,

    fp4       byte d of h = 0, byte d of h = 1, byte 4 + d of h = 0, byte 4 + d of h = 1
    others    16-bit unit d of h = 0, 16-bit unit d of h = 1

and then its bits move. So packing is a permutation of the bits of 16 x 16 bytes, and unpacking the reverse one.
"""


def _pack_weights(weights: Tensor, *, format: Format, layout: _Layout) -> dict[str, Any]:
    """Pack weights [E, N, K / 2] uint8 as a checkpoint has them; the shape stays. See engine_ops/sm90-w4.md.

    :param layout: ``v1``, ``v2``, or ``upstream`` for that of the installed FlashInfer.
    """
    return locals()


def _unpack_weights(packed: Tensor, *, format: Format, layout: _Layout) -> dict[str, Any]:
    """Unpack weights [E, N, K / 2] uint8; the shape stays."""
    return locals()


def _pack_scales(scales: Tensor, *, layout: _Layout) -> dict[str, Any]:
    """Pack scales [E, N, K / 32] uint8: [E, K / 128, 4 N] (v1) or [E, N / 64, K / 128, 16, 16] (v2)."""
    return locals()


def _unpack_scales(packed: Tensor, *, layout: _Layout) -> dict[str, Any]:
    """Unpack scales: [E, N, K / 32] uint8."""
    return locals()


def scales_shape(shape: tuple[int, ...], layout: Layout, *, back: bool) -> tuple[int, ...]:
    """Return the shape of packed scales for that of natural ones, or back."""
    experts, rows, groups, *_ = shape
    if layout == "v1":  # the same either way
        return experts, groups // 4, 4 * rows
    return (experts, 64 * rows, 4 * groups) if back else (experts, rows // 64, groups // 4, 16, 16)


def _check(
    method: str, device: torch.device, *, layout: Any, format: Any = "int4", **given: Any
) -> dict[str, Any]:
    """Refuse a layout, a format or a tensor; return the layout by its own name."""
    if layout == "upstream":
        probe = sm90_w4.probe_flashinfer()
        if probe.layout is None:
            raise InvalidParameterError(
                f"'layout' {probe.reason}; 'upstream' is what that packs into. Pass v1 or v2, as your GEMM reads."
            )
        layout = probe.layout
    if layout not in ("v1", "v2"):
        raise InvalidParameterError(
            f"'layout' needs v1 or v2, found {layout!r}. Pass one of these, or upstream for that of the installed "
            "FlashInfer."
        )
    if format not in FORMATS["v2"]:
        raise InvalidParameterError(
            f"'format' needs fp4, int4 or fp4_fp8, found {format!r}. Pass one of these."
        )
    if format not in FORMATS[layout]:
        raise InvalidParameterError(
            f"'format' needs fp4 or int4 in the layout {layout}, found {format!r}. Use the layout v2."
        )
    (argument, tensor) = next(iter(given.items()))
    rows = ("N, dimension 1,", 1, 1, ROWS[layout])
    shape, multiples = "[E, N, K / 2]", [rows, ("K, twice dimension 2,", 2, 2, COLUMNS[layout])]
    if method == "pack_scales":
        shape, multiples = "[E, N, K / 32]", [rows, ("K, 32 times dimension 2,", 2, 32, 128)]
    elif method == "unpack_scales" and layout == "v1":
        shape, multiples = "[E, K / 128, 4 N]", [("4 N, dimension 2,", 2, 1, 4 * ROWS["v1"])]
    elif method == "unpack_scales":
        shape, multiples = "[E, N / 64, K / 128, 16, 16]", []
    check_plain(argument, tensor, f"Pass a tensor {shape} of dtype torch.uint8.")
    check_dtype(argument, tensor, torch.uint8, "Pass its bytes, as .view(torch.uint8).")
    check_device(argument, tensor, device, "packer")
    dimensions = shape.count(",") + 1
    if tensor.dim() != dimensions or (dimensions == 5 and tensor.shape[3:] != (16, 16)):
        raise InvalidInputError(
            f"'{argument}' needs shape {shape} for the layout {layout}, found {list(tensor.shape)}. "
            f"Pass {dimensions} dimensions."
        )
    for name, dimension, count, divisor in multiples:
        size = count * tensor.shape[dimension]
        if size % divisor:
            raise InvalidInputError(
                f"'{argument}' needs {name} divisible by {divisor} for the layout {layout}, found {size}. "
                f"Pad it to {size + -size % divisor}."
            )
    if not tensor.is_contiguous():
        raise InvalidInputError(
            f"'{argument}' needs to be contiguous, found strides {list(tensor.stride())} of shape "
            f"{list(tensor.shape)}. Pass {argument}.contiguous()."
        )
    return {"layout": layout}


def repacked_weights(weights: Tensor, format: Format, layout: Layout, *, back: bool = False) -> Tensor:
    """Pack weights on a CPU, or unpack them, byte by byte, as :data:`RUNS` says."""
    _, rows, columns = weights.shape
    sizes = (rows // 16, 2, 8, columns // 32, 2, 4)
    b, m, r, p, M, d = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")  # noqa: N806 (the formula's letter)
    first = 32 * p + 16 * M + 8 * m
    if format == "fp4":  # byte i is of row 8 (i % 2), column 4 (i // 2) + d
        natural = [(16 * b + 8 * (i % 2) + r, first + 4 * (i // 2) + d) for i in range(4)]
    else:  # byte i is of row 8 (i // 2), column 2 d + i % 2
        natural = [(16 * b + 8 * (i // 2) + r, first + 2 * d + i % 2) for i in range(4)]
    packed = [(16 * b + 8 * m + r, 32 * p + 16 * M + 4 * d + i) for i in range(4)]
    read, write = (packed, natural) if back else (natural, packed)
    word = torch.zeros((), dtype=torch.int64)
    for i, (row, column) in enumerate(read):
        word = word | weights[:, row, column].to(torch.int64) << 8 * i
    runs = [run[::-1] if back else run for run in RUNS[format, layout]]
    moved = word & ~sum((1 << width) - 1 << source for source, width, _ in runs)
    for source, width, target in runs:
        moved = moved | (word >> source & (1 << width) - 1) << target
    out = torch.empty_like(weights)
    for i, (row, column) in enumerate(write):
        out[:, row, column] = (moved >> 8 * i & 255).to(torch.uint8)
    return out


def repacked_scales(scales: Tensor, layout: Layout, *, back: bool = False) -> Tensor:
    """Pack scales on a CPU, or unpack them, likewise."""
    shape = scales_shape(scales.shape, layout, back=True) if back else tuple(scales.shape)
    n, group = torch.meshgrid(*map(torch.arange, shape[1:]), indexing="ij")
    kb, g = group // 4, group % 4
    at = (kb, 4 * n + g) if layout == "v1" else (n // 64, kb, n % 16, 4 * (n // 16 % 4) + g)
    if back:
        return scales[:, *at]
    packed = scales.new_empty(scales_shape(shape, layout, back=False))
    packed[:, *at] = scales
    return packed


def _describe(method: str, signature: Callable[..., dict[str, Any]]) -> TensorFunction:
    """Describe a method; a size is (E, N, K)."""
    is_weights, back = method.endswith("weights"), method.startswith("unpack")
    argument = "packed" if back else method.removeprefix("pack_")

    def result(layout: Layout, **given: Any) -> tuple[tuple[int, ...], torch.dtype]:
        shape = tuple(given[argument].shape)
        return shape if is_weights else scales_shape(shape, layout, back=back), torch.uint8

    def reference(layout: Layout, format: Any = None, **given: Any) -> Tensor:
        if is_weights:
            return repacked_weights(given[argument], format, layout, back=back)
        return repacked_scales(given[argument], layout, back=back)

    def make(generator: torch.Generator, size: tuple[int, ...], **way: Any) -> dict[str, Any]:
        shape = (*size[:2], size[2] // (2 if is_weights else 32))
        if back and not is_weights:
            shape = scales_shape(shape, way["layout"], back=False)
        return {argument: torch.randint(256, shape, generator=generator, dtype=torch.uint8), **way}

    def odd(generator: torch.Generator, **way: Any) -> list[dict[str, Any]]:
        tensor = make(generator, (1, 64, 128), **way)[argument]
        memory = torch.cat((tensor.view(-1)[:3], tensor.view(-1)))  # with the tensor at an odd address
        return [{argument: memory[3:].view(tensor.shape), **way}]

    ways = [{"format": format, "layout": layout} for layout, formats in FORMATS.items() for format in formats]
    return TensorFunction(
        signature=signature,
        check=partial(_check, method),
        result=result,
        reference=reference,
        make=make,
        edges=odd,
        ways=tuple(ways if is_weights else ({"layout": layout} for layout in FORMATS)),
        sizes=((1, 64, 128), (0, 64, 128), (2, 192, 640)),
        timed={"quick": ((2, 256, 256),), "design": ((32, 5760, 2944),)},
        may_fall_back=False,  # the copy of all experts at once takes too much memory
    )


FUNCTIONS = {
    "pack_weights": _describe("pack_weights", _pack_weights),
    "pack_scales": _describe("pack_scales", _pack_scales),
    "unpack_weights": _describe("unpack_weights", _unpack_weights),
    "unpack_scales": _describe("unpack_scales", _unpack_scales),
}
CALLS, PROVIDER, prove = tensor_operation(
    PACK, FUNCTIONS, "Packs 4-bit weights and their scales for FlashInfer's SM90 mixed-input GEMM."
)
