"""Packs and unpacks weights in one launch on a GPU, by torch's jiterator.

The jiterator compiles the function of one element into a kernel over strided tensors, through NVRTC or hipRTC. An
element here is 8 bytes: half of the 16 that two rows make together in packed form, or what one of these rows has of
them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from tokendraw_engine_ops.words import Words

_PACK = """\
  unsigned long long rows[2] = {{
    (unsigned long long)first >> ({unit} * 2 * index), (unsigned long long)second >> ({unit} * 2 * index)}}, out = 0;
  for (int i = 0; i < 2; ++i) {{
    unsigned int word = 0;
    for (int c = 0; c < {count}; ++c)
      for (int h = 0; h < 2; ++h) word |= (rows[h] >> ({unit} * (4 * c + i)) & {mask}u) << ({unit} * (2 * c + h));
    {move}
    out |= (unsigned long long)word << (32 * i);
  }}
"""
_UNPACK = """\
  unsigned long long out = 0;
  for (int d = 0; d < 4; ++d) {{
    unsigned int word = (unsigned long long)(d < 2 ? first : second) >> (32 * (d % 2));
    {move}
    for (int c = 0; c < {count}; ++c)
      out |= (unsigned long long)(word >> ({unit} * (2 * c + index)) & {mask}u) << ({unit} * (4 * c + d));
  }}
"""


def is_aligned(weights: Tensor) -> bool:
    """Whether the bytes of weights can be read eight at a time."""
    return weights.storage_offset() % 8 == 0 and weights.data_ptr() % 8 == 0


def repack(weights: Tensor, words: Words, *, back: bool) -> Tensor:
    """Pack or unpack weights [E, N, K / 2] uint8, dense and aligned: a new tensor of the same shape."""
    experts, rows, columns = weights.shape
    # By group of 16 rows, ``h``, row and 16 bytes of columns, and half of these; of packed weights, the halves of
    # columns come second, and those of the packed bytes last.
    source = weights.view(torch.int64).view(experts * rows // 16, 2, 8 * (columns // 16), 2)
    index = torch.arange(2, device=weights.device)
    if back:
        first, second = (half.transpose(1, 2).unsqueeze(1) for half in source.unbind(3))
        index = index.view(2, 1, 1)
    else:
        first, second = (row.transpose(1, 2).unsqueeze(3) for row in source.unbind(1))
    # The output gets the strides of the first tensor, whose elements are not used and so not read.
    with torch.cuda.device_of(weights):  # type: ignore[no-untyped-call]
        out = _kernel(code_of(words, back=back))(source, first, second, index)
    return out.contiguous().view(torch.uint8).view(weights.shape)


@cache
def _kernel(code: str) -> Callable[..., Tensor]:
    from torch.cuda.jiterator import _create_jit_fn

    return _create_jit_fn(code)


@cache
def code_of(words: Words, *, back: bool) -> str:
    """Write the C++ function: two packed words of 8 bytes from each row, or 8 bytes of a row from four words."""
    shifted = (
        f"(word {'<<' if by > 0 else '>>'} {abs(by)} & {mask}u)" for by, mask in words.moves(back=back)
    )
    facts = {"unit": words.unit_bits, "count": words.units_of_row, "mask": 2**words.unit_bits - 1}
    body = (_UNPACK if back else _PACK).format(move=f"word = {' | '.join(shifted)};", **facts)
    name = f"tokendraw_{'unpack' if back else 'pack'}_{words.name}"
    return (
        f"template <typename T> T {name}(T shape, T first, T second, T index) {{\n{body}  return (T)out;\n}}"
    )
