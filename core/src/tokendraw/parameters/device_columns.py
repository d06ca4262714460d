"""Lays out checked parameters as columns for the upload, in the dtypes of their tensors."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

from tokendraw._torch.upload import Column
from tokendraw.parameters.fields import PARAMETERS, SLOT_FIELDS
from tokendraw.parameters.metadata_checks import MAX_POSITION, check_form
from tokendraw.parameters.ranges import integers
from tokendraw.parameters.request_columns import RequestColumns

_REQUIRED = tuple(parameter.name for parameter in PARAMETERS if not parameter.is_optional)


@cache
def field_dtypes(device_type: str) -> dict[str, torch.dtype]:
    """Return the dtype of each field with an entry a slot, on devices of a type."""
    real = torch.float32 if device_type == "mps" else torch.float64  # so that 0.9 stays 0.9
    dtypes = {"real": real, "integer": torch.int64, "flag": torch.bool}
    return {name: dtypes[kind] for name, kind in SLOT_FIELDS.items()}


def parameter_columns(columns: RequestColumns, device: torch.device) -> dict[str, Column]:
    """Return a column [slots] for each field of the metadata used by a request."""
    dtypes = field_dtypes(device.type)
    uploads: dict[str, Column] = {name: (getattr(columns, name), dtypes[name]) for name in _REQUIRED}
    has_seed = [seed is not None for seed in columns.seed]
    if any(has_seed):
        uploads["seed"] = [seed or 0 for seed in columns.seed], dtypes["seed"]
        uploads["seeded"] = has_seed, dtypes["seeded"]
    if "joint" in columns.filter_order:
        uploads["joint"] = [order == "joint" for order in columns.filter_order], dtypes["joint"]
    if columns.logprobs.count(None) < len(columns.logprobs):
        uploads["logprobs"] = [n or 0 for n in columns.logprobs], dtypes["logprobs"]
    return uploads


def index_column(name: str, indices: Iterable[int] | Tensor, device: torch.device) -> Tensor | Column:
    """Return positions or slots as a tensor [rows] int64 on the device, or as a column to be uploaded.

    :raises InvalidInputError: they are a tensor of another form.
    :raises InvalidParameterError: they are no list of integers, or one on the host is out of range.
    """
    if isinstance(indices, Tensor):
        check_form(name, indices)
        if device.type == "cpu" or not indices.is_cpu:
            return indices.to(device=device, dtype=torch.int64)
        indices = indices.tolist()
    return integers(name, indices, 0, MAX_POSITION), torch.int64
