"""``check_filter``: a filter from moments by itself, and the rows of samplers that draw with it.

The lines of samplers are the kit's own with this filter in place of the shipped ones, and its floors from float64
moments. The core refuses floors of another form, exceptions and changed arguments in any call.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

import tokendraw
from tokendraw import InvalidParameterError, SamplingParams, TokendrawError
from tokendraw.filters import (
    Filter,
    FilterError,
    InstalledFilter,
    RowMoments,
    combined_floor,
    filter_floors,
    find_filter,
    installed_filters,
)
from tokendraw.resolution import State, detect_host
from tokendraw.tools import all_of, find_device, one_of
from tokendraw_testing import reference, reference_filters
from tokendraw_testing.cases.requests import Fields
from tokendraw_testing.cases.rows import floor_designs
from tokendraw_testing.kit.device import require_no_wait
from tokendraw_testing.kit.report import Line, Report, Status
from tokendraw_testing.kit.run import attempt
from tokendraw_testing.kit.subject import Subject
from tokendraw_testing.kit.trial import FALSE_ALARM, Trial, Violation
from tokendraw_testing.sample import judge_further
from tokendraw_testing.statistics.draws import fit_experiment
from tokendraw_testing.subjects import SampleSubject, VerifySubject
from tokendraw_testing.verify import judge_further as judge_verifications

Array = NDArray[Any]
Definition: TypeAlias = Callable[[Array, float], Array]
"""Marks the kept tokens [n] bool of y [n] float64, the finite logits of a row with 0 the largest, for a value."""

_VALUES: Final = (
    (1e-4, 3e-4, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 40.0, 100.0),
    (-0.1, -0.5, -1.0, -3.0, 0.0),
)
"""Rows ask for those of the first list that ``check`` takes, or else for those of the second."""
_MOST_VALUES: Final = 2
"""Values that samplers draw with."""
_ROUNDING: Final = 1e-9
"""Tokens closer to a floor than this, relative to its size, are left to the rounding of float64."""


class _Row(NamedTuple):
    design: str
    y: Array
    """Of the finite logits, [n] float64."""
    value: float
    moments: reference_filters.Moments

    def __str__(self) -> str:
        return f"{self.design}, {len(self.y)} finite logits, value {self.value:g}"


@dataclass(frozen=True, kw_only=True, repr=False)
class FilterReport(Report):
    """The lines of a filter: a :class:`Report` whose ``sampler`` has the names of all samplers that drew.

    :ivar filter: The filter and where it comes from.
    :ivar samplers: Names of the samplers that drew.
    :ivar values: Values that rows asked for.
    """

    filter: InstalledFilter
    samplers: tuple[str, ...]
    values: tuple[float, ...]

    @property
    def title(self) -> str:
        """Name the filter and the samplers."""
        return f"{self.filter.name} with {self.sampler}"


@dataclass(frozen=True)
class _Check:
    """The lines of a filter, each a method."""

    rule: Filter
    values: tuple[float, ...]
    definition: Definition | None
    device: torch.device
    rows: list[_Row]

    def arguments(
        self, rows: Sequence[_Row], dtype: torch.dtype, device: torch.device | str
    ) -> tuple[list[str], torch.Tensor, RowMoments]:
        """Return the arguments of ``combined_floor``, from moments in a dtype."""

        def column(values: Iterable[float]) -> torch.Tensor:
            return torch.tensor(list(values), dtype=torch.float64).to(device, dtype)

        fields = {name: "number" if name == "count" else name for name in self.rule.moments}
        moments = {name: column(getattr(r.moments, field) for r in rows) for name, field in fields.items()}
        return [self.rule.name], column(row.value for row in rows).unsqueeze(1), RowMoments(**moments)

    def floors(
        self, rows: Sequence[_Row], dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> list[float]:
        """Compute the clamped floors of rows."""
        found: list[float] = combined_floor(*self.arguments(rows, dtype, device)).tolist()
        return found

    @functools.cached_property
    def exact(self) -> list[float]:
        """Return the floor of each row from float64 moments."""
        return self.floors(self.rows, torch.float64)

    def floor_of(self, value: float, moments: reference_filters.Moments) -> float:
        """Return the floor of a row from float64 moments."""
        return self.floors([_Row("", np.zeros(0), value, moments)], torch.float64)[0]

    def form(self, trial: Trial) -> str:
        """``floor`` returns [rows] float32 on the device of the moments, for any number of rows, and changes none."""
        for count in (len(self.rows), 1, 2, 0):
            self.floors(self.rows[:count], torch.float32, self.device)
        return f"{len(self.rows)} rows, 1, 2 and none, on {self.device}"

    def no_waiting(self, trial: Trial) -> str:
        """``floor`` reads no value on the host, so that nothing waits for a device."""
        try:
            # Tensors of this device have no values to read.
            list(filter_floors(*self.arguments(self.rows, torch.float32, "meta")))
        except FilterError as error:
            raise Violation(f"needs a floor that reads no value on the host, found: {error}") from error
        if self.device.type == "cuda":
            given = self.arguments(self.rows, torch.float32, self.device)
            require_no_wait(trial, f"the floor of {self.rule.name!r}", lambda: combined_floor(*given))
        return f"moments without values, and a call on {self.device}"

    def float64(self, trial: Trial) -> str:
        """Floors from float32 moments, of rows in any parts and order, are those from float64 moments."""
        order = trial.generator("order").permutation(len(self.rows)).tolist()
        for part in (order, order[:1], order[: len(order) // 2], order[-3:]):
            found = self.floors([self.rows[i] for i in part], torch.float32)
            for i, floor in zip(part, found, strict=True):
                row, needed = self.rows[i], self.exact[i]
                sizes = (1.0, needed if np.isfinite(needed) else 0.0, *row.moments[1:5])
                trial.require(
                    floor == needed
                    or abs(floor - needed) <= reference_filters.FLOOR_EDGE * max(map(abs, sizes)),
                    f"the floor of {self.rule.name!r} needs to be {needed:.8g} for {row}, found {floor:.8g} in float32 "
                    f"among {len(part)} rows",
                )
        return f"{len(self.rows)} rows, whole and in parts, {len(self.values)} values"

    def defined(self, trial: Trial) -> str:
        """The floors keep the tokens of the definition in float64, and the largest."""
        if self.definition is None:
            trial.skip("needs a definition in float64, found none; give one by --definition FILE:FUNCTION")
        for row, floor in zip(self.rows, self.exact, strict=True):
            y, needed = row.y, np.asarray(self.definition(row.y.copy(), row.value))
            trial.require(
                needed.shape == y.shape and needed.dtype == bool,
                f"the definition needs to return [{len(y)}] bool, found {list(needed.shape)} {needed.dtype}",
            )
            is_clear = np.abs(y - floor) > _ROUNDING * max(1.0, abs(floor)) if floor > -np.inf else y < 0
            wrong = np.flatnonzero((needed != (y >= floor)) & is_clear & (y < 0))
            trial.require(
                not len(wrong),
                f"{row}: a floor of {floor:.6g} keeps {(y >= floor).sum()} tokens, the definition "
                f"{(needed | (y == 0)).sum()}; they differ in the token at y = {y[wrong[:1]]}",
            )
        return f"{len(self.rows)} rows, kept sets as defined"

    def partial(self, row: _Row, floor: float) -> bool:
        """Whether a row keeps more than its largest tokens and drops others."""
        return bool((row.y == 0).sum() < (row.y >= floor).sum() < len(row.y))

    def reach(self, trial: Trial) -> str:
        """Some value keeps more than the largest token of a row and drops others."""
        count = sum(map(self.partial, self.rows, self.exact))
        trial.require(
            count,
            f"the floor of {self.rule.name!r} needs to keep several tokens and to drop others in some row, found all "
            f"kept or the largest alone in {len(self.rows)} rows; name values by --value if these are not the filter's",
        )
        return f"{count} of {len(self.rows)} rows keep several tokens and drop others"

    @functools.cached_property
    def requests(self) -> list[dict[str, Any]]:
        """Return fields of requests for a few values, if possible ones that drop some tokens of a bell."""
        pairs = [(r, floor) for r, floor in zip(self.rows, self.exact, strict=True) if r.design == "bell"]
        told = dict.fromkeys(r.value for r, floor in pairs if self.partial(r, floor))
        values = list(told) or self.values
        return [{"filters": {self.rule.name: value}} for value in values[:: -(-len(values) // _MOST_VALUES)]]

    @property
    def fields(self) -> list[Fields]:
        """Return the same fields as the kit's cases take them."""
        return [functools.partial(_given, request) for request in self.requests]

    def sampled(self, subject: Subject, trial: Trial) -> str:
        """Rows keep and draw what the floors from float64 moments say, beside min-p, top-p and top-k."""
        return judge_further(SampleSubject(subject), trial, self.fields)

    def verified(self, subject: Subject, trial: Trial) -> str:
        """Seeded chains of drafts are those of rows with these floors; so are drafts, and their probabilities."""
        c: Any = subject.capabilities.get("verify")
        if c is None or c.seeding != "counter" or not {*self.rule.moments} <= {*c.row_moments}:
            trial.skip("needs a sampler that verifies drafts with seeds and these moments, found none")
        return judge_verifications(VerifySubject(subject), trial, self.fields)

    def distribution(self, subject: Subject, trial: Trial) -> str:
        """Kept tokens are drawn by their renormalised probabilities, all others never."""
        rng, view, count = trial.generator("rows"), SampleSubject(subject), 0
        for request in self.requests:
            params = SamplingParams(temperature=(1.0, 1.75)[count % 2], **request)
            logits = torch.from_numpy(rng.normal(0.0, 1.5, 40).astype(np.float32))
            row = reference.prepare(logits.double().numpy(), params)
            if row.certain:
                experiment = fit_experiment(view, logits, params, np.exp(row.y) * row.kept)
                trial.judge(f"{request}", experiment, view.effort.tiled_draws)
                count += 1
        return f"{count} rows of 40 tokens"


_FLOOR_LINES: Final[Mapping[str, Callable[[_Check, Trial], str]]] = {
    "form of the floor": _Check.form,
    "no waiting": _Check.no_waiting,
    "floors in float64": _Check.float64,
    "definition": _Check.defined,
    "reach": _Check.reach,
}
_SAMPLER_LINES: Final[Mapping[str, Callable[[_Check, Subject, Trial], str]]] = {
    "filters from moments": _Check.sampled,
    "verify filters from moments": _Check.verified,
    "distribution": _Check.distribution,
}


def check_filter(
    name: str,
    sampler: str | None = None,
    *,
    device: str | torch.device | None = None,
    quick: bool = False,
    seed: int = 0,
    values: Sequence[float] = (),
    definition: Definition | None = None,
    only: Iterable[str] = (),
    finished: Callable[[Line], None] = lambda line: None,
) -> FilterReport:
    """Check an installed filter from moments, as ``tokendraw check --filter`` does.

    :param name: of the filter.
    :param sampler: that draws with it; None: every installed one that computes the moments on the device.
    :param device: None: the accelerator if torch sees one, else the CPU.
    :param values: of the filter that rows ask for; (): those of a list of numbers that the filter takes.
    :param definition: marks the kept tokens [n] bool of y [n] float64, the finite logits of a row, for a value; None:
        known for tokendraw's own filters alone.
    :param only: names of lines; (): all.
    :param finished: called with each line when it is complete.
    :raises InvalidParameterError: the filter refuses a value, or there is no line of a name.
    :raises TokendrawError: no such filter can be used, or no sampler computes its moments on the device.
    """
    start = time.perf_counter()
    record, rule, (target, _) = _record(name), find_filter(name), find_device(device)
    subjects = _samplers(rule, sampler, target, quick=quick, seed=seed)
    values = _accepted(name, values)
    is_shipped = record.distribution == "tokendraw"
    rows = _rows(np.random.default_rng(seed), (33, 1025) if quick else (33, 1025, 5003), values)
    definition = definition or (functools.partial(_shipped, name) if is_shipped else None)
    check = _Check(rule, values, definition, target, rows)
    looks = {each: functools.partial(look, check) for each, look in _FLOOR_LINES.items()} | {
        f"{each}, {drawn}": functools.partial(look, check, subject)
        for drawn, subject in subjects.items()
        for each, look in _SAMPLER_LINES.items()
    }
    abouts, lines = line_names(subjects), list[Line]()
    with nullcontext() if is_shipped else reference_filters.given_floor(name, check.floor_of):
        for line in _select(looks, only):
            has_form = all(
                each.status is not Status.FAILED for each in lines if each.name == "form of the floor"
            )
            look = looks[line] if has_form else _without_form
            lines.append(attempt(look, line, abouts[line], Trial(f"{name}/{line}", seed), target))
            finished(lines[-1])
    return FilterReport(
        sampler=all_of(subjects),
        device=str(target),
        quick=quick,
        seed=seed,
        false_alarm=FALSE_ALARM,
        lines=tuple(lines),
        elapsed=time.perf_counter() - start,
        filter=record,
        samplers=tuple(subjects),
        values=values,
    )


def line_names(samplers: Iterable[str] = ()) -> dict[str, str]:
    """Return the demand of each line by name, for some samplers."""
    looks = {**_FLOOR_LINES, **{f"{n}, {s}": look for s in samplers for n, look in _SAMPLER_LINES.items()}}
    return {name: (look.__doc__ or "").splitlines()[0] for name, look in looks.items()}


def _given(fields: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return fields


def _without_form(trial: Trial) -> str:
    trial.skip("needs a floor of the right form, found none")


def _select(lines: Iterable[str], only: Iterable[str]) -> list[str]:
    """Pick lines by name; a name without its sampler picks those of all samplers."""
    names, wanted = list(lines), {*only}
    if unknown := wanted - {part for line in names for part in (line, line.partition(", ")[0])}:
        known = one_of(map(repr, names))
        raise InvalidParameterError(f"'only' needs the name of a line, found {min(unknown)!r}. Name {known}.")
    return [line for line in names if not wanted or {line, line.partition(", ")[0]} & wanted]


def _rows(rng: np.random.Generator, sizes: Iterable[int], values: Sequence[float]) -> list[_Row]:
    """Make a row of each design and size for each value."""
    rows = []
    for design, y in [pair for size in sizes for pair in floor_designs(rng, size).items()]:
        finite = y[y > -np.inf]
        moments = reference_filters.moments(*np.unique(-finite, return_counts=True))
        rows += [_Row(design, finite, value, moments) for value in values]
    return rows


def _shipped(name: str, y: Array, value: float) -> Array:
    """Mark the tokens that the kit's floors of tokendraw's own filters keep."""
    depths, counts = np.unique(-y, return_counts=True)
    return np.asarray(-y <= reference_filters.floor_depth(depths, counts, {name: value}))


def _record(name: str) -> InstalledFilter:
    """Find an installed filter by name; the error has the nearest name, or the reason."""
    try:
        find_filter(name)
    except InvalidParameterError as error:
        words = str(error).replace(
            "'filters' needs names of installed filters", "'filter' needs an installed filter"
        )
        raise TokendrawError(words.replace("'filters' names", "'filter' names")) from error
    return next(each for each in installed_filters() if each.name == name and each.state is State.AVAILABLE)


def _samplers(rule: Filter, sampler: str | None, device: torch.device, **options: Any) -> dict[str, Subject]:
    """Find the samplers with the moments of a filter, native first.

    :raises TokendrawError: there is none, or not the named one.
    """
    here = tokendraw.discover(host=detect_host(str(device)))
    names = sorted({c.name for c in here if c.state is State.AVAILABLE}, key=lambda n: (n != "native", n))
    subjects = {n: Subject.installed(n, device=device, operation="sample", **options) for n in names}
    served = {n: SampleSubject(subject).capabilities.row_moments for n, subject in subjects.items()}
    able = {n: s for n, s in subjects.items() if {*rule.moments} <= {*served[n]} and sampler in (None, n)}
    if not able:
        moments = f"the moments {all_of(rule.moments)}" if rule.moments else "filters from moments"
        found = f"{sampler!r} with {all_of(served[sampler])}" if sampler in served else all_of(served)
        raise TokendrawError(
            f"The filter {rule.name!r} needs {sampler or 'a sampler'} with {moments} on {device}, found {found}. "
            "Name another sampler, or install tokendraw-native."
        )
    return able


def _accepted(name: str, values: Sequence[float]) -> tuple[float, ...]:
    """Return the active values among those asked for, or the usual ones that a filter takes."""

    def is_active(value: float) -> bool:
        try:
            params = SamplingParams(filters={name: value}).check()
        except TokendrawError:
            if values:
                raise
            return False
        return tokendraw.SamplingMetadata.from_params([params]).filters is not None

    for each in (values,) if values else _VALUES:
        if accepted := tuple(float(np.float32(value)) for value in each if is_active(value)):
            return accepted
    raise InvalidParameterError(
        f"The filter {name!r} needs values to be checked with, found none that it takes among the usual ones. "
        "Give some by --value."
    )
