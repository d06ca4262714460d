"""``check_filter``: the floor of a filter from moments by its definition, and the rows of samplers that draw with it.

The lines of samplers are the kit's own with this filter in place of the shipped ones, and its floors from float64
moments: a floor that float32 cancels, or that depends on other rows, shows there. The core refuses floors of another
form, exceptions and changed arguments in any call.
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

import tokendraw
from tokendraw import InvalidParameterError, SamplingParams, TokendrawError, filters
from tokendraw.resolution import State, detect_host
from tokendraw.tools import all_of, find_device, one_of
from tokendraw_testing import cases, reference_filters
from tokendraw_testing.kit.device import require_no_wait
from tokendraw_testing.kit.report import Line, Report
from tokendraw_testing.kit.run import attempt, make_report
from tokendraw_testing.kit.subject import SampleSubject, Subject, VerifySubject
from tokendraw_testing.kit.trial import Trial, Violation
from tokendraw_testing.reference import Array
from tokendraw_testing.sample import judge_further
from tokendraw_testing.verify import judge_further as judge_verifications

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
    floor: float
    """From float64 moments."""

    @property
    def is_partial(self) -> bool:
        """Whether more than the largest tokens are kept, and others dropped."""
        return bool((self.y == 0).sum() < (self.y >= self.floor).sum() < len(self.y))


@dataclass(frozen=True, kw_only=True, repr=False)
class FilterReport(Report):
    """The lines of a filter: a :class:`Report` whose ``sampler`` has the names of all samplers that drew.

    :ivar filter: The filter and where it comes from.
    :ivar samplers: Names of the samplers that drew.
    :ivar values: Values that rows asked for.
    """

    filter: filters.InstalledFilter
    samplers: tuple[str, ...]
    values: tuple[float, ...]

    @property
    def title(self) -> str:
        """Name the filter and the samplers."""
        return f"{self.filter.name} with {self.sampler}"


@dataclass(frozen=True)
class _Check:
    """The lines of a filter, each a method."""

    rule: filters.Filter
    values: tuple[float, ...]
    definition: Definition | None
    device: torch.device
    rows: list[_Row]

    def no_waiting(self, trial: Trial) -> str:
        """``floor`` reads no value on the host, so that nothing waits for a device."""
        rows = [(row.value, row.moments) for row in self.rows]
        try:
            # Tensors of this device have no values to read.
            list(filters.filter_floors(*_arguments(self.rule, rows, torch.float32, "meta")))
        except filters.FilterError as error:
            raise Violation(f"needs a floor that reads no value on the host, found: {error}") from error
        given = _arguments(self.rule, rows, torch.float32, self.device)
        if self.device.type == "cuda":
            require_no_wait(trial, f"the floor of {self.rule.name!r}", lambda: filters.combined_floor(*given))
        filters.combined_floor(*given)
        return f"moments without values, and a call on {self.device}"

    def defined(self, trial: Trial) -> str:
        """The floors keep the tokens of the definition in float64, and the largest, and for some value drop others."""
        partial = sum(row.is_partial for row in self.rows)
        trial.require(
            partial,
            f"the floor of {self.rule.name!r} needs to keep several tokens and to drop others in some row, found all "
            f"kept or the largest alone in {len(self.rows)} rows; name values by --value if these are not the filter's",
        )
        if self.definition is None:
            trial.skip("needs a definition in float64, found none; give one by --definition FILE:FUNCTION")
        for design, y, value, _, floor in self.rows:
            needed = np.asarray(self.definition(y.copy(), value))
            trial.require(
                needed.shape == y.shape and needed.dtype == bool,
                f"the definition needs to return [{len(y)}] bool, found {list(needed.shape)} {needed.dtype}",
            )
            is_clear = np.abs(y - floor) > _ROUNDING * max(1.0, abs(floor)) if floor > -np.inf else y < 0
            wrong = np.flatnonzero((needed != (y >= floor)) & is_clear & (y < 0))
            trial.require(
                not len(wrong),
                f"{design}, {len(y)} finite logits, value {value:g}: a floor of {floor:.6g} keeps "
                f"{(y >= floor).sum()} tokens, the definition {(needed | (y == 0)).sum()}; they differ in the token "
                f"at y = {y[wrong[:1]]}",
            )
        return f"{len(self.rows)} rows, kept sets as defined; {partial} keep several tokens and drop others"

    def requests(self) -> list[cases.Fields]:
        """Return fields of requests for a few values, if possible ones that drop some tokens of a bell."""
        told = [row.value for row in self.rows if row.design == "bell" and row.is_partial]
        values = list(dict.fromkeys(told)) or self.values
        fields = [{"filters": {self.rule.name: each}} for each in values[:: -(-len(values) // _MOST_VALUES)]]
        return [lambda rng, given=given: given for given in fields]  # type: ignore[misc]

    def sampled(self, subject: Subject, trial: Trial) -> str:
        """Rows keep and draw what the floors from float64 moments say, beside min-p, top-p and top-k."""
        return judge_further(SampleSubject(subject), trial, self.requests())

    def verified(self, subject: Subject, trial: Trial) -> str:
        """Seeded chains of drafts are those of rows with these floors; so are drafts, and their probabilities."""
        c: Any = subject.capabilities.get("verify")
        if c is None or c.seeding != "counter" or not {*self.rule.moments} <= {*c.row_moments}:
            trial.skip("needs a sampler that verifies drafts with seeds and these moments, found none")
        return judge_verifications(VerifySubject(subject), trial, self.requests())


def _looks(subjects: Mapping[str, Any]) -> dict[str, tuple[Callable[..., str], tuple[Any, ...]]]:
    """Return the lines by name, for some samplers: each a method of :class:`_Check`, and what it is given first."""
    looks: dict[str, Any] = {"no waiting": (_Check.no_waiting, ()), "definition": (_Check.defined, ())}
    for name, subject in subjects.items():
        looks[f"filters from moments, {name}"] = _Check.sampled, (subject,)
        looks[f"verify filters from moments, {name}"] = _Check.verified, (subject,)
    return looks


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
    start, (target, _) = time.perf_counter(), find_device(device)
    record = _record(name)
    rule, is_shipped = filters.find_filter(name), record.distribution == "tokendraw"
    subjects = _samplers(rule, sampler, target, quick=quick, seed=seed)
    names, values = _select(_looks(subjects), only), _accepted(name, values)

    def floor(value: float, moments: reference_filters.Moments) -> float:
        return float(filters.combined_floor(*_arguments(rule, [(value, moments)], torch.float64, "cpu"))[0])

    def shipped(y: Array, value: float) -> Array:
        """Mark the tokens that the kit's floor of one of tokendraw's own filters keeps."""
        levels = np.unique(-y, return_counts=True)
        return np.asarray(-y <= reference_filters.floor_depth(*levels, {name: value}))

    with nullcontext() if is_shipped else reference_filters.given_floor(name, floor):

        @functools.cache
        def made() -> _Check:
            rng, rows = np.random.default_rng(seed), list[_Row]()
            for size in (33, 1025) if quick else (33, 1025, 5003):
                for design, y in cases.floor_designs(rng, size).items():
                    finite = y[y > -np.inf]
                    moments = reference_filters.moments(*np.unique(-finite, return_counts=True))
                    rows += [_Row(design, finite, each, moments, floor(each, moments)) for each in values]
            return _Check(rule, values, definition or (shipped if is_shipped else None), target, rows)

        looks, abouts, lines = _looks(subjects), line_names(subjects), list[Line]()

        def run(line: str, trial: Trial) -> str:
            look, given = looks[line]
            return look(made(), *given, trial)

        for line in names:
            trial = Trial(f"{name}/{line}", seed)
            lines.append(attempt(functools.partial(run, line), line, abouts[line], trial, target))
            finished(lines[-1])
    report = make_report(next(iter(subjects.values())), lines, start=start)
    facts = {**vars(report), "sampler": all_of(subjects)}
    return FilterReport(**facts, filter=record, samplers=tuple(subjects), values=values)


def line_names(samplers: Iterable[str] = ()) -> dict[str, str]:
    """Return the demand of each line by name, for some samplers."""
    looks = _looks(dict.fromkeys(samplers))
    return {name: (look.__doc__ or "").splitlines()[0] for name, (look, _) in looks.items()}


def _arguments(
    rule: filters.Filter,
    rows: Sequence[tuple[float, reference_filters.Moments]],
    dtype: torch.dtype,
    device: torch.device | str,
) -> tuple[list[str], torch.Tensor, filters.RowMoments]:
    """Return the arguments of ``combined_floor`` for values, from moments in a dtype."""

    def column(numbers: Iterable[float]) -> torch.Tensor:
        return torch.tensor([*numbers], dtype=torch.float64).to(device, dtype)

    moments = {name: column(getattr(each, name) for _, each in rows) for name in rule.moments}
    return [rule.name], column(value for value, _ in rows).unsqueeze(1), filters.RowMoments(**moments)


def _select(lines: Iterable[str], only: Iterable[str]) -> list[str]:
    """Pick lines by name; a name without its sampler picks the lines of all samplers."""
    names, wanted = list(lines), {*only}
    if unknown := wanted - {part for line in names for part in (line, line.partition(", ")[0])}:
        known = one_of(map(repr, names))
        raise InvalidParameterError(f"'only' needs the name of a line, found {min(unknown)!r}. Name {known}.")
    return [line for line in names if not wanted or {line, line.partition(", ")[0]} & wanted]


def _record(name: str) -> filters.InstalledFilter:
    """Find an installed filter by name; the error has the nearest name, or the reason."""
    try:
        filters.find_filter(name)
    except InvalidParameterError as error:
        words = str(error).replace("needs names of installed filters", "needs an installed filter")
        raise TokendrawError(words.replace("'filters' n", "'filter' n")) from error
    return next(
        each for each in filters.installed_filters() if each.name == name and each.state is State.AVAILABLE
    )


def _samplers(
    rule: filters.Filter, sampler: str | None, device: torch.device, **options: Any
) -> dict[str, Subject]:
    """Find the samplers with the moments of a filter, native first."""
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
