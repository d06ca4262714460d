"""What a caller owes a call: tensors of the right form on the right device. Refused before anything is launched.

What a call owes its caller is looked at in :mod:`tokendraw._call_checks`. No value is read here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw._capabilities import INPUT_DTYPES
from tokendraw._errors import InvalidInputError
from tokendraw._metadata import SamplingMetadata

_DTYPES = frozenset(getattr(torch, name) for name in INPUT_DTYPES)


def check_logits(name: str, logits: Tensor, device: torch.device) -> None:
    """Refuse what is no batch of logits on the device that a sampler was built for.

    :param name: of the argument.
    :raises InvalidInputError: says what it needs to be and what it is.
    """
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise InvalidInputError(f"'{name}' needs shape [B, V] with V >= 1, found {list(logits.shape)}.")
    if logits.dtype not in _DTYPES:
        raise InvalidInputError(f"'{name}' needs dtype {', '.join(INPUT_DTYPES)}, found {logits.dtype}.")
    if not _same_device(logits.device, device):
        raise InvalidInputError(
            f"'{name}' needs device {device}, where the sampler was built, found {logits.device}. "
            f"Move the logits, or load a sampler for {logits.device}."
        )


def check_rows(name: str, logits: Tensor, metadata: SamplingMetadata) -> None:
    """Refuse metadata of another number of rows.

    :raises InvalidInputError: with both numbers.
    """
    rows = metadata.num_rows
    if rows is not None and rows != logits.shape[0]:
        raise InvalidInputError(
            f"'metadata' needs as many rows as '{name}', {logits.shape[0]}, found {rows}."
        )


def check_device(name: str, logits: Tensor, metadata: SamplingMetadata) -> None:
    """Refuse metadata of another device.

    :raises InvalidInputError: with both devices.
    """
    device = metadata.device
    if device is not None and device != logits.device:
        raise InvalidInputError(
            f"'metadata' needs the device of '{name}', {logits.device}, found {device}. "
            "Pass device= to SamplingMetadata.from_params."
        )


def _same_device(found: torch.device, needed: torch.device) -> bool:
    return found == needed or (found.type == needed.type and needed.index is None)
