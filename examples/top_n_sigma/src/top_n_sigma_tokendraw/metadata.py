"""The parameter for the filter, added to the core's parameters of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor

from tokendraw import InvalidInputError, InvalidParameterError, SamplingMetadata


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TopNSigmaMetadata(SamplingMetadata):
    """``SamplingMetadata`` with ``n_sigma``. The core hands it to the sampler as it is.

    Other samplers do not know the field, and are never given it: only this one declares the class, in
    ``Capabilities.metadata_classes``. Choose it by name.
    """

    n_sigma: Tensor | None = None
    """[slots] floating point: keep ``x >= max x - n_sigma * std x``. In ready tensors <= 0 and NaN are off."""

    def __post_init__(self) -> None:
        SamplingMetadata.__post_init__(
            self
        )  # not super(): slots=True makes a second class, which super() misses
        if self.n_sigma is not None:
            _check(self.n_sigma, self)

    @classmethod
    def of(cls, metadata: SamplingMetadata, n_sigma: Sequence[float] | Tensor) -> Self:
        """Combine the parameters of a batch with an ``n_sigma`` for each of its requests.

        :param n_sigma: one number >= 0 a request (slot), 0: off; or a ready tensor [slots], whose values are not read.
        :raises InvalidParameterError: a ValueError that names the field, the row and the value.
        :raises InvalidInputError: a ValueError: ``n_sigma`` is a tensor that does not fit.
        """
        if not isinstance(n_sigma, Tensor):
            device = metadata.device or torch.device("cpu")
            real = torch.float32 if device.type == "mps" else torch.float64
            checked = [_number(value, row) for row, value in enumerate(n_sigma)]
            n_sigma = torch.tensor(checked, dtype=real, device=device)
        values = {field.name: getattr(metadata, field.name) for field in fields(SamplingMetadata)}
        return cls(**values, n_sigma=n_sigma)


def _number(value: Any, row: int) -> float:
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0.0 <= number < math.inf:
        raise InvalidParameterError(
            f"'n_sigma' of row {row} needs a finite number >= 0 (0: off), found {value!r}."
        )
    return number


def _check(n_sigma: Tensor, metadata: SamplingMetadata) -> None:
    if n_sigma.dim() != 1:
        raise InvalidInputError(f"'n_sigma' needs one dimension, found shape {list(n_sigma.shape)}.")
    if not n_sigma.is_floating_point():
        raise InvalidInputError(f"'n_sigma' needs a floating-point dtype, found {n_sigma.dtype}.")
    slots = metadata.num_rows if metadata.row_index is None else _slots(metadata)
    if slots is not None and len(n_sigma) != slots:
        raise InvalidInputError(
            f"'n_sigma' needs a value for each of {slots} requests, found {len(n_sigma)}."
        )
    if metadata.device is not None and n_sigma.device != metadata.device:
        raise InvalidInputError(
            f"'n_sigma' needs the device of the other tensors, {metadata.device}, found {n_sigma.device}."
        )


def _slots(metadata: SamplingMetadata) -> int | None:
    names = ("temperature", "top_k", "top_p", "min_p", "seed", "joint", "logprobs")
    tensors = [getattr(metadata, name) for name in names]
    return next((len(tensor) for tensor in tensors if tensor is not None), None)
