"""Packs and unpacks weights by torch's own functions, piece by piece, on any device.

A piece and its copies stay below an expert, so that no device needs room for all of them twice. A CPU computes with one
thread: the functions are short, and threads that wait for each other dozens of times a piece are slower on a busy
machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from tokendraw.plugin import one_thread
from tokendraw_native.sm90_w4.words import ALL_BITS, Shifts, Words

_PIECE_BYTES: Final = {"cpu": 1 << 18}
"""Bytes of a piece, by type of device: few enough for the cache of a core."""
_DEVICE_PIECE_BYTES: Final = 1 << 24
"""Bytes of a piece where a launch takes microseconds."""


def pack(weights: Tensor, words: Words) -> Tensor:
    """Pack weights [E, N, K / 2] uint8, dense: a new tensor of the same shape."""
    packed = torch.empty_like(weights)
    source, target = _rows(weights), _words(packed)
    with one_thread():
        for groups, columns in _pieces(weights):
            source_words = torch.empty_like(target[groups, :, columns])
            for position, (h, byte) in enumerate(words.byte_order):
                source_words[..., position] = source[groups, h, columns, :, byte].transpose(1, 2)
            target[groups, :, columns] = _move_bits(source_words, words.moves)
    return packed


def unpack(packed: Tensor, words: Words) -> Tensor:
    """Reverse :func:`pack`: a new tensor of the same shape."""
    weights = torch.empty_like(packed)
    source, target = _words(packed), _rows(weights)
    with one_thread():
        for groups, columns in _pieces(packed):
            source_words = source[groups, :, columns].clone(memory_format=torch.contiguous_format)
            result = _move_bits(source_words, words.moves_back)
            for position, (h, byte) in enumerate(words.byte_order):
                target[groups, h, columns, :, byte] = result[..., position].transpose(1, 2)
    return weights


def _rows(weights: Tensor) -> Tensor:
    """View weights by group of 16 rows, ``h``, row and 16 bytes of columns, half of these, and byte."""
    groups, cells = _sizes(weights)
    return weights.view(groups, 2, cells, 2, 8)


def _words(packed: Tensor) -> Tensor:
    """View packed weights by group of 16 rows, half, row and 16 bytes of columns, and byte of four words."""
    groups, cells = _sizes(packed)
    return packed.view(groups, 2, cells, 16)


def _sizes(weights: Tensor) -> tuple[int, int]:
    experts, rows, columns = weights.shape
    return experts * rows // 16, 8 * (columns // 16)


def _pieces(weights: Tensor) -> Iterator[tuple[slice, slice]]:
    """Go through groups of rows: several small groups at once, large groups in parts."""
    groups, cells = _sizes(weights)
    limit = min(_PIECE_BYTES.get(weights.device.type, _DEVICE_PIECE_BYTES), weights[0].numel() // 4)
    num_groups = max(1, limit // (32 * cells))
    num_cells = min(cells, max(1, limit // 32))
    for first in range(0, groups, num_groups):
        for start in range(0, cells, num_cells):
            yield slice(first, first + num_groups), slice(start, start + num_cells)


def _move_bits(source_words: Tensor, shifts: Shifts) -> Tensor:
    """Move the bits of words [..., 16] uint8."""
    if shifts == ((0, ALL_BITS),):
        return source_words
    words = source_words.view(torch.int32)
    shifted, result = torch.empty_like(words), torch.zeros_like(words)
    for shift, mask in shifts:
        move = torch.bitwise_left_shift if shift > 0 else torch.bitwise_right_shift
        move(words, abs(shift), out=shifted)
        result |= shifted.bitwise_and_(mask - (mask >> 31 << 32))  # the mask as int32 has it
    return result.view(torch.uint8)
