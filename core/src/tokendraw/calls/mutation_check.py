"""Compares the inputs of a call with copies, to find a backend that modifies them.

With ``TOKENDRAW_DEBUG=1`` alone, since this copies the logits and waits for the device, and not during the capture of a
CUDA graph. The form of an output is checked in every call (``output_checks``).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tokendraw.errors.exceptions import PluginError

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtype by bytes an element, to compare bits: NaN differs from itself."""


def contract_error(name: str, need: str) -> PluginError:
    """Build the error of a sampler ``name`` that broke the contract in a call."""
    return PluginError(f"{name!r} needs {need}. Mend the plugin, or set TOKENDRAW_DISABLE={name}.")


class MutationCheck:
    """Copies of a call's input tensors, made before a backend runs."""

    def __init__(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Copy the tensors.

        :param name: of the backend.
        :param tensors: by name, the tensors that the backend has to leave unmodified.
        """
        self._name = name
        self._tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        self._copies = {name: tensor.clone() for name, tensor in self._tensors.items()}

    def check(self, error: BaseException | None = None) -> None:
        """Compare the tensors with their copies, bit by bit.

        :param error: exception that the backend raised, if any.
        :raises PluginError: the backend modified a tensor.
        """
        for name, tensor in self._tensors.items():
            bits = _BITS[tensor.element_size()]
            changed = tensor.view(bits) != self._copies[name].view(bits)
            unit = "rows" if changed.dim() > 1 else "elements"
            changed = changed.any(dim=-1) if changed.dim() > 1 else changed
            if bool(changed.any()):
                found = f"{int(changed.sum())} of {len(changed)} {unit} changed"
                raise contract_error(self._name, f"to leave {name} unmodified, found {found}") from error
