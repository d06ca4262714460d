"""Lays out checked parameters as columns for the upload, in the dtypes of their tensors."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from tokendraw._torch.upload import Column
from tokendraw.parameters.metadata_checks import LARGEST_POSITION, check_form
from tokendraw.parameters.ranges import integers
from tokendraw.parameters.request_columns import RequestColumns


def parameter_columns(checked: RequestColumns, device: torch.device) -> dict[str, Column]:
    """Return a column [slots] for each field of the metadata used by a request."""
    real = torch.float32 if device.type == "mps" else torch.float64  # so that 0.9 stays 0.9
    columns: dict[str, Column] = {
        "temperature": (checked.temperature, real),
        "top_k": (checked.top_k, torch.int64),
        "top_p": (checked.top_p, real),
        "min_p": (checked.min_p, real),
    }
    has_seed = [seed is not None for seed in checked.seed]
    if any(has_seed):
        columns["seed"] = [seed or 0 for seed in checked.seed], torch.int64
        columns["seeded"] = has_seed, torch.bool
    if "joint" in checked.filter_order:
        columns["joint"] = [order == "joint" for order in checked.filter_order], torch.bool
    if any(n is not None for n in checked.logprobs):
        columns["logprobs"] = [n or 0 for n in checked.logprobs], torch.int64
    return columns


def index_column(name: str, given: Iterable[int] | Tensor, device: torch.device) -> Tensor | Column:
    """Return positions or slots as a tensor [rows] int64 on the device, or as a column to be uploaded.

    :raises InvalidInputError: they are a tensor of another form.
    :raises InvalidParameterError: they are no list of integers, or one on the host is out of range.
    """
    if isinstance(given, Tensor):
        check_form(name, given)
        if device.type == "cpu" or not given.is_cpu:
            return given.to(device=device, dtype=torch.int64)
        given = given.tolist()
    return integers(name, given, 0, LARGEST_POSITION), torch.int64
