"""Checks the type, layout and shape of tensors from callers, without reading a value."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor

from tokendraw.errors.exceptions import InvalidInputError
from tokendraw.errors.formatting import type_name

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
    """Whether two devices are the same; the needed device may lack an index."""
    return device == needed or (device.type == needed.type and needed.index is None)


def check_device(name: str, tensor: Tensor, device: torch.device, built: str) -> None:
    """Refuse a tensor on another device than that of a provider, such as a ``planner``."""
    if not same_device(tensor.device, device):
        raise InvalidInputError(
            f"'{name}' needs device {device}, where the {built} was built, found {tensor.device}. "
            f"Move it, or load a {built} for {tensor.device}."
        )


def misfit(
    name: str, found: object, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> str | None:
    """Compare a tensor of an output with the required form."""
    if not isinstance(found, Tensor):
        return f"{name} {list(shape)} {dtype} on {device}, found {type(found).__name__}"
    if found.shape == shape and found.dtype is dtype and found.device == device:
        return None
    return (
        f"{name} {list(shape)} {dtype} on {device}, found {list(found.shape)} {found.dtype} on {found.device}"
    )


def first_of(wrong: Tensor) -> list[list[int]]:
    """Return the indices of the first True element, in a list; an empty list without any."""
    found: list[list[int]] = wrong.nonzero()[:1].tolist()
    return found
