"""Checks the parameters of a batch as columns, in a few passes in C, and gives them the dtypes of their tensors."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any

import torch

from tokendraw._torch.tensors import Column
from tokendraw.backends.description.capabilities import FILTER_ORDERS
from tokendraw.errors.exceptions import InvalidParameterError
from tokendraw.errors.formatting import type_name
from tokendraw.filters.installed import find_filter
from tokendraw.output import PAD_TOKEN_ID
from tokendraw.parameters.edits import check_edits, read_ids, refuse_edits
from tokendraw.parameters.fields import (
    COLUMNS,
    FILTER_PARAMETERS,
    FILTER_PREFIX,
    PARAMETERS,
    SLOT_FIELDS,
    Columns,
)
from tokendraw.parameters.params import SamplingParams, read_filters, stored_values
from tokendraw.parameters.ranges import are_integers, are_reals, each, of_row

_RANGES = [
    (are_reals if p.kind == "real" else are_integers, p.least, min(p.largest, p.max_stored), p.is_optional)
    for p in PARAMETERS
]
_REQUIRED = ("temperature", "top_k", "top_p", "min_p")
_RARE = [(p.name, p.neutral) for p in FILTER_PARAMETERS if p.name not in _REQUIRED]
_values_of = operator.attrgetter(*COLUMNS)


def check_columns(params: Iterable[SamplingParams], *, may_edit: bool = False) -> Columns:
    """Check the parameters of a batch, and return them as stored in tensors.

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
        return dict.fromkeys(COLUMNS, ())
    kinds = {*map(type, requests)}
    if kinds == {SamplingParams} or all(issubclass(kind, SamplingParams) for kind in kinds):
        entries = zip(*map(_values_of, requests), strict=True)
        columns: dict[str, Sequence[Any]] = dict(zip(COLUMNS, entries, strict=True))
        if _are_plain(columns):
            for row, request in enumerate(requests):
                if request.may_edit:
                    check(request, row)
            columns["temperature"] = [value + 0.0 for value in columns["temperature"]]  # -0.0 is 0.0
            columns["top_k"] = [max(0, k) for k in columns["top_k"]]
            columns["seed"] = [s if s is None or s < 2**63 else s - 2**64 for s in columns["seed"]]
            columns |= _given_ids(columns)
            columns["filters"] = [
                () if filters is None else read_filters(filters, row)
                for row, filters in enumerate(columns["filters"])
            ]
            return columns
    rows = []
    for row, request in enumerate(requests):  # row by row, so that the first wrong one is named
        if not isinstance(request, SamplingParams):
            raise InvalidParameterError(
                f"'params'{of_row(row)} needs a tokendraw.SamplingParams, found {type_name(request)}. "
                "Make one a request: SamplingParams(temperature=..., top_k=...)."
            )
        rows.append(stored_values(request, row).values())
        check(request, row)
    return dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))


def _are_plain(columns: Columns) -> bool:
    """Whether all values are in range and of Python's own types; else :func:`stored_values` checks row by row."""
    orders = columns["filter_order"]
    if {*map(type, orders)} != {str} or not {*orders} <= {*FILTER_ORDERS}:
        return False
    for column, (are_in_range, least, largest, is_optional) in zip(columns.values(), _RANGES, strict=False):
        values = [value for value in column if value is not None] if is_optional else column
        if not are_in_range(values, least, largest):
            return False
    return True


def _given_ids(columns: Columns) -> dict[str, Sequence[Any]]:
    """Return the checked ids of each request, and ``logprobs``, which is 0 where there are ids alone."""
    found, logprobs = columns["logprob_token_ids"], columns["logprobs"]
    if found.count(None) == len(found):
        return {"logprob_token_ids": [()] * len(found)}
    given_ids = [tuple(read_ids("logprob_token_ids", ids, row, None)) for row, ids in enumerate(found)]
    return {
        "logprob_token_ids": given_ids,
        "logprobs": [0 if n is None and ids else n for n, ids in zip(logprobs, given_ids, strict=True)],
    }


@cache
def field_dtypes(device_type: str) -> dict[str, torch.dtype]:
    """Return the dtype of each field with an entry a slot, on devices of a type."""
    real = torch.float32 if device_type == "mps" else torch.float64  # so that 0.9 stays 0.9
    dtypes = {"real": real, "integer": torch.int64, "flag": torch.bool}
    return {name: dtypes[kind] for name, kind in SLOT_FIELDS.items()}


def parameter_columns(columns: Columns, device: torch.device) -> dict[str, Column]:
    """Return a column [slots] for each field of the metadata that a request uses, 0 for None."""
    dtypes = field_dtypes(device.type)
    seeds, orders, logprobs = columns["seed"], columns["filter_order"], columns["logprobs"]
    uploads: dict[str, Column] = {name: (columns[name], dtypes[name]) for name in _REQUIRED}
    has_seed = [seed is not None for seed in seeds]
    if any(has_seed):
        uploads["seed"] = [seed or 0 for seed in seeds], dtypes["seed"]
        uploads["seeded"] = has_seed, dtypes["seeded"]
    for name, neutral in _RARE:
        if columns[name].count(neutral) < len(columns[name]):
            uploads[name] = columns[name], dtypes[name]
    if "xtc_probability" in uploads:
        uploads["xtc_threshold"] = columns["xtc_threshold"], dtypes["xtc_threshold"]
    for flag in ("joint", "temperature_last"):
        if flag in orders:
            uploads[flag] = [order == flag for order in orders], dtypes[flag]
    if logprobs.count(None) < len(logprobs):
        uploads["logprobs"] = [n or 0 for n in logprobs], dtypes["logprobs"]
    given_ids = columns["logprob_token_ids"]
    width = max(map(len, given_ids), default=0)
    if width:  # [slots * M]
        padded_ids = [[*ids, *[PAD_TOKEN_ID] * (width - len(ids))] for ids in given_ids]
        uploads["logprob_token_ids"] = [*chain.from_iterable(padded_ids)], torch.int64
    return uploads | _filter_columns(columns["filters"])


def _filter_columns(filters: Sequence[tuple[tuple[str, float], ...]]) -> dict[str, Column]:
    """Return a column [slots] for each filter from moments that a request uses."""
    if not any(filters):
        return {}
    by_slot = [dict(active) for active in filters]
    return {
        f"{FILTER_PREFIX}{name}": (
            [values.get(name, off) for values in by_slot],
            torch.float32,
        )
        for name in sorted({name for values in by_slot for name in values})
        for off in (find_filter(name).off,)
    }
