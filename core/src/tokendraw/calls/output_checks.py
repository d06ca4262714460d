"""The form of outputs: types, shapes, dtypes, devices; values in range; and whether inputs were modified.

Each function says what was needed and what was found, or returns None.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tokendraw.errors.exceptions import PluginError

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtype by bytes an element, to compare bits: NaN differs from itself."""


def wrong_object(output: object, needed: object, name: str) -> str | None:
    """Compare the output of a call that fills an object with that object, described by ``name``."""
    if output is needed:
        return None
    other = "another " if isinstance(output, type(needed)) else ""
    return f"{name}, found {other}{type(output).__name__}"


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


def contract_error(name: str, need: str) -> PluginError:
    """Build the error of a sampler ``name`` that broke the contract in a call."""
    return PluginError(f"{name!r} needs {need}. Mend the plugin, or set TOKENDRAW_DISABLE={name}.")


class MutationCheck:
    """Copies of a call's input tensors, made before a backend runs."""

    def __init__(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Copy the tensors that the named backend has to leave unmodified."""
        self._name = name
        self._tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        self._copies = {name: tensor.clone() for name, tensor in self._tensors.items()}

    def check(self, error: BaseException | None = None) -> None:
        """Compare the tensors with their copies, bit by bit.

        :param error: exception that the backend raised, if any, as the cause of a PluginError.
        """
        for name, tensor in self._tensors.items():
            bits = _BITS[tensor.element_size()]
            changed = tensor.view(bits) != self._copies[name].view(bits)
            unit = "rows" if changed.dim() > 1 else "elements"
            changed = changed.any(dim=-1) if changed.dim() > 1 else changed
            if bool(changed.any()):
                found = f"{int(changed.sum())} of {len(changed)} {unit} changed"
                raise contract_error(self._name, f"to leave {name} unmodified, found {found}") from error
