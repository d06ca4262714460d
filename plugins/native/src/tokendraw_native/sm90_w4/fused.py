"""Packs and unpacks weights in one launch on a GPU, by torch's jiterator.

The jiterator compiles the function of one element into a kernel over strided tensors, through NVRTC or hipRTC. An
element here is 8 bytes: half of the 16 that two rows make together in packed form, or what one of these rows has of
them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

import torch
from torch import Tensor

from tokendraw_native.sm90_w4 import eager
from tokendraw_native.sm90_w4.words import ALL_BITS, WORDS, Shifts, Words

_ELEMENT_BYTES: Final = 8
_UINT64: Final = "unsigned long long"
_ROWS: Final = (("row0", "first"), ("row1", "second"))
"""The rows of a cell, and the arguments that hold them."""


def is_supported(device: torch.device) -> bool:
    """Return whether torch compiles such kernels for the device; found by packing a sample both ways."""
    if not _is_gpu(device):
        return False
    words = WORDS["int4", "v1"]
    weights = torch.arange(16 * 32, device=device).to(torch.uint8).view(1, 16, 32)
    try:
        return torch.equal(pack(weights, words), eager.pack(weights, words))
    except (RuntimeError, ImportError, AttributeError):
        return False  # no jiterator, no NVRTC, or none for such a device


def _is_gpu(device: torch.device) -> bool:
    return device.type == "cuda"  # ROCm's are called so too


def is_aligned(weights: Tensor) -> bool:
    """Whether the bytes of weights can be read eight at a time."""
    return weights.storage_offset() % _ELEMENT_BYTES == 0 and weights.data_ptr() % _ELEMENT_BYTES == 0


def pack(weights: Tensor, words: Words) -> Tensor:
    """Pack weights [E, N, K / 2] uint8, dense and aligned: a new tensor of the same shape."""
    source = _elements(weights)
    first, second = (row.transpose(1, 2).unsqueeze(3) for row in source.unbind(1))
    half = torch.arange(2, device=weights.device)
    return _launch(_kernel(pack_code(words)), weights, first, second, half)


def unpack(packed: Tensor, words: Words) -> Tensor:
    """Reverse :func:`pack`: a new tensor of the same shape."""
    source = _elements(packed)
    first, second = (half.transpose(1, 2).unsqueeze(1) for half in source.unbind(3))
    row = torch.arange(2, device=packed.device).view(2, 1, 1)
    return _launch(_kernel(unpack_code(words)), packed, first, second, row)


def _elements(weights: Tensor) -> Tensor:
    """View weights as int64 by group of 16 rows, ``h``, row and 16 bytes of columns, and half of these.

    Of packed weights, the halves of columns come second, and those of the packed bytes last.
    """
    experts, rows, columns = weights.shape
    return weights.view(torch.int64).view(experts * rows // 16, 2, 8 * (columns // 16), 2)


def _launch(kernel: Callable[..., Tensor], weights: Tensor, *arguments: Tensor) -> Tensor:
    # The output gets the strides of the first tensor, whose elements are not used and so not read.
    with torch.cuda.device_of(weights):  # type: ignore[no-untyped-call]
        out = kernel(_elements(weights), *arguments)
    return out.contiguous().view(torch.uint8).view(weights.shape)


@cache
def _kernel(code: str) -> Callable[..., Tensor]:
    from torch.cuda.jiterator import _create_jit_fn

    return _create_jit_fn(code)


@cache
def pack_code(words: Words) -> str:
    """Write the C++ function for two packed words of 8 bytes from each row."""
    unit, count = words.unit_bits, words.units_of_row
    lines = [f"{_UINT64} {row} = ({_UINT64}){argument} >> ({2 * unit} * half);" for row, argument in _ROWS]
    for i in range(2):
        units = [
            f"({row} >> {unit * (4 * c + i)} & {2**unit - 1}u) << {unit * (2 * c + h)}"
            for c in range(count)
            for h, (row, _) in enumerate(_ROWS)
        ]
        lines += [f"unsigned int word{i} = {' | '.join(units)};", _assignment(f"word{i}", words.moves)]
    lines.append(f"return (T)(word0 | ({_UINT64})word1 << 32);")
    return _function(f"tokendraw_pack_{words.name}", "half", lines)


@cache
def unpack_code(words: Words) -> str:
    """Write the C++ function for 8 bytes of a row from four packed words."""
    unit, count = words.unit_bits, words.units_of_row
    lines: list[str] = []
    units: list[str] = []
    for d in range(4):
        argument = "first" if d < 2 else "second"
        lines += [
            f"unsigned int word{d} = ({_UINT64}){argument} >> {32 * (d % 2)};",
            _assignment(f"word{d}", words.moves_back),
        ]
        units += [
            f"({_UINT64})(word{d} >> ({2 * unit * c} + {unit} * row) & {2**unit - 1}u) << {unit * (4 * c + d)}"
            for c in range(count)
        ]
    lines.append(f"return (T)({' | '.join(units)});")
    return _function(f"tokendraw_unpack_{words.name}", "row", lines)


def _assignment(word: str, shifts: Shifts) -> str:
    parts = [f"({_shift(word, shift)} & {mask}u)" for shift, mask in shifts]
    return "" if shifts == ((0, ALL_BITS),) else f"{word} = {' | '.join(parts)};"


def _shift(word: str, shift: int) -> str:
    return f"({word} << {shift})" if shift > 0 else f"({word} >> {-shift})"


def _function(name: str, argument: str, lines: list[str]) -> str:
    body = "\n  ".join(line for line in lines if line)
    return f"template <typename T> T {name}(T shape, T first, T second, T {argument}) {{\n  {body}\n}}"
