"""Requests within the capabilities of a subject, and rows of a call with their requests: of tables, and at random."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.random import Generator

from tokendraw import SamplingMetadata, SamplingParams
from tokendraw.filters import required_moments
from tokendraw.plugin import Capabilities, FilterOrder, GumbelDtype, LogprobsMode
from tokendraw_testing import reference
from tokendraw_testing.cases import rows as designed
from tokendraw_testing.cases.rows import CrossedRow, Kind, Site, crossed_row, floor_designs, kinds, row_of
from tokendraw_testing.kit.subject import RowSubject, crossed_orders
from tokendraw_testing.logits_families import FAMILIES
from tokendraw_testing.reference import Array

Fields = Callable[[Generator], dict[str, Any]]
"""Makes fields of a request at random."""
AnyCapabilities = TypeVar("AnyCapabilities", bound=Capabilities)

SHIPPED: Final = {
    "top_n_sigma": (0.3, 2.0),
    "epsilon_cutoff": (1e-4, 0.2),
    "eta_cutoff": (1e-3, 0.6),
    "p_less": (1.0, 1.0),
}
"""Filters from moments that tokendraw ships, with their least and greatest values."""
LAW: Final = np.array([0.4, 0.3, 0.2, 0.06, 0.04])
"""Probabilities of a row; at threshold 0.1 XTC leaves the last three tokens."""
_LAST: Final[FilterOrder] = "temperature_last"
_TEMPERATURES: Final = (1.0, 0.7, 2.5, 0.004, 150.0, 1e-6, 1e6)
_COPIES: Final = 3
"""Rows of each design and further filter in narrow vocabularies."""
_SEEDED_COPIES: Final = 8
_DEFAULTS: Final = {
    name: getattr(SamplingParams(), name)
    for name in ("temperature", "top_k", "top_p", "min_p", "typical_p", "xtc_probability", "xtc_threshold")
}
_MOST_POSITIONS: Final = 1 << 17
_MOST_TILES: Final = 8
_HITS: Final = 4
"""Telling positions to expect among the tried positions."""
_COMBINED_SIZES: Final = (2, 31, 1025)
_KEEPING_FILTERS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"top_p": 1 - 2e-5},
    {"min_p": 1e-8},
    {"top_k": 2**30},
    {"top_k": 1500, "min_p": 1e-8},
)
"""Fields of requests that keep all tokens of a row with 905 heavy tokens."""


def describe(params: SamplingParams) -> str:
    words = [
        f"{name} = {value:.10g}"
        for name, default in _DEFAULTS.items()
        if (value := getattr(params, name)) != default
    ]
    words += [f"{name} = {value:.10g}" for name, value in (params.filters or {}).items()]
    return ", ".join(words) or "a plain row"


def per_row(capabilities: AnyCapabilities) -> AnyCapabilities:
    """Return capabilities with the filters that are served per row alone."""
    return replace(capabilities, filters=tuple(pair for pair in capabilities.filters if pair[1] == "per_row"))


def has_filter(which: str) -> Callable[[Any], bool]:
    """Make the predicate of capabilities with a filter, per row or scalar."""
    return lambda capabilities: any(name == which for name, _ in capabilities.filters)


def has_counter(capabilities: Capabilities) -> bool:
    return capabilities.seeding == "counter"


def seedings(capabilities: Capabilities) -> tuple[bool, ...]:
    return (False, True) if has_counter(capabilities) else (False,)


def random_seeds(rng: Generator, rows: int) -> tuple[list[int], list[int]]:
    """Make seeds over all 64 bits and positions over 40 bits, for unrelated rows."""
    return rng.integers(0, 2**64, rows, np.uint64).tolist(), rng.integers(0, 2**40, rows).tolist()


@dataclass(frozen=True)
class CrossedRequest:
    """A row of a call: logits, the request with its seed or temperature 0, and its position."""

    row: CrossedRow
    params: SamplingParams
    position: int

    @property
    def row_params(self) -> SamplingParams:
        """Return the request with the row's decision about XTC."""
        return replace(self.params, xtc_probability=self.row.params.xtc_probability)

    @property
    def has_ceiling(self) -> bool:
        """Whether a filter may drop tokens from above: XTC does so in rows with a seed, or where it is sure to."""
        is_xtc = self.params.seed is not None or self.row.params.xtc_probability > 0
        return self.params.typical_p < 1 or (self.params.xtc_probability > 0 and is_xtc)

    def asking(self, logprobs: int | None, ids: Sequence[int] | None = None) -> CrossedRequest:
        """Return the same request with this many logprobs, and with ``logprob_token_ids``."""
        given = None if ids is None else tuple(ids)
        return replace(self, params=replace(self.params, logprobs=logprobs, logprob_token_ids=given))

    def __str__(self) -> str:
        return self._words

    @functools.cached_property
    def _words(self) -> str:
        seed, order = self.params.seed, self.params.filter_order
        words = f"{self.row.site}, {self.row.design}, {describe(self.params)}"
        words += {"joint": ", joint order", _LAST: ", temperature last"}.get(order, "")
        return words + (f", seed {seed} at position {self.position}" if seed is not None else "")


def make_requests(row: CrossedRow, kinds: Sequence[Kind], rng: Generator) -> list[CrossedRequest]:
    """Make requests of the given kinds from a row, with seeded requests at telling positions."""
    seeds, positions = random_seeds(rng, len(kinds))
    seeded = [i for i, kind in enumerate(kinds) if kind == "seeded"]
    if seeded:
        telling = telling_positions(row, seeds[seeded[0]], rng, len(seeded))
        for i, position in zip(seeded, telling, strict=False):
            seeds[i], positions[i] = seeds[seeded[0]], position
    return [
        CrossedRequest(row, _of_kind(row.params, kind, seed), position)
        for kind, seed, position in zip(kinds, seeds, positions, strict=True)
    ]


def _of_kind(params: SamplingParams, kind: Kind, seed: int) -> SamplingParams:
    params = replace(params, temperature=0.0) if "greedy" in kind else params
    return replace(params, seed=seed) if kind in ("seeded", "greedy with a seed") else params


def requests_in_turn(
    rows: Sequence[CrossedRow], kinds: Sequence[Kind], copies: int, rng: Generator, turn: int = 0
) -> list[CrossedRequest]:
    """Make ``copies`` requests of each row, with the kinds in turn over rows and copies."""
    return [
        request
        for i, row in enumerate(rows, turn)
        for request in make_requests(row, [kinds[(i + j) % len(kinds)] for j in range(copies)], rng)
    ]


def telling_positions(row: CrossedRow, seed: int, rng: Generator, count: int) -> list[int]:
    """Find at most ``count`` positions where the seed draws a different tile without the filters; often none.

    Where the mass lies in few tiles, their noise alone says so, and thousands of positions are tried at once.
    """
    y, kept = row.prepared.y, row.prepared.kept
    if row.prepared.empty or kept.all():
        return []
    first = np.arange(0, len(y), reference.TILE_SIZE)
    weights = np.exp(y)
    tile_masses = np.add.reduceat(weights, first)
    weights[~kept] = 0.0
    kept_masses = np.add.reduceat(weights, first)
    dropped_share = 1 - kept_masses.sum() / tile_masses.sum()
    tiles = np.flatnonzero(tile_masses > 1e-9 * tile_masses.sum())
    if not 1 < len(tiles) <= _MOST_TILES or dropped_share < 1e-6:
        return []
    count_tried = min(_MOST_POSITIONS, int(_HITS * count / dropped_share))
    positions = int(rng.integers(2**40)) + np.arange(count_tried)
    noise = reference.gumbel(seed, positions[:, None], tiles, reference.TILE)
    with np.errstate(divide="ignore"):
        whole, kept_tile = ((np.log(m[tiles]) + noise).argmax(1) for m in (tile_masses, kept_masses))
    return [int(position) for position in positions[whole != kept_tile][:count]]


def request_metadata(batch: Sequence[CrossedRequest], device: torch.device) -> SamplingMetadata:
    params, positions = [request.params for request in batch], [request.position for request in batch]
    return SamplingMetadata.from_params(params, device=device, positions=positions)


@dataclass(frozen=True)
class RowCall:
    """The rows of a call, and how it is made."""

    requests: Sequence[CrossedRequest]
    mode: LogprobsMode | None = None
    """Of logprobs; None: no row asks for any."""
    dtype: GumbelDtype | None = None
    """Precision of the noise; None: the usual one."""
    threshold: bool = False
    """Whether it returns thresholds, where they are served: a backend may draw another way then."""
    order: Sequence[int] | None = None
    """The slot of each request's parameters; None: they are one a row."""


def stack_logits(batch: Sequence[CrossedRequest], device: torch.device) -> torch.Tensor:
    """Return the logits [B, V] of a batch on a device, in their dtype."""
    rows = {id(request.row.logits): request.row.logits for request in batch}
    number_of = {key: i for i, key in enumerate(rows)}
    unique_rows = torch.stack(list(rows.values())).to(device)
    return unique_rows[torch.tensor([number_of[id(request.row.logits)] for request in batch], device=device)]


def parts_of_equal_scalars(
    subject: RowSubject, batch: Sequence[CrossedRequest]
) -> list[list[CrossedRequest]]:
    filters = subject.capabilities.filters
    names = [name for name, how in filters if how == "scalar" and (name, "per_row") not in filters]
    parts: dict[tuple[object, ...], list[CrossedRequest]] = {}
    for request in batch:
        parts.setdefault(tuple(getattr(request.params, name) for name in names), []).append(request)
    return list(parts.values())


def combined_requests(subject: RowSubject, kind: Kind, rng: Generator) -> Iterator[list[CrossedRequest]]:
    """Make batches of every combination of filters, also three at once, over rows of every family and few ids."""
    capabilities = subject.capabilities
    for dtype, size in itertools.product(capabilities.dtypes, _COMBINED_SIZES):
        if size <= (capabilities.max_vocab_size or size):
            site, requests = Site(dtype, size), designed.combinations(capabilities, size)
            families = itertools.cycle(FAMILIES.items())
            yield [
                make_requests(row_of(capabilities, site, name, family(rng, size), params), [kind], rng)[0]
                for params, (name, family) in zip(requests[:: subject.effort.fewer], families, strict=False)
            ]


def served_requests(capabilities: Capabilities, choices: Iterable[dict[str, Any]]) -> list[SamplingParams]:
    """Make the requests of those fields whose filters are served, top-k where there is no limit to it."""
    limit, order = capabilities.max_top_k, crossed_orders(capabilities)[0]
    served = {name for name, _ in capabilities.filters if name != "top_k" or limit is None}
    return [SamplingParams(**fields, filter_order=order) for fields in choices if fields.keys() <= served]


def unfiltered_requests(subject: RowSubject, site: Site, rng: Generator) -> list[CrossedRequest]:
    """Make requests that keep all tokens, of a slope, and of a row whose seeds draw from 0.0002 of its mass."""
    c = subject.capabilities
    if not has_counter(c) or site.size < 3 * reference.TILE_SIZE:
        return []
    kept = served_requests(c, _KEEPING_FILTERS)
    case = {"site": site, "design": designed.PLATEAU, **designed.NO_FILTERS, "top_p": 0.9995}
    row, ((seed, _), positions) = crossed_row(case, rng, c.tie_rule), random_seeds(rng, 2)
    slope = row_of(c, site, "a slope", -2 * rng.permutation(site.size) / site.size, row.params)
    draws = list(zip(itertools.repeat(row), kept, telling_positions(row, seed, rng, len(kept)), strict=False))
    draws += [(slope, params, position) for params in kept[:1] for position in positions]
    return [
        CrossedRequest(replace(each, params=params), replace(params, seed=seed), position)
        for each, params, position in draws
    ]


def further_filters(capabilities: Capabilities) -> dict[str, Fields]:
    """Return the advertised filters and orders beside those of the tables: fields of a request with each, by name."""
    has = {name for name, how in capabilities.filters if how == "per_row"}
    further: dict[str, Fields] = {}
    if "typical_p" in has:
        further["typical-p"] = lambda rng: {"typical_p": float(rng.choice((0.05, 0.3, 0.6, 0.9, 0.999)))}
    if "xtc" in has:
        further["XTC"] = lambda rng: {
            "xtc_probability": float(rng.choice((0.5, 0.9, 1.0))),
            "xtc_threshold": float(rng.choice((0.5, 0.2, 0.1, 0.01, 1e-4))),
        }
    if _LAST in capabilities.filter_orders and capabilities.filters:
        further[_LAST] = lambda rng: {"filter_order": _LAST}
    for name, (least, most) in SHIPPED.items():
        if {*required_moments([name])} <= {*capabilities.row_moments}:
            further[name] = functools.partial(_shipped, name, least, most)
    return further


def _shipped(name: str, least: float, most: float, rng: Generator) -> dict[str, Any]:
    return {"filters": {name: log_uniform(rng, least, most)}}


def log_uniform(rng: Generator, least: float, most: float) -> float:
    return float(np.exp(rng.uniform(np.log(least), np.log(most))))


def further_params(capabilities: Capabilities, fields: Fields, rng: Generator) -> SamplingParams:
    """Make a request with a further filter or order, mostly beside others."""
    others: dict[str, Any] = {
        "top_k": min(int(rng.choice((3, 8, 40))), capabilities.max_top_k or 40),
        "top_p": float(rng.choice((0.5, 0.8, 0.95))),
        "min_p": float(rng.choice((0.02, 0.1, 0.3))),
    }
    asked = fields(rng)
    share = 0.2 if "filters" in asked else 0.35  # beside a floor a filter soon hides where it lies
    made = {n: v for n, v in others.items() if has_filter(n)(capabilities) and rng.random() < share}
    if capabilities.tie_rule == "exact_k":  # the tied token that it keeps would decide what the others see
        made.pop("top_k", None)
    for more in further_filters(capabilities).values():
        made |= more(rng) if rng.random() < 0.08 else {}
    made = {"filter_order": str(rng.choice(crossed_orders(capabilities)))} | made | asked
    return SamplingParams(temperature=float(rng.choice(_TEMPERATURES)), **made)


def further_requests(
    subject: RowSubject, site: Site, rng: Generator, own: Sequence[Fields] = ()
) -> Iterator[CrossedRequest]:
    """Make rows of each design with each further filter or order, with the kinds of rows in turn."""
    c, row_kinds = subject.capabilities, kinds(subject.capabilities)
    choices = list(own or further_filters(c).values()) * (1 if site.size > designed.WIDE_SIZE else _COPIES)
    for number, fields in enumerate(choices):
        for i, (design, y) in enumerate(floor_designs(rng, site.size).items()):
            params = further_params(c, fields, rng)
            scale = 1.0 if params.filter_order == _LAST else params.temperature
            with np.errstate(over="ignore"):
                logits = torch.from_numpy(y * scale + (0.0, -3.0, 20.0)[i % 3])
            kind = row_kinds[(i + number) % len(row_kinds)]
            yield _decided(subject, site, design, logits, params, kind, rng)
    if not own:
        yield from _joint_filters(subject, site, rng)


def _joint_filters(subject: RowSubject, site: Site, rng: Generator) -> Iterator[CrossedRequest]:
    """Make rows where a filter counts mass that another drops: one a kind, more with seeds.

    Where min-p leaves less mass than top-p asks for, the second token has 0.43 of the mass that min-p leaves and 0.32
    of top-p: with a threshold of 0.37 XTC drops the first token, unless it takes the kept mass for top-p. Of the
    uniforms of the seeds half apply XTC. Below a head that typical-p drops, a nucleus with the head ends earlier. With
    the temperature last top-p counts what min-p drops, and keeps a third token. A floor from the deviation of what
    top-k leaves would drop the third.
    """
    c, row_kinds = subject.capabilities, kinds(subject.capabilities)
    if site.size < len(LAW):
        return
    law = np.full(site.size, -30.0)
    law[rng.permutation(site.size)[: len(LAW)]] = np.log(LAW)
    xtc = {"min_p": 0.6, "top_p": 0.95, "xtc_probability": 0.5, "xtc_threshold": 0.37}
    head = floor_designs(rng, site.size)[designed.HEAD]
    rows: tuple[tuple[FilterOrder, str, Array, dict[str, Any]], ...] = (
        ("joint", "law", law, xtc),
        ("joint", designed.HEAD, head, {"typical_p": 0.6, "top_p": 0.5}),
        (_LAST, "law", law, {"min_p": 0.4, "top_p": 0.75}),
        ("top_k_first", "law", law, {"top_k": 3, "filters": {"top_n_sigma": 1.0}}),
    )
    served = {name for name, _ in c.filters} | ({"filters"} if "std" in c.row_moments else set())
    for order, design, y, fields in rows:
        needed = {name.partition("_prob")[0] for name in fields} - {"xtc_threshold"}
        # With top-k the third and the fourth of the law are tied.
        is_by_value = "top_k" not in needed or c.tie_rule == "value"
        if order in c.filter_orders and needed <= served and is_by_value:
            params = SamplingParams(filter_order=order, **fields)
            for kind in row_kinds + ["seeded"] * (_SEEDED_COPIES if "seeded" in row_kinds else 0):
                yield _decided(subject, site, design, torch.from_numpy(y), params, kind, rng)


def _decided(
    subject: RowSubject,
    site: Site,
    design: str,
    logits: torch.Tensor,
    params: SamplingParams,
    kind: Kind,
    rng: Generator,
) -> CrossedRequest:
    """Make a request of a kind. Its row has XTC where the uniform of the seed applies it; without a seed always."""
    (seed,), (position,) = random_seeds(rng, 1)
    is_applied = params.xtc_probability > 0
    if is_applied and kind == "seeded":
        is_applied = reference.applies_xtc(params, seed, position, subject.gumbel_dtype)
    elif is_applied and subject.operation == "score" and kind != "greedy with a seed":
        is_applied = False  # a score leaves a row without a seed alone
    elif is_applied and kind == "unseeded":
        params = replace(params, xtc_probability=1.0)
    decided = replace(params, xtc_probability=float(is_applied))
    row = row_of(subject.capabilities, site, design, logits.to(site.torch_dtype), decided)
    return CrossedRequest(row, _of_kind(params, kind, seed), position)
