"""Packs columns of numbers on the host, and uploads them in a single asynchronous copy."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tokendraw._torch.device_names import parse
from tokendraw._torch.graphs import is_capturing
from tokendraw.errors.exceptions import InvalidInputError, InvalidParameterError
from tokendraw.errors.formatting import format_value

Column: TypeAlias = tuple[Sequence[float], torch.dtype]

_ALIGNMENT = 16  # bytes: Triton compiles another kernel for a pointer that is not a multiple of it
_CODES = {torch.float64: "d", torch.float32: "f", torch.int64: "q", torch.int32: "i", torch.bool: "B"}


def uploaded(columns: Mapping[str, Column], device: torch.device) -> dict[str, Tensor]:
    """Copy columns of numbers to a device, on its current CUDA stream, without waiting for the copy.

    :param columns: by name: numbers, and one of the dtypes float64, float32, int64, int32 and bool.
    :returns: by name: tensors [n], each aligned to 16 bytes, which count their changes by themselves.
    :raises InvalidInputError: a CUDA graph is being captured, which would copy memory that is gone when it is replayed.
    :raises InvalidParameterError: torch has no such device.
    """
    if torch.is_inference_mode_enabled():  # inference tensors do not count their changes
        with torch.inference_mode(False):
            return uploaded(columns, device)
    packed = bytearray()
    starts = []
    for values, dtype in columns.values():
        packed += bytes(-len(packed) % _ALIGNMENT)
        starts.append(len(packed))
        packed += array(_CODES[dtype], values)
    if device.type == "cpu" or not packed:
        return {
            name: torch.frombuffer(packed, dtype=dtype, count=len(values), offset=start)
            if len(values)
            else torch.empty(0, dtype=dtype, device=device)
            for (name, (values, dtype)), start in zip(columns.items(), starts, strict=True)
        }
    on_device = _copy([torch.frombuffer(packed, dtype=torch.uint8)], device)
    sizes = [len(values) * dtype.itemsize for values, dtype in columns.values()]
    ends = [*starts[1:], len(packed)]
    padded = [(size, end - start - size) for start, size, end in zip(starts, sizes, ends, strict=True)]
    # The pieces of split count their changes together: a new position would look like one of the temperature.
    pieces = torch.unsafe_split_with_sizes(on_device, [*chain.from_iterable(padded)])[::2]
    return {
        name: piece.view(dtype) for (name, (_, dtype)), piece in zip(columns.items(), pieces, strict=True)
    }


def uploaded_words(pieces: list[Tensor], device: torch.device) -> Tensor:
    """Copy vectors of int32 on the host, one behind the other, to a device as :func:`uploaded` does.

    :returns: [their lengths together] int32, aligned to 16 bytes.
    :raises InvalidInputError: a CUDA graph is being captured.
    """
    return _copy(pieces, device)


def device_of(device: Any) -> torch.device:
    """Convert a caller's name of a device to a ``torch.device``; None is the CPU.

    :raises InvalidParameterError: torch has no such device; the message has the nearest name.
    """
    if isinstance(device, torch.device):
        return device
    try:
        return torch.device("cpu" if device is None else device)
    except (TypeError, RuntimeError) as error:
        parse(str(device))  # refuses it with the nearest name
        raise InvalidParameterError(
            f"'device' needs a device that torch has, found {format_value(device)}. Pass one such as 'cpu' or 'cuda'."
        ) from error


def _copy(pieces: list[Tensor], device: torch.device) -> Tensor:
    """Copy vectors of one dtype on the host to a device, one behind the other; a single one to the CPU is itself."""
    if device.type == "cuda" and is_capturing():
        raise InvalidInputError(
            "an upload of parameters or drafts needs a stream that captures no CUDA graph, found one that does: its "
            "replays would read memory of the host that is gone. Build them before the capture, and change their "
            "tensors in place."
        )
    try:
        if device.type != "cuda":
            return (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).to(device)
        size = sum([piece.shape[0] for piece in pieces])
        pinned = torch.empty(size, dtype=pieces[0].dtype, device="cpu", pin_memory=True)
        # Torch's allocator keeps the pinned memory until the device has read it.
        return torch.cat(pieces, out=pinned).to(device, non_blocking=True)
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        if _exists(device):
            raise
        raise InvalidParameterError(
            f"'device' needs a device that torch finds here, found '{device}'. Pass one such as 'cpu'."
        ) from error


def _exists(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    try:
        torch.empty(0, device=device, dtype=torch.float32)
    except (AssertionError, RuntimeError, NotImplementedError):
        return False
    return True
