"""Proves a packer by tensors of known packed form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokendraw.errors.exceptions import PluginError
from tokendraw.operations.pack_sm90_w4 import reference
from tokendraw.operations.pack_sm90_w4.capabilities import Sm90W4Capabilities, packings


def prove(backend: Any, capabilities: Sm90W4Capabilities, device: torch.device) -> None:
    """Pack an expert of 64 rows and 128 columns in every advertised format and layout, and unpack it if advertised.

    :raises PluginError: a byte is not what it has to be.
    """
    weights, scales = _bytes(64, 64), _bytes(64, 4)
    for format, layout in packings(capabilities):
        packed = reference.packed_weights(weights, format, layout)
        what = f"weights, {format}, {layout}"
        found = backend.pack_weights(weights.to(device), format=format, layout=layout)
        _require(f"packed {what}", found, packed)
        if capabilities.unpacks:
            found = backend.unpack_weights(packed.to(device), format=format, layout=layout)
            _require(f"unpacked {what}", found, weights)
    for layout in capabilities.layouts:
        packed = reference.packed_scales(scales, layout)
        found = backend.pack_scales(scales.to(device), layout=layout)
        _require(f"packed scales, {layout}", found, packed)
        if capabilities.unpacks:
            found = backend.unpack_scales(packed.to(device), layout=layout)
            _require(f"unpacked scales, {layout}", found, scales)


def _bytes(rows: int, columns: int) -> Tensor:
    """Make [1, rows, columns] uint8 of all values, without a pattern to hide a wrong layout."""
    index = torch.arange(rows * columns)
    return (index * 2_654_435_761 // 2**12 % 256).to(torch.uint8).view(1, rows, columns)


def _require(what: str, found: object, needed: Tensor) -> None:
    if not isinstance(found, Tensor) or found.dtype is not torch.uint8 or found.shape != needed.shape:
        raise PluginError(
            f"the proof call needs {what}: {list(needed.shape)} uint8, found {_described(found)}"
        )
    found = found.cpu()
    for index in (found != needed).nonzero()[:1].tolist():
        at = tuple(index)
        raise PluginError(
            f"the proof call needs {what}: {int(needed[at])} at {index}, found {int(found[at])}"
        )


def _described(found: object) -> str:
    if isinstance(found, Tensor):
        return f"{list(found.shape)} {str(found.dtype).removeprefix('torch.')}"
    return type(found).__name__
