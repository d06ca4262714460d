"""Rows of logits with requests: their factors, covering tables of them, and rows designed to show a mistake.

A covering table has few cases with every pair of values of two factors. A design makes rows in which a mistake in one
corner changes the tokens of most rows, not of one in a thousand: it gives the distances y from the largest logit as
they are after temperature, so that it stands on its filter's threshold at any temperature. The logits are then rounded
to the dtype, and whatever is expected of them is worked out from the rounded values.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.random import Generator

from tokendraw import SamplingParams
from tokendraw.plugin import Capabilities, Filter, TieRule
from tokendraw_testing import reference
from tokendraw_testing.expectation import Expectation, expect
from tokendraw_testing.kit.effort import Effort
from tokendraw_testing.kit.subject import RowSubject, crossed_orders
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.reference import Array

Case = dict[str, Any]
"""The value of each factor, by its name."""
CaseFilter = Callable[[Mapping[str, Any]], bool]
"""Whether a case is allowed; for an incomplete case, whether it can be completed."""

_CANDIDATES: Final = 6
"""Cases to choose the next one of a table from."""
_ATTEMPTS: Final = 100
Factors = dict[str, Sequence[Any]]
"""The values of each factor, by its name."""
Kind = Literal["seeded", "unseeded", "greedy", "greedy with a seed"]

ALL_BUT_ONE: Final = "V - 1"
"""A value of the factor ``top_k``, for which :func:`params_of` puts a number."""
_MOST_FILTERS: Final = 2
"""Most filters of a case: three filters hide each other."""
DISABLED_FILTERS: Final = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
NO_FILTERS: Final = {"temperature": 1.0, **DISABLED_FILTERS, "filter_order": "top_k_first"}
"""The case of a plain row."""


@dataclass(frozen=True)
class Site:
    """Dtype and vocabulary size of a call, as one factor: each pair of dtype and size meets each value of the rest."""

    dtype: str
    """Name of the dtype in torch."""
    size: int
    """V."""

    def __str__(self) -> str:
        return f"V = {self.size} in {self.dtype}"

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


def sites(capabilities: Capabilities, effort: Effort) -> list[Site]:
    """List every advertised dtype with every vocabulary of the effort within the provider's limit."""
    limit = capabilities.max_vocab_size
    sizes = [size for size in effort.crossed_sizes if limit is None or size <= limit] or [limit or 1]
    return [Site(dtype, size) for size in sizes for dtype in capabilities.dtypes]


def some_sites(capabilities: Capabilities, effort: Effort) -> list[Site]:
    """List the sites; where kernels are interpreted each dtype with one vocabulary, and each vocabulary with one."""
    return sites(capabilities, effort)[:: 1 + len(capabilities.dtypes) if effort.interpreted else 1]


def request_factors(capabilities: Capabilities) -> Factors:
    """Return the advertised temperatures, filters, per row or scalar, and filter orders."""
    filters = {name for name, _ in capabilities.filters}
    limit = capabilities.max_top_k
    ks = [k for k in (1, 40, 100, 256, 1025, 3000) if limit is None or k <= limit]
    return {
        "temperature": (1.0, 0.003, 0.5, 1.7, 12.0, 150.0, 1e-6),
        "top_k": (0, *ks, *[ALL_BUT_ONE] * (limit is None)) if "top_k" in filters else (0,),
        "top_p": (1.0, 0.0005, 0.3, 0.9, 0.999, 0.9999) if "top_p" in filters else (1.0,),
        "min_p": (0.0, 0.00002, 0.05, 0.4, 1.0) if "min_p" in filters else (0.0,),
        "filter_order": crossed_orders(capabilities),
    }


def combinations(capabilities: Capabilities, size: int) -> list[SamplingParams]:
    """Mix temperatures, filters and orders for a vocabulary of ``size``; the plain request comes first."""
    limit, factors = capabilities.max_top_k, request_factors(capabilities)
    ks = [k for k in (0, 1, 40, max(1, size // 2), 2**30) if limit is None or k <= limit]
    few = {"temperature": (1.0, 0.6), "top_k": ks, "top_p": (1.0, 0.9, 0.3), "min_p": (0.0, 0.05)}
    values = factors | {name: some for name, some in few.items() if len(factors[name]) > 1}
    chosen = itertools.product(*values.values())
    requests = [SamplingParams(**dict(zip(values, case, strict=True))) for case in chosen]
    return requests + [SamplingParams(temperature=0.0)] * capabilities.greedy


def kinds(capabilities: Capabilities) -> list[Kind]:
    has_seeds, is_greedy = capabilities.seeding == "counter", capabilities.greedy
    served: dict[Kind, bool] = {
        "unseeded": True,
        "seeded": has_seeds,
        "greedy": is_greedy,
        "greedy with a seed": has_seeds and is_greedy,
    }
    return [kind for kind, is_served in served.items() if is_served]


def is_allowed(case: Mapping[str, Any]) -> bool:
    """Allow complete or partial cases with top-k below V and at most two filters, or the design's filter alone."""
    site, k, needed = case.get("site"), case.get("top_k", 0), getattr(case.get("design"), "needs", None)
    if site is not None and isinstance(k, int) and k >= site.size:
        return False
    active = {name for name, default in DISABLED_FILTERS.items() if case.get(name, default) != default}
    if needed is None:
        return len(active) <= _MOST_FILTERS
    # Far from zero, a dtype has no room for the levels of a designed row.
    return (
        active <= {needed}
        and case.get(needed) not in (DISABLED_FILTERS[needed], ALL_BUT_ONE)
        and abs(case.get("top", 0)) < 1000
    )


def params_of(case: Mapping[str, Any], **changes: Any) -> SamplingParams:
    """Return the unseeded request of a case, with some fields changed."""
    request = {name: case[name] for name in ("temperature", "top_k", "top_p", "min_p", "filter_order")}
    if case["top_k"] == ALL_BUT_ONE:
        request["top_k"] = case["site"].size - 1
    return SamplingParams(**(request | changes))


def allow_every_case(case: Mapping[str, Any]) -> bool:
    return True


def covering(
    factors: Mapping[str, Sequence[Any]], rng: Generator, allowed: CaseFilter = allow_every_case
) -> list[Case]:
    """Return cases that together hold every pair of values of two factors found in any allowed case.

    Each case begins with a pair that is still missing, and takes factor by factor the value that adds most of the
    missing pairs; the best of a few such cases is kept.
    """
    values = [(name, value) for name, owned in factors.items() for value in owned]
    numbers_of = {name: np.flatnonzero([owner == name for owner, _ in values]) for name in factors}
    missing = np.ones((len(values), len(values)), bool)  # symmetric
    for numbers in numbers_of.values():
        missing[np.ix_(numbers, numbers)] = False
    np.fill_diagonal(missing, True)  # stands for a value itself, so that a lone factor is covered too

    def case_of(numbers: Any) -> Case:
        return dict(values[i] for i in sorted(numbers))

    def complete(pair: Any) -> list[int] | None:
        """Complete a pair of numbers to a case; None in a dead end."""
        chosen = list(dict.fromkeys(pair.tolist()))
        case, gains = case_of(chosen), missing[chosen].sum(0)
        if not allowed(case):
            return None
        for name in rng.permutation([name for name in factors if name not in case]).tolist():
            numbers = rng.permutation(numbers_of[name])
            order = np.argsort(-gains[numbers], kind="stable")
            number = next((i for i in numbers[order] if allowed({**case, name: values[i][1]})), None)
            if number is None:
                return None
            chosen.append(int(number))
            gains = gains + missing[number]
            case[name] = values[number][1]
        return chosen

    cases = []
    while missing.any():
        pair = rng.choice(np.argwhere(missing))
        grown = [chosen for _ in range(_CANDIDATES) if (chosen := complete(pair)) is not None]
        best = max(grown, key=lambda numbers: missing[np.ix_(numbers, numbers)].sum(), default=None)
        covered = pair if best is None else np.array(best)
        missing[np.ix_(covered, covered)] = False
        if best is not None:
            cases.append(case_of(best))
    return cases


def random_case(
    factors: Mapping[str, Sequence[Any]], rng: Generator, allowed: CaseFilter = allow_every_case
) -> Case:
    """Return an allowed case with values at random."""
    for _ in range(_ATTEMPTS):
        case: Case = {}
        for name in rng.permutation(list(factors)).tolist():
            values = [value for value in factors[name] if allowed({**case, name: value})]
            if not values:
                break
            case[name] = values[int(rng.integers(len(values)))]
        else:
            return {name: case[name] for name in factors}
    raise ValueError(f"'factors' need values that are allowed together, found none of {list(factors)}.")


# Designed rows.

Make = Callable[[Generator, int, SamplingParams], Array]
"""Makes y [V] float64 for a request, whose largest is moved to 0."""

NEGLIGIBLE: Final = -60.0
WIDE_SIZE: Final = 1 << 14
"""Vocabularies above this have fewer rows, and none on thresholds."""
_LEVELS: Final = 9
"""Distinct logits of a row of few levels, in which a neighbour of a floor has a good share of the mass."""
HEAD: Final = "head above a plateau"
"""A row of :func:`floor_designs`."""
LARGEST_Y_SHIFT: Final = 2.7
TOPS: Final = (LARGEST_Y_SHIFT, -4.3, 0.0, 2e4, -12e3)
"""Largest logits, the small ones in units of the temperature.

At 2.7 a dtype is at its finest 2.7 below the largest, and y has more bits than the logits, so that rounding it shows.
"""


@dataclass(frozen=True)
class Design:
    """A way to make rows."""

    name: str
    make: Make
    needs: Filter | None = None
    """The only filter of the design's requests."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class CrossedRow:
    """A row of logits with a request, and its float64 expectation."""

    site: Site
    design: str
    logits: torch.Tensor
    """[V] in the dtype of the site, on the host."""
    params: SamplingParams
    """Without a seed."""
    tie_rule: TieRule

    @functools.cached_property
    def sorted_logits(self) -> reference.SortedLogits:
        """Holds the values in float64, sorted once."""
        return reference.SortedLogits.of(self.logits.double().numpy())

    @property
    def x(self) -> Array:
        """The same values, [V] float64, NaN replaced by -inf."""
        return self.sorted_logits.x

    @functools.cached_property
    def expected(self) -> Expectation:
        """Possible tokens, and the kept tokens."""
        return expect(self.sorted_logits, self.params, self.tie_rule)

    @functools.cached_property
    def prepared(self) -> reference.ReferenceRow:
        """The state before the draw, for :func:`tokendraw_testing.reference.draw`."""
        return reference.prepare(self.sorted_logits, self.params)

    @property
    def is_settled(self) -> bool:
        """Whether neither rounding nor the sampler's choice among ties decides the kept set."""
        expected, kept = self.expected, self.prepared.kept
        is_whole = expected.share == 1 and np.array_equal(expected.kept, kept)
        return expected.certain and self.prepared.certain and is_whole


def crossed_row(case: Case, rng: Generator, tie_rule: TieRule) -> CrossedRow:
    """Make the row of a case with a ``site``, a ``design``, a ``top`` and the fields of a request.

    Zeros in it have either sign.
    """
    site, design, params = case["site"], case["design"], params_of(case)
    y = design.make(rng, site.size, params)
    y -= y.max()
    # On the threshold of min-p the values of a dtype lie densest if it is at zero.
    top = -np.log(params.min_p) if design.needs == "min_p" else case.get("top", LARGEST_Y_SHIFT)
    largest = round_to_dtype(np.array(top if abs(top) > 1000 else top * params.temperature), site.torch_dtype)
    logits = round_to_dtype(largest.double().numpy() + params.temperature * y, site.torch_dtype)
    logits[(logits == 0) & torch.from_numpy(rng.random(site.size) < 0.5)] *= -1
    return CrossedRow(site, str(design), logits, params, tie_rule)


def row_of(
    capabilities: Capabilities, site: Site, design: str, logits: Array | torch.Tensor, params: SamplingParams
) -> CrossedRow:
    """Make a row from a tensor in the dtype of the site, or from float64 values rounded to the dtype."""
    if not isinstance(logits, torch.Tensor):
        logits = round_to_dtype(logits, site.torch_dtype)
    return CrossedRow(site, design, logits, params, capabilities.tie_rule)


def round_to_dtype(values: Array, dtype: torch.dtype) -> torch.Tensor:
    """Round float64 values to a dtype, within its finite range."""
    limit = torch.finfo(dtype).max
    return torch.as_tensor(np.clip(values, -limit, limit)).to(dtype)


def _last_ids(rng: Generator, size: int, params: SamplingParams) -> Array:
    """All mass on the ids behind the last full vector of 4, 8, 16 or 1024, if there are any."""
    y = np.full(size, NEGLIGIBLE)
    vector = int(rng.choice([v for v in (4, 8, 16, 1024) if size % v] or [1]))
    last = min(size % vector or 1, 20)
    y[-last:] = -0.1 * rng.permutation(last)
    return y


def _deep_bulk(rng: Generator, size: int, params: SamplingParams) -> Array:
    """One token on top, and about as much mass in a bulk far below."""
    y = -np.log(size) + 0.3 * rng.standard_normal(size)
    y[rng.integers(size)] = 0.0
    return np.asarray(y)


def _tied_at_k(rng: Generator, size: int, params: SamplingParams) -> Array:
    """The k-th largest is one of many ties with most of the mass; the rest holds as much again."""
    num_ties_kept = max(1, params.top_k // 50)
    above = params.top_k - num_ties_kept
    num_ties = min(max(600, 20 * num_ties_kept, 3 * above), max(2, (size - above) * 2 // 3))
    y, start = np.full(size, -1.0), above + num_ties
    y[:above] = rng.uniform(-0.9, 0.0, above)
    if start < size:
        y[start:] = min(np.log(0.5 * np.exp(y[:start]).sum() / (size - start)), -1.1)
    return rng.permutation(y)


def _plateau_at_p(rng: Generator, size: int, params: SamplingParams) -> Array:
    """Equal tokens cross p together; the tokens below hold the mass outside the nucleus.

    In a large vocabulary each level has a tile of its own: the noise of three tiles then tells what was kept.
    """
    p, head = params.top_p, max(1, min(5, size // 6))
    num_ties = min(size - head, max(1, min(400, size // 3)))
    below = min(500, size - head - num_ties)
    counts, masses = [head, num_ties, below], np.array([0.6 * p, 0.4 * p + 0.6 * (1 - p), 0.4 * (1 - p)])
    y = np.log(np.repeat(masses / np.maximum(counts, 1), counts))
    y[:head] += np.log(np.linspace(1.1, 0.9, head))
    y -= y.max()
    row = np.full(size, min(NEGLIGIBLE, y.min() - 10))
    tiles = size // reference.TILE_SIZE
    if tiles < 3:
        row[rng.permutation(size)[: len(y)]] = y
        return row
    starts = np.repeat(rng.choice(tiles, 3, replace=False) * reference.TILE_SIZE, counts)
    offsets = np.concatenate([rng.permutation(reference.TILE_SIZE)[:n] for n in counts])
    row[starts + offsets] = y
    return row


def _edges_of_min_p(rng: Generator, size: int, params: SamplingParams) -> Array:
    """Heavy levels just above and just below the threshold, nearer than a step of bfloat16 at its distance."""
    floor = np.log(params.min_p)
    group = max(1, min(size // 3, int(20 / params.min_p)))
    y = np.full(size, floor - 9.0)
    y[0], y[1 : 1 + group], y[1 + group : 1 + 2 * group] = 0.0, min(floor + 0.003, 0.0), floor - 0.003
    return rng.permutation(y)


DEEP_BULK: Final = Design("deep bulk", _deep_bulk)
PLATEAU: Final = Design("plateau at p", _plateau_at_p, "top_p")
FLAT: Final = Design(
    "flat", lambda rng, size, _: np.exp(rng.uniform(np.log(1e-3), np.log(10.0))) * rng.standard_normal(size)
)
"""Gaussian of any width, mostly with all its mass far below the nucleus of a small p."""
DESIGNS: Final = (
    # From a wide nucleus to a narrow nucleus.
    Design("bell", lambda rng, size, _: rng.choice([0.5, 2.0, 4.0]) * rng.standard_normal(size)),
    Design("peaked", lambda rng, size, _: -1.3 * np.log(rng.permutation(size) + 1.0)),
    # 1, 3, 9, 27 ... equal tokens: ties everywhere, and at the end of any N best.
    Design("stairs", lambda rng, size, _: -0.5 * np.floor(np.log(2 * rng.permutation(size) + 1) / np.log(3))),
    Design("last ids", _last_ids),
    DEEP_BULK,
    Design("ties at k", _tied_at_k, "top_k"),
    PLATEAU,
    Design("edges of min-p", _edges_of_min_p, "min_p"),
)


def floor_designs(rng: Generator, size: int) -> dict[str, Array]:
    """Make distances y [V] from the largest logit for filters that look at the whole row, by name."""
    levels = np.append(0.0, -np.sort(rng.uniform(0.2, 6.0, _LEVELS - 1)))
    few = np.full(size, -np.inf)
    count = min(size, _LEVELS)
    few[rng.permutation(size)[:count]] = levels[:count]
    one = np.full(size, -np.inf)
    one[int(rng.integers(size))] = 0.0
    masked = -rng.exponential(2.0, size)
    masked[rng.random(size) < 0.5] = -np.inf
    masked[int(rng.integers(size))] = 0.0
    return {
        "nine logits above -inf": few,
        "one logit above -inf": one,
        "half of them -inf": masked,
        "ties": rng.choice(levels, size),
        "flat": np.zeros(size),
        "bell": (bell := rng.normal(0.0, 2.0, size)) - bell.max(),
        HEAD: _head_above_plateau(rng, size),
    }


def _head_above_plateau(rng: Generator, size: int) -> Array:
    """Make one token of 0.3 of the mass above many near ones, which typical-p prefers; some tiles are all ties.

    A nucleus ends among the many, elsewhere if the mass of the first token is left out of it.
    """
    y = np.log(0.7 / 0.3 / size) - rng.integers(0, 32, size) / 64
    y[: size // 2 // reference.TILE_SIZE * reference.TILE_SIZE] = y.max()
    y[-1 - int(rng.integers(-(-size // 2)))] = 0.0
    return np.asarray(np.minimum(y, 0.0))


def special_rows(rng: Generator, size: int) -> dict[str, Array]:
    """Make rows [V] float32 with NaN and infinities, as a broken model does, by name; the other logits are Gaussian.

    Some have them far out alone: behind the last vector, tile or power of two.
    """
    nan, inf = float("nan"), float("inf")

    def row(values: dict[int, float]) -> Array:
        x = gaussian(rng, size)
        x[list(values)] = list(values.values())
        return x

    power_of_two = (1 << (size - 1).bit_length() - 1) % size  # the largest power of two below V
    both_sides = [5, *range(power_of_two, size)[:30]]
    top, last_tile, signed_nan = (gaussian(rng, size) for _ in range(3))
    top[np.argsort(top)[-3:]] = nan
    last_tile[(size - 1) // 1024 * 1024 if size > 1024 else size // 2 :] = -inf
    signed_nan.view(np.int32)[3 * size // 4] = -0x400000
    ids = np.arange(size)
    return {
        "one NaN": row({3: nan}),
        "NaN in a few places": row({0: nan, size // 2: nan, size - 1: nan}),
        "NaN at the top": top,
        "all NaN": np.full(size, np.float32(nan)),
        "all -inf": np.full(size, np.float32(-inf)),
        "NaN and -inf": np.where(ids % 2, -inf, nan).astype(np.float32),
        "one +inf": row({size // 2 + 7: inf}),
        "two +inf": row({5: inf, size - 2: inf}),
        "+inf, -inf and NaN": row({2: inf, size // 3: inf, 5: nan, 6: -inf}),
        "the last tile -inf": last_tile,
        "one finite logit": np.where(ids == 40, -7.0, -inf).astype(np.float32),
        "NaN at the last id": row({size - 1: nan}),
        "NaN behind the last power of two": row({power_of_two: nan}),
        "a NaN with a sign": signed_nan,
        "+inf at the last id": row({size - 1: inf}),
        "+inf behind the last power of two": row({power_of_two: inf, size - 1: inf}),
        "+inf on both sides of the last power of two": row(dict.fromkeys(both_sides, inf)),
        "+inf and far NaN": row({1: inf, size - 2: nan}),
    }


def row_factors(subject: RowSubject) -> Factors:
    return {"site": sites(subject.capabilities, subject.effort), **_factors(subject.capabilities)}


def covering_rows(
    subject: RowSubject, rng: Generator, *, on_thresholds: bool = False
) -> dict[Site, list[CrossedRow]]:
    """Make the rows of a covering table, by site."""
    table, most = covering(row_factors(subject), rng, is_allowed), subject.effort.crossed_rows
    rows_by_site: dict[Site, list[CrossedRow]] = {}
    for case in table[:: max(1, len(table) // most) if most else 1]:
        row = crossed_row(case, rng, subject.capabilities.tie_rule)
        rows_by_site.setdefault(case["site"], []).append(row)
    for site, rows in rows_by_site.items() if on_thresholds else ():
        if site.size <= WIDE_SIZE:
            on_edges = threshold_rows(subject.capabilities, site, rng)
            rows.extend(share_among_dtypes(subject, site, on_edges))
    return rows_by_site


def share_among_dtypes(subject: RowSubject, site: Site, rows: list[CrossedRow]) -> list[CrossedRow]:
    """Return the rows of a vocabulary; where kernels are interpreted, the dtypes take them by turns."""
    if not subject.effort.interpreted:
        return rows
    sizes, dtypes = subject.effort.crossed_sizes, subject.capabilities.dtypes
    turn = sizes.index(site.size) if site.size in sizes else 0
    return rows[(turn + dtypes.index(site.dtype)) % len(dtypes) :: len(dtypes)]


def rows_of_designs(capabilities: Capabilities, site: Site, rng: Generator) -> list[CrossedRow]:
    """Make a row of every design that a vocabulary has room for in one dtype, each with a random request."""
    designs = _factors(capabilities)["design"]
    return _rows_with(capabilities, site, rng, [{"design": design} for design in designs])


def threshold_rows(capabilities: Capabilities, site: Site, rng: Generator) -> list[CrossedRow]:
    """Make a row on the threshold of each value of each filter, in one dtype and vocabulary."""
    domains = _factors(capabilities)
    cases = [
        {**DISABLED_FILTERS, "design": design, design.needs: value}
        for design in domains["design"]
        if design.needs
        for value in domains[design.needs]
    ]
    return _rows_with(capabilities, site, rng, cases)


def _rows_with(capabilities: Capabilities, site: Site, rng: Generator, cases: list[Case]) -> list[CrossedRow]:
    """Make a row of each incomplete case that is allowed, with random values of the other factors."""
    domains, rows = {**_factors(capabilities), "top": TOPS[:1]}, list[CrossedRow]()
    for case in cases:
        given = {"site": site, **case}
        if is_allowed(given):
            values = {**domains, **{name: [value] for name, value in given.items()}}
            with contextlib.suppress(ValueError):  # the design's filter needs more tokens
                rows.append(crossed_row(random_case(values, rng, is_allowed), rng, capabilities.tie_rule))
    return rows


def rows_of_last_ids(capabilities: Capabilities, site: Site, rng: Generator) -> list[CrossedRow]:
    """Make rows with their mass on the last ids alone, in both halves, and everywhere."""
    size, ids = site.size, np.arange(site.size)
    levels = {
        "the last id alone": ids == size - 1,
        "the last ids": ids >= size - (size % 1024 or 1024) % 16 - 1,
        "ties of both halves": np.isin(ids, [size // 4, size - 1 - size // 4, size - 1]),
        "all alike": np.ones(size, bool),
    }
    rows = {name: np.where(has_mass, 1.0, NEGLIGIBLE) for name, has_mass in levels.items()}
    return _with_requests(capabilities, site, rows, rng)


def rows_of_special_values(capabilities: Capabilities, site: Site, rng: Generator) -> list[CrossedRow]:
    """Make a row of every kind of special values, and clean rows, for a vocabulary of at least 64."""
    rows = special_rows(rng, site.size) | {f"clean row {i}": gaussian(rng, site.size) for i in range(3)}
    made = _with_requests(capabilities, site, rows, rng)
    k = min(50, capabilities.max_top_k or 50)
    if not any(name == "top_k" for name, _ in capabilities.filters):
        return made
    params = SamplingParams(top_k=k, filter_order=crossed_orders(capabilities)[0])
    # A grammar may leave fewer tokens than k.
    return [replace(row, params=params) if row.design == "one finite logit" else row for row in made]


def _with_requests(
    capabilities: Capabilities, site: Site, rows: Mapping[str, Array], rng: Generator
) -> list[CrossedRow]:
    requests = [p for p in combinations(capabilities, site.size) if p.temperature > 0]
    numbers = rng.integers(len(requests), size=len(rows))
    return [
        row_of(capabilities, site, name, torch.from_numpy(x).to(site.torch_dtype), requests[i])
        for (name, x), i in zip(rows.items(), numbers, strict=True)
    ]


def huge_rows(capabilities: Capabilities, site: Site) -> list[CrossedRow]:
    """Make rows with logits so large that the quotient by the temperature, or the difference, overflows the dtype."""
    limit = torch.finfo(site.torch_dtype).max
    logits = torch.full((site.size,), -limit, dtype=torch.float64)
    logits[3], logits[site.size // 2], logits[-1] = 0.8 * limit, 0.9 * limit, 0.7 * limit
    requests = [SamplingParams(temperature=t) for t in (0.5, 0.003)]
    return [row_of(capabilities, site, "huge logits", logits.to(site.torch_dtype), p) for p in requests]


def _factors(capabilities: Capabilities) -> Factors:
    filters = request_factors(capabilities)
    designs = [design for design in DESIGNS if design.needs is None or len(filters[design.needs]) > 1]
    return {"design": designs, "top": TOPS, **filters}
