"""Checks the parameters of a batch as columns: a few passes in C in place of a call for each value."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tokendraw.backends.description.capabilities import FILTER_ORDERS
from tokendraw.errors.exceptions import InvalidParameterError
from tokendraw.errors.formatting import type_name
from tokendraw.parameters.edits import check_edits, refuse_edits
from tokendraw.parameters.fields import PARAMETERS
from tokendraw.parameters.params import SamplingParams, check_params
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
_values_of = operator.attrgetter(*RequestColumns._fields)


def check_columns(params: Iterable[SamplingParams], *, may_edit: bool = False) -> RequestColumns:
    """Check the parameters of a batch.

    :param params: one entry a request.
    :param may_edit: whether requests may ask for edits of their logits, which are no part of the result.
    :raises InvalidParameterError: it names the field and the row; or they are no batch.
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
        rows.append(check_params(request, row))
        check(request, row)
    return RequestColumns(*zip(*rows, strict=True))


def _are_plain(columns: RequestColumns) -> bool:
    """Whether all values are in range and of Python's own types; else :func:`check_params` checks row by row."""
    if {*map(type, columns.filter_order)} != {str} or not {*columns.filter_order} <= {*FILTER_ORDERS}:
        return False
    for column, (are_in_range, least, largest, is_optional) in zip(columns, _RANGES, strict=False):
        values = [value for value in column if value is not None] if is_optional else column
        if not are_in_range(values, least, largest):
            return False
    return True
