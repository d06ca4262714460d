"""Lines about a filter by itself: values, form and numbers of the floor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendraw import InvalidParameterError, SamplingParams, TokendrawError
from tokendraw.filters import Filter, RowMoments
from tokendraw.tools import format_value
from tokendraw_testing.filters.filter_rows import FilterRow, moments_of, reference_floors_of, values_of
from tokendraw_testing.filters.floor_calls import (
    call_floor,
    floors,
    form_of,
    place_of,
    read_moments,
    rounding,
)
from tokendraw_testing.filters.host_reads import NoHostReads
from tokendraw_testing.filters.subject import FilterSubject
from tokendraw_testing.kit.device import capture, require_no_wait
from tokendraw_testing.kit.inputs import require_unmodified
from tokendraw_testing.kit.trial import Trial

_NO_VALUES: tuple[Any, ...] = (
    np.nan,
    np.inf,
    -np.inf,
    None,
    True,
    "1",
    b"1",
    [1.0],
    {},
    1j,
    10**400,
    object(),
)
_ROUNDING = 1e-9
"""Tokens closer to a floor than this, relative to its size, are left to the rounding of float64."""


def values(subject: FilterSubject, trial: Trial) -> str:
    """``check`` refuses anything but numbers in words that name the filter, and takes ``off``."""
    name = subject.rule.name
    for value in _NO_VALUES:
        shown = format_value(value)
        try:
            SamplingParams(filters={name: value}).check()
        except InvalidParameterError as error:
            trial.require(
                name in str(error), f"the refusal of {shown} needs the filter's name, found: {error}"
            )
        except TokendrawError as error:
            trial.require(False, f"'check' needs to refuse {shown} by InvalidParameterError, found: {error}")
        else:
            trial.require(False, f"'check' needs to refuse {shown}, found it taken")
    off = subject.rule.off
    try:
        SamplingParams(filters={name: off}).check()
    except TokendrawError as error:
        trial.require(False, f"'check' needs to take {off!r}, the value that is off, found: {error}")
    return f"{len(_NO_VALUES)} refused, {len(subject.values)} taken, such as {subject.values[0]:g}"


def form(subject: FilterSubject, trial: Trial) -> str:
    """``floor`` returns [rows] float32 on the device of the moments, for any number of rows, and changes none."""
    rule, rows = subject.rule, subject.rows(trial)
    for count in (len(rows), 1, 2, 0):
        moments, value = _float32(rule, rows[:count], subject.device)
        with require_unmodified(trial, moments=moments, value=value):
            found = call_floor(rule, moments, value)
        _require_form(trial, rule, found, value)
    return f"{len(rows)} rows, 1, 2 and none, on {subject.device}"


def no_waiting(subject: FilterSubject, trial: Trial) -> str:
    """``floor`` reads no value on the host, so that nothing waits for a device."""
    rule = subject.rule
    moments, value = _float32(rule, subject.rows(trial), subject.device)
    with NoHostReads():
        call_floor(rule, moments, value)
    if subject.device.type != "cuda":
        return "each operation of torch"
    require_no_wait(trial, f"{place_of(rule)}: a call", lambda: rule.floor(moments, value))
    replay, output = capture(lambda: rule.floor(moments, value))
    replay()
    trial.require(
        torch.equal(output.nan_to_num(), rule.floor(moments, value).nan_to_num()),
        f"{place_of(rule)} needs the floors of a call when a CUDA graph replays it, found others",
    )
    return "each operation of torch, a busy device, a CUDA graph"


def rows_apart(subject: FilterSubject, trial: Trial) -> str:
    """The floor of a row follows from its own moments and value: rows may come in any parts and order."""
    rule, rows = subject.rule, subject.rows(trial)
    moments, value = _float32(rule, rows, torch.device("cpu"))
    together = floors(rule, moments, value)
    order = torch.from_numpy(trial.generator("order").permutation(len(rows)))
    for part in (order, order[:1], order[: len(rows) // 2], order[-3:]):
        some = RowMoments(**{name: getattr(moments, name)[part] for name in rule.moments})
        found = floors(rule, some, value[part])
        bad = _first((found - together[part]).nan_to_num().abs() > rounding(some, together[part]))
        if bad is not None:
            trial.require(
                False,
                f"{place_of(rule)} needs {together[part][bad]:.6g} for {rows[part[bad]]}, alone or among others, "
                f"found {found[bad]:.6g} among {len(part)}",
            )
    return f"{len(rows)} rows, whole and in parts"


def floors_in_float64(subject: FilterSubject, trial: Trial) -> str:
    """Floors from float32 moments are those from float64 moments, up to the rounding of float32."""
    rule, rows = subject.rule, subject.rows(trial)
    exact = moments_of(rule, rows)
    needed = floors(rule, exact, values_of(rows))
    moments, value = _float32(rule, rows, torch.device("cpu"))
    found = floors(rule, moments, value)
    is_same = (found == needed) | ((found - needed).abs() <= rounding(exact, needed))
    bad = _first(~is_same)
    if bad is not None:
        trial.require(
            False,
            f"{place_of(rule)} needs {needed[bad]:.8g} for {rows[bad]}, found {found[bad]:.8g} in float32",
        )
    return f"{len(rows)} rows of {len({row.design for row in rows})} designs, {len(subject.values)} values"


def definition(subject: FilterSubject, trial: Trial) -> str:
    """The floors keep the tokens of the definition in float64, and the largest."""
    define = subject.definition
    if define is None:
        trial.skip("needs a definition in float64, found none; give one by --definition FILE:FUNCTION")
    rows = subject.rows(trial)
    for row, floor in zip(rows, reference_floors_of(subject.rule, rows), strict=True):
        y = row.y
        needed = np.asarray(define(y.copy(), row.value))
        trial.require(
            needed.shape == y.shape and needed.dtype == bool,
            f"the definition needs to return [{len(y)}] bool, found {list(needed.shape)} {needed.dtype}",
        )
        is_clear = np.abs(y - floor) > _ROUNDING * max(1.0, abs(floor)) if floor > -np.inf else y < 0
        wrong = np.flatnonzero((needed != (y >= floor)) & is_clear & (y < 0))
        if len(wrong):
            trial.require(
                False,
                f"{place_of(subject.rule)}: {row}: a floor of {floor:.6g} keeps {int((y >= floor).sum())} tokens, "
                f"the definition {int((needed | (y == 0)).sum())}; they differ in the token at y = {y[wrong[0]]:.6g}",
            )
    return f"{len(rows)} rows, kept sets as defined"


def reach(subject: FilterSubject, trial: Trial) -> str:
    """Some value keeps more than the largest token of a row and drops others."""
    rows = subject.rows(trial)
    found = reference_floors_of(subject.rule, rows)
    counts = [
        (int((row.y >= floor).sum()), int((row.y == 0).sum())) for row, floor in zip(rows, found, strict=True)
    ]
    partial = sum(tied < count < len(row.y) for row, (count, tied) in zip(rows, counts, strict=True))
    whole = sum(count == len(row.y) for row, (count, _) in zip(rows, counts, strict=True))
    above = sum(floor == 0 for floor in found)
    trial.require(
        partial,
        f"{place_of(subject.rule)} needs to keep several tokens and to drop others in some row, found all kept in "
        f"{whole} of {len(rows)} rows, and a floor at or above the largest in {above}; name values by --value if "
        "these are not the filter's",
    )
    return f"{partial} of {len(rows)} rows keep several tokens and drop others"


def _float32(rule: Filter, rows: list[FilterRow], device: torch.device) -> tuple[RowMoments, Tensor]:
    """Return moments and values as samplers pass them."""
    exact = moments_of(rule, rows)
    moments = read_moments(rule, lambda name: getattr(exact, name).float().to(device))
    return moments, values_of(rows, torch.float32).to(device)


def _require_form(trial: Trial, rule: Filter, found: Any, value: Tensor) -> None:
    needed = f"shape {list(value.shape)}, {value.dtype} on {value.device}"
    trial.require(
        form_of(found) == needed, f"{place_of(rule)} needs to return {needed}, found {form_of(found)}"
    )


def _first(mask: Tensor) -> int | None:
    """Return the index of the first True."""
    hits = mask.nonzero()
    return int(hits[0]) if len(hits) else None
