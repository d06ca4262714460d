"""For samplers: the sums behind the moments of rows, the moments, and the combined floor of a batch from these."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from tokendraw.backends.description import MOMENTS, Moment
from tokendraw.backends.discovery.guard import format_origin, log_traceback, package_of
from tokendraw.backends.discovery.settings import is_debugging
from tokendraw.errors import FilterError, format_error, type_name
from tokendraw.filters.installed import Filter, RowMoments, find_filter

_INF = float("inf")


def combined_floor(names: Sequence[str], values: Tensor, moments: RowMoments) -> Tensor:
    """Compute the least y that the filters of each row keep: the highest of their floors.

    Waits for nothing, and can be captured in a CUDA graph.

    :param names: of the F filters of the batch, at least one.
    :param values: [rows, F] float32: the value of each filter in each row. ``off`` and NaN keep every token.
    :param moments: those that :func:`required_moments` names, at least.
    :returns: [rows] float32 in [-inf, 0]; -inf keeps every token.
    :raises FilterError: a filter raised, or returned another form; names the filter.
    """
    floors = []
    for raw, value, off in filter_floors(names, values, moments):
        floor = raw.nan_to_num(nan=-_INF, posinf=0.0, neginf=-_INF).clamp_(max=0.0)
        is_off = value.nan_to_num(nan=off, posinf=_INF, neginf=-_INF) == off
        floors.append(floor.masked_fill_(is_off, -_INF))
    return functools.reduce(torch.maximum, floors)


def filter_floors(
    names: Sequence[str], values: Tensor, moments: RowMoments
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Yield of each filter: its floors as returned, [rows] float32; its column of ``values``; the value that is off.

    For samplers that combine floors in a kernel of their own, by the rules of :func:`combined_floor`.

    :raises FilterError: a filter raised, or returned another form; names the filter.
    """
    for column, name in enumerate(names):
        rule, value = find_filter(name), values[:, column]
        yield _floor_of(rule, moments, value), value, rule.off


def _floor_of(rule: Filter, moments: RowMoments, value: Tensor) -> Tensor:
    """Call a filter's code; refuse a change of its arguments, and anything but [rows] float32 on their device."""
    # Other filters, rows and calls read the same tensors. Those of torch.inference_mode count no changes.
    given: dict[str, Any] = {name: each for name in MOMENTS if (each := getattr(moments, name)) is not None}
    given["value"] = value
    given = {name: each.clone() if each.is_inference() else each for name, each in given.items()}
    versions = {name: each._version for name, each in given.items() if not each.is_inference()}
    arguments = dict(given)
    value = arguments.pop("value")
    try:
        found = rule.floor(RowMoments(**arguments), value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        log_traceback(f"the filter {rule.name!r}", error, aloud=is_debugging())
        reason = f"its floor raised {format_error(error)}{format_origin(error, package_of(rule))}"
        raise _failed(rule, reason) from error
    for name, version in versions.items():
        if given[name]._version != version:
            raise _failed(rule, f"its floor changed {name!r} in place")
    if not isinstance(found, Tensor):
        raise _failed(rule, f"its floor needs to be a tensor, found {type_name(found)}")
    if (found.shape, found.dtype, found.device) != (value.shape, value.dtype, value.device):
        raise _failed(
            rule,
            f"its floor needs shape {list(value.shape)}, {value.dtype} on {value.device}, found "
            f"{list(found.shape)}, {found.dtype} on {found.device}",
        )
    return found


def _failed(rule: Filter, reason: str) -> FilterError:
    return FilterError(
        f"The filter {rule.name!r} failed, so nothing was drawn: {reason}. Report it to the author of the filter, "
        "or leave it out of SamplingParams.filters."
    )


MomentSum: TypeAlias = Literal["count", "mean", "squares", "mass", "entropy", "collision"]
"""A sum over the finite logits of some columns, with m the largest of these and ``w = exp((x - m) / T)``:

* count: their number;
* mean: of ``x - m``;
* squares: of the distances from that mean, summed;
* mass: of w;
* entropy: of ``w log w``;
* collision: of ``w^2``.
"""
_MOMENTS_OF_SUMS: dict[MomentSum, set[Moment]] = {
    "count": {"count", "mean", "std"},
    "mean": {"mean", "std"},
    "squares": {"std"},
    "mass": {"log_mass", "entropy", "collision"},
    "entropy": {"entropy"},
    "collision": {"collision"},
}


def required_sums(moments: Collection[Moment]) -> tuple[MomentSum, ...]:
    """Return the sums that moments need, always in the same order."""
    return tuple(name for name, readers in _MOMENTS_OF_SUMS.items() if readers & set(moments))


def moments_of_sums(
    sums: Mapping[MomentSum, Tensor], moments: Collection[Moment], inverse_temperature: Tensor
) -> RowMoments:
    """Compute the named moments of rows, and round them to float32 once.

    :param sums: those of :func:`required_sums`, [rows, 1] each, over all columns.
    :param inverse_temperature: [rows, 1] in the widest float.
    """
    found: dict[Moment, Tensor] = {}
    if "count" in sums:
        count = found["count"] = sums["count"]
        if "mean" in sums:
            found["mean"] = sums["mean"] * inverse_temperature
        if "squares" in sums:
            found["std"] = (sums["squares"] / count.clamp(min=1)).sqrt() * inverse_temperature
    if "mass" in sums:
        mass = sums["mass"]
        found["log_mass"] = mass.log()
        if "entropy" in sums:
            found["entropy"] = found["log_mass"] - sums["entropy"] / mass
        if "collision" in sums:
            found["collision"] = sums["collision"] / mass.square()
    return RowMoments(**{name: found[name].squeeze(-1).to(torch.float32) for name in moments})
