"""Rows designed so that a mistake in one corner changes the tokens of most rows, not of one in a thousand.

A design gives the distances y from the largest logit as they are after temperature, so that it stands on its filter's
threshold at any temperature. The logits are then rounded to the dtype, and whatever is expected of them is worked out
from the rounded values.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.plugin import Capabilities, Filter, TieRule
from tokendraw_testing import reference
from tokendraw_testing.cases.factors import (
    NO_FILTERS,
    Case,
    Factors,
    Site,
    covering,
    is_allowed,
    params_of,
    random_case,
    request_factors,
    sites,
)
from tokendraw_testing.judges.expectation import Expectation, expect
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.subjects import RowSubject

Array = NDArray[Any]
Make = Callable[[Generator, int, SamplingParams], Array]
"""Makes y [V] float64, the largest of which is 0, for a request."""

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
        expected = self.expected
        return (
            expected.certain
            and self.prepared.certain
            and expected.count == np.count_nonzero(self.prepared.kept)
        )


def crossed_row(case: Case, rng: Generator, tie_rule: TieRule) -> CrossedRow:
    """Make the row of a case with a ``site``, a ``design``, a ``top`` and the fields of a request.

    Zeros in it have either sign.
    """
    site, params = case["site"], params_of(case)
    y = case["design"].make(rng, site.size, params)
    logits = round_to_dtype(_largest_logit(case, site) + params.temperature * y, site.torch_dtype)
    logits[(logits == 0) & torch.from_numpy(rng.random(site.size) < 0.5)] *= -1
    return CrossedRow(site, str(case["design"]), logits, params, tie_rule)


def row_of(
    capabilities: Capabilities, site: Site, design: str, logits: Array | torch.Tensor, params: SamplingParams
) -> CrossedRow:
    """Make a row from a tensor in the dtype of the site, or from float64 values rounded to the dtype."""
    if not isinstance(logits, torch.Tensor):
        logits = round_to_dtype(logits, site.torch_dtype)
    return CrossedRow(site, design, logits, params, capabilities.tie_rule)


def _largest_logit(case: Case, site: Site) -> Array:
    """Return the largest logit, exact in the dtype.

    On the threshold of min-p the values of a dtype lie densest if it is at zero.
    """
    top, temperature = case.get("top", LARGEST_Y_SHIFT), case["temperature"]
    if case["design"].needs == "min_p":
        top = -np.log(case["min_p"])
    return (
        round_to_dtype(np.array(top if abs(top) > 1000 else top * temperature), site.torch_dtype)
        .double()
        .numpy()
    )


def round_to_dtype(values: Array, dtype: torch.dtype) -> torch.Tensor:
    """Round float64 values to a dtype, within its finite range."""
    limit = torch.finfo(dtype).max
    return torch.as_tensor(np.clip(values, -limit, limit)).to(dtype)


def _bell(rng: Generator, size: int, params: SamplingParams) -> Array:
    """Gaussian, from a wide nucleus to a narrow nucleus."""
    y = rng.choice([0.5, 2.0, 4.0]) * rng.standard_normal(size)
    return np.asarray(y - y.max())


def _flat(rng: Generator, size: int, params: SamplingParams) -> Array:
    """Gaussian of any width, mostly with all its mass far below the nucleus of a small p."""
    y = np.exp(rng.uniform(np.log(1e-3), np.log(10.0))) * rng.standard_normal(size)
    return np.asarray(y - y.max())


def _peaked(rng: Generator, size: int, params: SamplingParams) -> Array:
    """Like a language model's."""
    y = -1.3 * np.log(rng.permutation(size) + 1) + 0.05 * rng.standard_normal(size)
    return np.asarray(y - y.max())


def _stairs(rng: Generator, size: int, params: SamplingParams) -> Array:
    """Gaussian in steps of a quarter: ties everywhere, in every dtype."""
    y = np.round(8 * rng.standard_normal(size)) / 4
    return np.asarray(y - y.max())


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
    return np.asarray(np.minimum(y, 0.0))


def _tied_at_k(rng: Generator, size: int, params: SamplingParams) -> Array:
    """The k-th largest is one of many ties with most of the mass; the rest holds as much again."""
    num_ties_kept = max(1, params.top_k // 50)
    above = params.top_k - num_ties_kept
    num_ties = min(max(600, 20 * num_ties_kept, 3 * above), max(2, (size - above) * 2 // 3))
    y = np.concatenate(
        [rng.uniform(-0.9, 0.0, above), np.full(num_ties, -1.0), np.zeros(size - above - num_ties)]
    )
    y = y[:size]
    _fill(y, above + num_ties, share=0.5, below=-1.1)
    return rng.permutation(y - y.max())


def _plateau_at_p(rng: Generator, size: int, params: SamplingParams) -> Array:
    """Equal tokens cross p together; the tokens below hold the mass outside the nucleus.

    In a large vocabulary each level has a tile of its own: the noise of three tiles then tells what was kept.
    """
    p, head = params.top_p, max(1, min(5, size // 6))
    num_ties = min(size - head, max(1, min(400, size // 3)))
    below = min(500, size - head - num_ties)
    shares = np.concatenate(
        [
            np.full(head, 0.6 * p / head) * np.linspace(1.1, 0.9, head),
            np.full(num_ties, (p + 0.6 * (1 - p) - 0.6 * p) / max(num_ties, 1)),
            np.full(below, 0.4 * (1 - p) / max(below, 1)),
        ]
    )
    y = np.log(shares)
    y -= y.max()
    row = np.full(size, min(NEGLIGIBLE, y.min() - 10))
    tiles = size // reference.TILE_SIZE
    if tiles < 3:
        row[rng.permutation(size)[: len(y)]] = y
        return row
    starts = np.repeat(rng.choice(tiles, 3, replace=False) * reference.TILE_SIZE, [head, num_ties, below])
    offsets = np.concatenate([rng.permutation(reference.TILE_SIZE)[:n] for n in (head, num_ties, below)])
    row[starts + offsets] = y
    return row


def _edges_of_min_p(rng: Generator, size: int, params: SamplingParams) -> Array:
    """Heavy levels just above and just below the threshold, nearer than a step of bfloat16 at its distance."""
    floor = np.log(params.min_p)
    group = max(1, min(size // 3, int(20 / params.min_p)))
    y = np.full(size, floor - 9.0)
    y[0], y[1 : 1 + group], y[1 + group : 1 + 2 * group] = 0.0, min(floor + 0.003, 0.0), floor - 0.003
    return rng.permutation(y)


def _fill(y: Array, start: int, *, share: float, below: float) -> None:
    """Give the tokens from ``start`` on a share of the mass before ``start``, but no token more than ``below``."""
    if start < len(y):
        level = np.log(share * np.exp(y[:start]).sum() / (len(y) - start))
        y[start:] = min(level, below)


PLATEAU: Final = Design("plateau at p", _plateau_at_p, "top_p")
FLAT: Final = Design("flat", _flat)
DESIGNS: Final = (
    Design("bell", _bell),
    Design("peaked", _peaked),
    Design("stairs", _stairs),
    Design("last ids", _last_ids),
    Design("deep bulk", _deep_bulk),
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

    :param size: V, at least 64.
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


def factors(subject: RowSubject) -> Factors:
    """Return the factors of rows of logits."""
    return {"site": sites(subject.capabilities, subject.effort), **_row_factors(subject.capabilities)}


def covering_rows(
    subject: RowSubject, rng: Generator, *, on_thresholds: bool = False
) -> dict[Site, list[CrossedRow]]:
    """Make the rows of a covering table, by site.

    :param on_thresholds: adds :func:`threshold_rows` in all but wide vocabularies, as :func:`share_among_dtypes` does.
    """
    cases = subject.effort.some(covering(factors(subject), rng, is_allowed))
    rows_by_site: dict[Site, list[CrossedRow]] = {}
    for case in cases:
        rows_by_site.setdefault(case["site"], []).append(
            crossed_row(case, rng, subject.capabilities.tie_rule)
        )
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
    domains, cases = {"site": [site], **_row_factors(capabilities), "top": TOPS[:1]}, list[Case]()
    for design in domains["design"]:
        with contextlib.suppress(ValueError):  # its filter needs more tokens
            cases.append(random_case({**domains, "design": [design]}, rng, is_allowed))
    return [crossed_row(case, rng, capabilities.tie_rule) for case in cases]


def threshold_rows(capabilities: Capabilities, site: Site, rng: Generator) -> list[CrossedRow]:
    """Make a row on the threshold of each value of each filter, in one dtype and vocabulary."""
    domains = {"site": [site], **_row_factors(capabilities), "top": TOPS[:1]}
    thresholds = [
        (design, value) for design in domains["design"] if design.needs for value in domains[design.needs]
    ]
    disabled_filters = {name: [NO_FILTERS[name]] for name in ("top_k", "top_p", "min_p")}
    rows = []
    for design, value in thresholds:
        values = {**domains, **disabled_filters, "design": [design], design.needs: [value]}
        if is_allowed({"site": site, "design": design, design.needs: value}):
            rows.append(crossed_row(random_case(values, rng, is_allowed), rng, capabilities.tie_rule))
    return rows


def _row_factors(capabilities: Capabilities) -> Factors:
    filters = request_factors(capabilities)
    designs = [design for design in DESIGNS if design.needs is None or len(filters[design.needs]) > 1]
    return {"design": designs, "top": TOPS, **filters}
