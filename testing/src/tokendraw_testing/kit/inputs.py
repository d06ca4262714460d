"""Checks that a call leaves its input tensors unmodified."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import torch

from tokendraw_testing.kit.trial import Trial


@contextlib.contextmanager
def require_unmodified(trial: Trial, **inputs: object) -> Iterator[None]:
    """Require that the block leaves every bit of the inputs unmodified.

    :param inputs: tensors by name, and dataclasses whose fields hold some.
    """
    tensors = _tensors(inputs)
    before = {name: bits(tensor).clone() for name, tensor in tensors.items()}
    yield
    for name, tensor in tensors.items():
        trial.require(
            torch.equal(bits(tensor), before[name]), f"'{name}' needs to stay as it is, found changed"
        )


def _tensors(inputs: dict[str, object]) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for name, part in inputs.items():
        if isinstance(part, torch.Tensor):
            tensors[name] = part
        elif is_dataclass(part):
            tensors |= _tensors({field.name: getattr(part, field.name) for field in fields(part)})
    return tensors


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor as bytes: NaN is unequal to NaN, but its bits are equal."""
    return tensor.reshape(-1).contiguous().view(torch.uint8)
