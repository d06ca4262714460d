"""Checks the parameters of a batch as columns, in a few passes in C, and gives them the dtypes of their tensors."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import torch

from tokendraw._torch.upload import Column
from tokendraw.backends.description.capabilities import FILTER_ORDERS
from tokendraw.errors.exceptions import InvalidParameterError
from tokendraw.errors.formatting import type_name
from tokendraw.parameters.edits import check_edits, refuse_edits
from tokendraw.parameters.fields import PARAMETERS, SLOT_FIELDS
from tokendraw.parameters.params import SamplingParams, stored_values
from tokendraw.parameters.ranges import are_integers, are_reals, each, of_row


class RequestColumns(NamedTuple):
    """The parameters of a batch, an entry a request, each in range and as stored in a tensor."""

    temperature: Sequence[float]
    top_k: Sequence[int]
    top_p: Sequence[float]
    min_p: Sequence[float]
    seed: Sequence[int | None]
    logprobs: Sequence[int | None]
    filter_order: Sequence[str]


_RANGES = [
    (are_reals if p.kind == "real" else are_integers, p.least, min(p.largest, p.max_stored), p.is_optional)
    for p in PARAMETERS
]
_REQUIRED = tuple(parameter.name for parameter in PARAMETERS if not parameter.is_optional)
_values_of = operator.attrgetter(*RequestColumns._fields)


def check_columns(params: Iterable[SamplingParams], *, may_edit: bool = False) -> RequestColumns:
    """Check the parameters of a batch.

    :param params: one entry a request.
    :param may_edit: whether requests may ask for edits of their logits, which are no part of the result.
    """
    check = check_edits if may_edit else refuse_edits
    if isinstance(params, SamplingParams):
        raise InvalidParameterError(
            "'params' needs one SamplingParams a request, found a single SamplingParams. Pass [params]."
        )
    requests = list(each("params", params, "SamplingParams"))
    if not requests:
        return RequestColumns((), (), (), (), (), (), ())
    if all(issubclass(kind, SamplingParams) for kind in {*map(type, requests)}):
        columns = RequestColumns(*zip(*map(_values_of, requests), strict=True))
        if _are_plain(columns):
            for row, request in enumerate(requests):
                if request.may_edit:
                    check(request, row)
            return columns._replace(
                temperature=[value + 0.0 for value in columns.temperature],  # -0.0 is 0.0
                top_k=[max(0, k) for k in columns.top_k],
                seed=[seed if seed is None or seed < 2**63 else seed - 2**64 for seed in columns.seed],
            )
    rows = []
    for row, request in enumerate(requests):  # row by row, so that the first wrong one is named
        if not isinstance(request, SamplingParams):
            raise InvalidParameterError(
                f"'params'{of_row(row)} needs a tokendraw.SamplingParams, found {type_name(request)}. "
                "Make one a request: SamplingParams(temperature=..., top_k=...)."
            )
        rows.append(stored_values(request, row).values())
        check(request, row)
    return RequestColumns(*zip(*rows, strict=True))


def _are_plain(columns: RequestColumns) -> bool:
    """Whether all values are in range and of Python's own types; else :func:`stored_values` checks row by row."""
    if {*map(type, columns.filter_order)} != {str} or not {*columns.filter_order} <= {*FILTER_ORDERS}:
        return False
    for column, (are_in_range, least, largest, is_optional) in zip(columns, _RANGES, strict=False):
        values = [value for value in column if value is not None] if is_optional else column
        if not are_in_range(values, least, largest):
            return False
    return True


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
