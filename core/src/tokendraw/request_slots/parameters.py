"""Lays out the small parameters of a request: a column of a block for each size of element."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from struct import Struct
from typing import NamedTuple

import torch
from torch import Tensor

SAMPLING = ("temperature", "top_p", "min_p", "top_k", "seed", "logprobs", "seeded", "joint")
"""Parameters that are fields of the metadata."""
_DTYPES = {
    torch.float64: ("temperature", "top_p", "min_p"),
    torch.int64: ("top_k", "seed", "logprobs"),
    torch.int32: (
        *("num_tokens", "num_distinct", "limit"),  # a step reads these three together
        *("num_prompt", "num_bias", "num_stop", "min_tokens", "num_bad"),
    ),
    torch.float32: ("repetition", "frequency", "presence"),
    torch.bool: ("seeded", "joint", "is_restricted"),
}
_CODES = {torch.float64: "d", torch.float32: "f", torch.int64: "q", torch.int32: "i", torch.bool: "?"}
_BLOCKS = {"wide": torch.int64, "words": torch.int32, "bytes": torch.uint8}
"""Makes up a block, which holds the parameters of all types of this size."""
_WORD = 4
AT_REST = dict.fromkeys((name for names in _DTYPES.values() for name in names), 0) | dict.fromkeys(
    ("temperature", "top_p", "repetition"), 1
)
"""The values in a slot without a request: what is off, or asks for nothing."""


class Layout(NamedTuple):
    """The parameters of a slot, block by block."""

    dtypes: dict[str, torch.dtype]
    """By parameter, in the order of the blocks."""
    rows: dict[str, list[str]]
    """The names of the first rows of each block."""
    sizes: dict[str, int]
    """Words of 32 bits in the column of each block."""
    packer: Struct

    def packed(self, values: Mapping[str, float]) -> bytes:
        """Pack the columns of a slot into bytes."""
        return self.packer.pack(*[values[name] for name in self.dtypes])


@cache
def layout_on(device_type: str) -> Layout:
    """Lay out the parameters for devices of a type."""
    found = {name: dtype for dtype, names in _DTYPES.items() for name in names}
    if device_type == "mps":  # it has no float64, in which 0.9 stays 0.9
        found |= dict.fromkeys(_DTYPES[torch.float64], torch.float32)
    dtypes = dict(sorted(found.items(), key=lambda item: -item[1].itemsize))
    rows = {
        block: [name for name, dtype in dtypes.items() if dtype.itemsize == stored.itemsize]
        for block, stored in _BLOCKS.items()
    }
    sizes = {block: -(-len(rows[block]) * stored.itemsize // _WORD) for block, stored in _BLOCKS.items()}
    codes = "".join(_CODES[dtype] for dtype in dtypes.values())
    padding = _WORD * sum(sizes.values()) - sum(dtype.itemsize for dtype in dtypes.values())
    return Layout(dtypes, rows, sizes, Struct(f"={codes}{padding}x"))


def column_of(words: Tensor, block: str) -> Tensor:
    """View words as the column of a block."""
    return words.view(_BLOCKS[block])
