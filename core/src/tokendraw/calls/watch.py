"""Watches a call: its inputs have to stay unmodified, and its output has to have the right form.

The form of an output is always looked at (``output_checks``). The rest is looked at with ``TOKENDRAW_DEBUG=1``
alone, since it copies the logits and waits for the device, and not while a CUDA graph is captured, when nobody
can.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tokendraw.errors.exceptions import PluginError

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtype by bytes an element: it compares bits, where NaN differs from itself."""


def fault(name: str, needs: str) -> PluginError:
    """Build the error that says what a call of the sampler ``name`` did wrong."""
    return PluginError(f"{name!r} needs {needs}. Mend the plugin, or set TOKENDRAW_DISABLE={name}.")


class Watch:
    """A call of the sampler ``name``, watched from before it starts."""

    def __init__(self, name: str, given: Mapping[str, Tensor]) -> None:
        """Keep what the call is given.

        :param given: by name, what it has to leave as it is.
        """
        self._name = name
        self._given = {name: tensor.detach() for name, tensor in given.items()}
        self._before = {name: tensor.clone() for name, tensor in self._given.items()}

    def check_given(self, after: BaseException | None = None) -> None:
        """Compare, bit by bit, with what was given.

        :param after: what the call raised, if it did.
        :raises PluginError: the call changed something.
        """
        for name, tensor in self._given.items():
            bits = _BITS[tensor.element_size()]
            changed = tensor.view(bits) != self._before[name].view(bits)
            kind = "rows" if changed.dim() > 1 else "elements"
            changed = changed.any(dim=-1) if changed.dim() > 1 else changed
            if bool(changed.any()):
                found = f"{int(changed.sum())} of {len(changed)} {kind} changed"
                raise fault(self._name, f"to leave {name} unmodified, found {found}") from after

    def check_returned(self, reason: str | None) -> None:
        """Refuse what the call returned.

        :param reason: what it needs to be and what it is, as ``output_checks`` says; None: nothing is wrong.
        :raises PluginError: says so.
        """
        if reason is not None:
            raise fault(self._name, f"to return {reason}")
