"""Tensors of callers: checks of type, layout and shape that read no value, uploads in a single copy, CUDA graphs."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor

from tokendraw._torch.importing import parse_device
from tokendraw.errors import InvalidInputError, InvalidParameterError, format_value, type_name

INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))
"""Dtypes of counts and indices. Torch computes with the other unsigned ones hardly at all."""
_UNSIGNED = frozenset((torch.uint16, torch.uint32, torch.uint64))


def is_plain(value: object) -> TypeGuard[Tensor]:
    """Return whether a value is a dense tensor, with every element stored in memory unmodified."""
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and not value.is_nested
        and not value.is_neg()
    )


def check_plain(name: str, value: object, mend: str = "Pass a tensor.") -> None:
    """Refuse anything but a tensor readable by kernels: neither sparse, nor nested, nor with a pending negation."""
    if is_plain(value):
        return
    if not isinstance(value, Tensor):
        raise InvalidInputError(f"'{name}' needs a torch.Tensor, found {type_name(value)}. {mend}")
    if value.is_nested:
        raise InvalidInputError(
            f"'{name}' needs a dense tensor, found a nested one. Pass {name}.to_padded_tensor(float('-inf'))."
        )
    if value.layout is not torch.strided:
        raise InvalidInputError(
            f"'{name}' needs a dense tensor, found layout {value.layout}. Pass {name}.to_dense()."
        )
    raise InvalidInputError(
        f"'{name}' needs a tensor as it is in memory, found its negative. Pass {name}.resolve_neg()."
    )


def check_vector(name: str, value: object, mend: str = "Pass a tensor.") -> None:
    """Refuse anything but a plain tensor of one dimension."""
    check_plain(name, value, mend)
    assert isinstance(value, Tensor)
    if value.dim() != 1:
        raise InvalidInputError(f"'{name}' needs one dimension, found shape {list(value.shape)}.")


def check_integers(name: str, tensor: Tensor) -> None:
    """Refuse a dtype unfit for counts and indices."""
    if tensor.dtype in INTEGERS:
        return
    mend = f" that torch computes with, found {tensor.dtype}. Pass {name}.to(torch.int64)."
    raise InvalidInputError(
        f"'{name}' needs an integer dtype{mend if tensor.dtype in _UNSIGNED else f', found {tensor.dtype}.'}"
    )


def check_dtype(name: str, tensor: Tensor, dtype: torch.dtype, mend: str) -> None:
    """Refuse a tensor of another dtype."""
    if tensor.dtype is not dtype:
        raise InvalidInputError(f"'{name}' needs dtype {dtype}, found {tensor.dtype}. {mend}")


def check_dense_rows(name: str, tensor: Tensor, elements: str, mend: str = "") -> None:
    """Refuse a matrix with gaps between the ``elements`` of a row."""
    if tensor.shape[1] > 1 and tensor.stride(1) != 1:
        raise InvalidInputError(
            f"'{name}' needs the {elements} of a row one behind the other, found stride {tensor.stride(1)}. "
            f"Pass {name}.contiguous(){mend}."
        )


def check_device_of(name: str, found: torch.device, owner: str, needed: torch.device, mend: str = "") -> None:
    """Refuse another device than that of ``owner``, another argument in quotes."""
    if found != needed:
        raise InvalidInputError(
            f"'{name}' needs the device of {owner}, {needed}, found {found}. {mend}".rstrip()
        )


def same_device(device: torch.device, needed: torch.device) -> bool:
    return device == needed or (device.type == needed.type and needed.index is None)


def check_device(name: str, tensor: Tensor, device: torch.device, built: str, it: str = "it") -> None:
    """Refuse a tensor on another device than that of a provider, such as a ``planner``."""
    if not same_device(tensor.device, device):
        raise InvalidInputError(
            f"'{name}' needs device {device}, where the {built} was built, found {tensor.device}. "
            f"Move {it}, or load a {built} for {tensor.device}."
        )


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
    on_device = uploaded_vectors([torch.frombuffer(packed, dtype=torch.uint8)], device)
    sizes = [len(values) * dtype.itemsize for values, dtype in columns.values()]
    ends = [*starts[1:], len(packed)]
    padded = [(size, end - start - size) for start, size, end in zip(starts, sizes, ends, strict=True)]
    # The pieces of split count their changes together: a new position would look like one of the temperature.
    pieces = torch.unsafe_split_with_sizes(on_device, [*chain.from_iterable(padded)])[::2]
    return {name: part.view(dtype) for (name, (_, dtype)), part in zip(columns.items(), pieces, strict=True)}


def device_of(device: Any) -> torch.device:
    """Convert a caller's name of a device to a ``torch.device``; None is the CPU."""
    if isinstance(device, torch.device):
        return device
    try:
        return torch.device("cpu" if device is None else device)
    except (TypeError, RuntimeError) as error:
        parse_device(str(device))  # refuses it with the nearest name
        raise InvalidParameterError(
            f"'device' needs a device that torch has, found {format_value(device)}. Pass one such as 'cpu' or 'cuda'."
        ) from error


def uploaded_vectors(pieces: list[Tensor], device: torch.device) -> Tensor:
    """Copy vectors of one dtype on the host, one behind the other, to a device as :func:`uploaded` does.

    A single one to the CPU is itself.
    """
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


def is_capturing() -> bool:
    """Return whether the current CUDA stream is capturing a CUDA graph: launches are recorded for replays, not run."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


class _Memory:
    """Memory of torch's allocator, offered through the CUDA array interface."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 2,
        }


@torch.inference_mode(False)  # inference tensors could not be changed outside of that mode
def memory_outside_graphs(num_bytes: int, device: torch.device) -> Tensor:
    """Allocate [num_bytes] uint8 while a CUDA graph is being captured. Launches nothing.

    Torch's memory for the captured CUDA stream is the graph's: its replays, and those of earlier graphs, write scratch
    there. The default CUDA stream is never captured, so its memory is not.
    """
    stream = torch.cuda.default_stream(device)
    address: int = torch.cuda.caching_allocator_alloc(num_bytes, device, stream)
    memory = _Memory(address, num_bytes)  # the tensor holds it
    given_back = weakref.finalize(memory, torch.cuda.caching_allocator_delete, address)
    given_back.atexit = False
    return torch.as_tensor(memory, device=device, dtype=torch.uint8)


def misfit(
    name: str, found: object, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> str | None:
    """Compare a tensor of an output with the required form."""
    if isinstance(found, Tensor) and found.shape == shape and found.dtype is dtype and found.device == device:
        return None
    needed = f"{name} {list(shape)} {dtype} on {device}"
    if not isinstance(found, Tensor):
        return f"{needed}, found {type(found).__name__}"
    return f"{needed}, found {list(found.shape)} {found.dtype} on {found.device}"


def first_of(wrong: Tensor) -> list[list[int]]:
    """Return the indices of the first True element, in a list; an empty list without any."""
    found: list[list[int]] = wrong.nonzero()[:1].tolist()
    return found
