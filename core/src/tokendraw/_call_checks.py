"""What a call owes its caller: tokens of the right form and range, and logits as they were.

The proof draw looks at the form. The rest is looked at with ``TOKENDRAW_DEBUG=1`` alone, since it copies the
logits and waits for the device, and not while a CUDA graph is captured, when nobody can wait.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw._errors import PluginError

_BITS = {2: torch.int16, 4: torch.int32}  # by bytes an element: equal bits, where NaN differs from itself


def misfit(name: str, found: object, rows: int, dtype: torch.dtype, device: torch.device) -> str | None:
    """Say what an output tensor needs to be and what it is, or None if it is that. Reads no values."""
    needed = f"{name} [{rows}] {dtype} on {device}"
    if not isinstance(found, Tensor):
        return f"{needed}, found {type(found).__name__}"
    if (found.dtype, found.device, list(found.shape)) != (dtype, device, [rows]):
        return f"{needed}, found {list(found.shape)} {found.dtype} on {found.device}"
    return None


class Watch:
    """One call of the sampler ``name``, watched from before it starts."""

    def __init__(self, name: str, logits: Tensor, *, inplace: bool) -> None:
        self._name = name
        self._logits = logits.detach()
        self._before = None if inplace else self._logits.clone()

    def check_logits(self, after: BaseException | None = None) -> None:
        """Compare the logits, bit by bit, with what they were.

        :param after: what the call raised, if it did.
        :raises PluginError: they changed, and the call was not allowed to.
        """
        if self._before is None:
            return
        bits = _BITS[self._logits.element_size()]
        changed = (self._logits.view(bits) != self._before.view(bits)).any(dim=-1)
        if bool(changed.any()):
            rows = f"{int(changed.sum())} of {len(changed)} rows"
            raise self._error(
                f"to leave logits unmodified unless inplace=True, found {rows} changed"
            ) from after

    def check_output(self, output: object) -> None:
        """Look at what the call returned: shapes, dtypes, devices, and every id.

        :raises PluginError: names the field, what it needs to be and what was found.
        """
        rows, vocab_size = self._logits.shape
        for field, dtype in (("token_ids", torch.int64), ("valid", torch.bool)):
            reason = misfit(field, getattr(output, field, None), rows, dtype, self._logits.device)
            if reason is not None:
                raise self._error(f"to return {reason}")
        ids: Tensor = output.token_ids  # type: ignore[attr-defined]
        outside = (ids < 0) | (ids >= vocab_size)
        if bool(outside.any()):
            row = int(outside.nonzero()[0])
            raise self._error(
                f"to return token_ids in [0, {vocab_size}), found {int(ids[row])} in row {row} of {rows}"
            )

    def _error(self, needs: str) -> PluginError:
        return PluginError(
            f"{self._name!r} needs {needs}. Mend the plugin, or set TOKENDRAW_DISABLE={self._name}."
        )
