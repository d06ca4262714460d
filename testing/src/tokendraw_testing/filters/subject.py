"""The filter under test, with values for rows and samplers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

import tokendraw
from tokendraw import InvalidParameterError, SamplingParams, TokendrawError
from tokendraw.filters import Filter, InstalledFilter, find_filter, installed_filters
from tokendraw.resolution import State, detect_host
from tokendraw.tools import all_of, find_device
from tokendraw_testing.filters.definitions import SHIPPED, Definition
from tokendraw_testing.filters.filter_rows import FilterRow, make_rows, reference_floors_of
from tokendraw_testing.kit.effort import Effort
from tokendraw_testing.kit.subject import Subject
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.subjects import SampleSubject

_VALUES: Final = (
    (1e-4, 3e-4, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 40.0, 100.0),
    (-0.1, -0.5, -1.0, -3.0, 0.0),
)
"""Rows ask for those of the first list that ``check`` takes, or else for those of the second."""
_MOST_VALUES: Final = 4
"""Values that samplers draw with."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterSubject:
    """A filter under test.

    :ivar record: Where the filter comes from.
    :ivar rule: The filter.
    :ivar values: Values that requests ask for.
    :ivar definition: Definition in float64; None: unknown.
    :ivar device: Device that the samplers draw on.
    :ivar effort: Sizes of the run.
    :ivar samplers: Samplers that compute the moments there, by name.
    :ivar native: native, which is compared with all others; None where it does not serve.
    """

    record: InstalledFilter
    rule: Filter
    values: tuple[float, ...]
    definition: Definition | None
    device: torch.device
    effort: Effort
    samplers: Mapping[str, SampleSubject]
    native: SampleSubject | None

    def rows(self, trial: Trial) -> list[FilterRow]:
        """Make float32 rows of every design for all values."""
        sizes = (33, 1025) if self.effort.quick else (33, 1025, 5003)
        return make_rows(trial.generator("rows"), sizes, [torch.float32], self.values)

    @functools.cached_property
    def telling_values(self) -> tuple[float, ...]:
        """Return a few values; if possible, values with a kept set between the largest token and the row."""
        rng = np.random.default_rng(0)
        rows = [row for row in make_rows(rng, [1025], [torch.float32], self.values) if row.design == "bell"]
        kept = [
            (row.y >= floor).mean()
            for row, floor in zip(rows, reference_floors_of(self.rule, rows), strict=True)
        ]
        telling = [row.value for row, share in zip(rows, kept, strict=True) if 1.5 / 1025 < share < 1]
        values = telling or list(self.values)
        return tuple(values[:: -(-len(values) // _MOST_VALUES)])

    def params(self, value: float, **fields: Any) -> SamplingParams:
        """Make a request for the filter."""
        return SamplingParams(filters={self.rule.name: value}, **fields)


def find_record(name: str) -> InstalledFilter:
    """Find an installed filter by name.

    :raises TokendrawError: there is none that can be used; the message has the nearest name, or the reason.
    """
    try:
        find_filter(name)
    except InvalidParameterError as error:
        words = str(error).replace(
            "'filters' needs names of installed filters", "'filter' needs an installed filter"
        )
        raise TokendrawError(words.replace("'filters' names", "'filter' names")) from error
    (record,) = [each for each in installed_filters() if each.name == name and each.state is State.AVAILABLE]
    return record


def make_subject(
    name: str,
    *,
    sampler: str | None,
    device: str | torch.device | None,
    quick: bool,
    seed: int,
    values: Sequence[float],
    definition: Definition | None,
) -> FilterSubject:
    """Find the filter and the samplers.

    :raises InvalidParameterError: the filter refuses one of the ``values``.
    :raises TokendrawError: no such filter can be used; or no sampler, or not the named one, computes its moments on the
        device.
    """
    record, rule = find_record(name), find_filter(name)
    target, _ = find_device(device)
    candidates = _serving(target, quick=quick, seed=seed)
    able = {each: view for each, view in candidates.items() if _has_moments(view, rule)}
    samplers = {each: view for each, view in able.items() if sampler in (None, each)}
    if not samplers:
        raise TokendrawError(_missing_sampler(rule, sampler, target, candidates))
    return FilterSubject(
        record=record,
        rule=rule,
        values=_accepted(name, values),
        definition=definition or (SHIPPED.get(name) if record.distribution == "tokendraw" else None),
        device=target,
        effort=Effort.of(quick=quick, device_type=target.type),
        samplers=samplers,
        native=able.get("native"),
    )


def _serving(device: torch.device, *, quick: bool, seed: int) -> dict[str, SampleSubject]:
    """Find the samplers that serve this device, by name."""
    names = [c.name for c in tokendraw.discover(host=detect_host(str(device))) if c.state is State.AVAILABLE]
    subjects = {
        name: Subject.installed(name, device=device, quick=quick, seed=seed, operation="sample")
        for name in sorted(names, key=lambda name: (name != "native", name))
    }
    return {name: SampleSubject(subject) for name, subject in subjects.items()}


def _has_moments(view: SampleSubject, rule: Filter) -> bool:
    return {*rule.moments} <= {*view.capabilities.row_moments}


def _missing_sampler(
    rule: Filter, sampler: str | None, device: torch.device, candidates: Mapping[str, SampleSubject]
) -> str:
    """Name the moments without a sampler."""
    moments = f"the moments {all_of(rule.moments)}" if rule.moments else "filters from moments"
    if sampler in candidates:
        found = all_of(candidates[str(sampler)].capabilities.row_moments)
        return (
            f"{sampler!r} needs {moments} for the filter {rule.name!r}, found {found}. Name another sampler."
        )
    if sampler is not None:
        found = all_of(candidates)
        return f"{sampler!r} needs to be an installed sampler that serves {device}, found {found}. Name one of them."
    return f"The filter {rule.name!r} needs a sampler with {moments} on {device}, found none; install tokendraw-native."


def _accepted(name: str, values: Sequence[float]) -> tuple[float, ...]:
    """Return the active values among those that a filter takes.

    :raises InvalidParameterError: it refuses a value that was asked for, or all of the usual ones.
    """
    for value in values:
        SamplingParams(filters={name: value}).check()
    lists = [tuple(value for value in each if _is_active(name, value)) for each in (values, *_VALUES)]
    accepted = next((each for each in (lists[:1] if values else lists) if each), ())
    if not accepted:
        raise InvalidParameterError(
            f"The filter {name!r} needs values to be checked with, found none that it takes among the usual ones. "
            "Give some by --value."
        )
    return tuple(float(np.float32(value)) for value in accepted)


def _is_active(name: str, value: float) -> bool:
    try:
        params = SamplingParams(filters={name: value}).check()
    except TokendrawError:
        return False
    return tokendraw.SamplingMetadata.from_params([params]).filters is not None
