"""Requests within the capabilities of a subject, and rows of a call with their requests: of tables, and at random."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.filters import required_moments
from tokendraw.plugin import Capabilities
from tokendraw_testing import reference
from tokendraw_testing.cases.factors import Kind, Site, kinds
from tokendraw_testing.cases.rows import HEAD, WIDE_SIZE, CrossedRow, floor_designs, row_of
from tokendraw_testing.subjects import RowSubject, SampleSubject, crossed_orders

Array = NDArray[Any]
Fields = Callable[[Generator], dict[str, Any]]
"""Makes fields of a request at random."""
AnyCapabilities = TypeVar("AnyCapabilities", bound=Capabilities)

SHIPPED: Final[Mapping[str, Fields]] = {
    "top_n_sigma": lambda rng: {"top_n_sigma": float(rng.uniform(0.3, 2.0))},
    "epsilon_cutoff": lambda rng: {"epsilon_cutoff": float(np.exp(rng.uniform(np.log(1e-4), np.log(0.2))))},
    "eta_cutoff": lambda rng: {"eta_cutoff": float(np.exp(rng.uniform(np.log(1e-3), np.log(0.6))))},
    "p_less": lambda rng: {"p_less": 1.0},
}
"""Filters from moments that tokendraw ships, with random values."""
LAW: Final = np.array([0.4, 0.3, 0.2, 0.06, 0.04])
"""Probabilities of a row; at threshold 0.1 XTC leaves the last three tokens."""
_LAST: Final = "temperature_last"
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


def combinations(capabilities: Capabilities, size: int) -> list[SamplingParams]:
    """Mix temperatures, filters and orders for a vocabulary of ``size``; the plain request comes first."""
    filters = {name for name, _ in capabilities.filters}
    limit = capabilities.max_top_k
    ks = [k for k in (0, 1, 40, max(1, size // 2), 2**30) if limit is None or k <= limit]
    top_k = ks if "top_k" in filters else [0]
    top_p = (1.0, 0.9, 0.3) if "top_p" in filters else (1.0,)
    min_p = (0.0, 0.05) if "min_p" in filters else (0.0,)
    requests = [
        SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m, filter_order=order)
        for t, k, p, m, order in itertools.product(
            (1.0, 0.6), top_k, top_p, min_p, crossed_orders(capabilities)
        )
    ]
    return requests + ([SamplingParams(temperature=0.0)] if capabilities.greedy else [])


def describe(params: SamplingParams) -> str:
    """Describe a request in words."""
    words = [
        f"{name} = {value:.10g}"
        for name, default in _DEFAULTS.items()
        if (value := getattr(params, name)) != default
    ]
    words += [f"{name} = {value:.10g}" for name, value in (params.filters or {}).items()]
    return ", ".join(words) or "a plain row"


def scalar_filters(capabilities: Capabilities) -> tuple[str, ...]:
    """List the filters with one value for the whole batch."""
    per_row = {name for name, how in capabilities.filters if how == "per_row"}
    return tuple(name for name, how in capabilities.filters if how == "scalar" and name not in per_row)


def per_row(capabilities: AnyCapabilities) -> AnyCapabilities:
    """Return capabilities with the filters that are served per row alone."""
    return replace(capabilities, filters=tuple(pair for pair in capabilities.filters if pair[1] == "per_row"))


def tokens_of(
    subject: SampleSubject,
    logits: torch.Tensor | Array,
    params: Sequence[SamplingParams],
    positions: Sequence[int] | None = None,
    **options: Any,
) -> Array:
    """Draw the tokens of rows with different requests: in one call, or in one call for each value of a scalar filter.

    :param options: of :meth:`SampleSubject.tokens`.
    """
    logits = torch.as_tensor(logits)
    names = scalar_filters(subject.capabilities)
    if not names:
        return subject.tokens(logits, params, positions, **options)
    tokens = np.zeros(len(params), np.int64)
    keys = [tuple(getattr(p, name) for name in names) for p in params]
    for key in dict.fromkeys(keys):
        rows = [i for i, k in enumerate(keys) if k == key]
        part = None if positions is None else [positions[i] for i in rows]
        tokens[rows] = subject.tokens(logits[rows], [params[i] for i in rows], part, **options)
    return tokens


def has_filter(which: str) -> Callable[[Any], bool]:
    """Make the predicate of capabilities with a filter, per row or scalar."""
    return lambda capabilities: any(name == which for name, _ in capabilities.filters)


def has_counter(capabilities: Capabilities) -> bool:
    """Whether rows may bring seeds of their own."""
    return capabilities.seeding == "counter"


def has_logprobs(capabilities: Capabilities) -> bool:
    """Tell whether any logprobs mode is served."""
    return bool(capabilities.logprobs_modes)


def seedings(capabilities: Capabilities) -> tuple[bool, ...]:
    """List whether rows bring seeds: False, and True if seeds are served."""
    return (False, True) if has_counter(capabilities) else (False,)


def seed_torch(rng: Generator) -> None:
    """Seed torch from ``rng`` for the unseeded rows of the next calls."""
    torch.manual_seed(int(rng.integers(2**63)))


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
        """Return the request with the decision about XTC that its row has."""
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
        differs = (np.log(tile_masses[tiles]) + noise).argmax(1) != (
            np.log(kept_masses[tiles]) + noise
        ).argmax(1)
    return [int(position) for position in positions[differs][:count]]


def stack_logits(batch: Sequence[CrossedRequest], device: torch.device) -> torch.Tensor:
    """Return the logits [B, V] of a batch on a device, in their dtype."""
    rows = {id(request.row.logits): request.row.logits for request in batch}
    places = {key: i for i, key in enumerate(rows)}
    unique_rows = torch.stack(list(rows.values())).to(device)
    return unique_rows[torch.tensor([places[id(request.row.logits)] for request in batch], device=device)]


def parts_of_equal_scalars(
    subject: RowSubject, batch: Sequence[CrossedRequest]
) -> list[list[CrossedRequest]]:
    """Divide a batch by the values of the scalar filters."""
    names = scalar_filters(subject.capabilities)
    parts: dict[tuple[object, ...], list[CrossedRequest]] = {}
    for request in batch:
        parts.setdefault(tuple(getattr(request.params, name) for name in names), []).append(request)
    return list(parts.values())


def shipped_filters(capabilities: Capabilities) -> list[str]:
    """List the filters from moments that tokendraw ships and whose moments are advertised."""
    return [name for name in SHIPPED if {*required_moments([name])} <= {*capabilities.row_moments}]


def further_filters(capabilities: Capabilities) -> dict[str, Fields]:
    """Return the advertised filters and orders beside those of the tables: fields of a request with each, by name."""
    has = {name for name, how in capabilities.filters if how == "per_row"}
    further: dict[str, Fields] = {"typical-p": _typical} if "typical_p" in has else {}
    further |= {"XTC": _xtc} if "xtc" in has else {}
    if _LAST in capabilities.filter_orders and capabilities.filters:
        further[_LAST] = lambda rng: {"filter_order": _LAST}
    for name in shipped_filters(capabilities):
        further[name] = lambda rng, name=name: {"filters": SHIPPED[name](rng)}  # type: ignore[misc]
    return further


def _typical(rng: Generator) -> dict[str, Any]:
    return {"typical_p": float(rng.choice((0.05, 0.3, 0.6, 0.9, 0.999)))}


def _xtc(rng: Generator) -> dict[str, Any]:
    threshold = float(rng.choice((0.5, 0.2, 0.1, 0.01, 1e-4)))
    return {"xtc_probability": float(rng.choice((0.5, 0.9, 1.0))), "xtc_threshold": threshold}


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
    subject: RowSubject, site: Site, rng: Generator, own: Sequence[Fields] = (), *, needs_seed: bool = False
) -> Iterator[CrossedRequest]:
    """Make rows of each design with each further filter or order, with the kinds of rows in turn.

    :param own: fields of requests in place of these.
    :param needs_seed: whether XTC leaves a row without a seed alone, as in scores.
    """
    capabilities, row_kinds = subject.capabilities, kinds(subject.capabilities)
    choices = list(own or further_filters(capabilities).values())
    copies = 1 if site.size > WIDE_SIZE else _COPIES
    for number, fields in enumerate(choices * copies):
        for i, (design, y) in enumerate(floor_designs(rng, site.size).items()):
            kind = row_kinds[(i + number) % len(row_kinds)]
            params = further_params(capabilities, fields, rng)
            scale = 1.0 if params.filter_order == _LAST else params.temperature
            with np.errstate(over="ignore"):
                logits = torch.from_numpy(y * scale + (0.0, -3.0, 20.0)[i % 3])
            yield _decided(subject, site, design, logits, params, kind, rng, needs_seed=needs_seed)
    if not own:
        yield from _joint_filters(subject, site, rng, needs_seed=needs_seed)


def _joint_filters(
    subject: RowSubject, site: Site, rng: Generator, *, needs_seed: bool
) -> Iterator[CrossedRequest]:
    """Make rows in the order ``joint`` where a filter counts mass that another drops: one a kind, more with seeds.

    Where min-p leaves less mass than top-p asks for, the second token has 0.43 of the mass that min-p leaves and 0.32
    of top-p: with a threshold of 0.37 XTC drops the first token, unless it takes the kept mass for top-p. Of the
    uniforms of the seeds half apply XTC. Below a head that typical-p drops, a nucleus with the head ends earlier.
    """
    served = {name for name, _ in subject.capabilities.filters}
    if "joint" not in subject.capabilities.filter_orders or site.size < len(LAW):
        return
    law = np.full(site.size, -30.0)
    law[rng.permutation(site.size)[: len(LAW)]] = np.log(LAW)
    row_kinds = kinds(subject.capabilities)
    rows: list[tuple[str, Array, dict[str, float]]] = []
    if {"min_p", "top_p", "xtc"} <= served:
        fields = {"min_p": 0.6, "top_p": 0.95, "xtc_probability": 0.5, "xtc_threshold": 0.37}
        rows.append(("law", law, fields))
    if {"typical_p", "top_p"} <= served:
        rows.append((HEAD, floor_designs(rng, site.size)[HEAD], {"typical_p": 0.6, "top_p": 0.5}))
    for design, y, fields in rows:
        params = SamplingParams(filter_order="joint", **fields)  # type: ignore[arg-type]
        for kind in row_kinds + ["seeded"] * (_SEEDED_COPIES if "seeded" in row_kinds else 0):
            yield _decided(
                subject, site, design, torch.from_numpy(y), params, kind, rng, needs_seed=needs_seed
            )


def _decided(
    subject: RowSubject,
    site: Site,
    design: str,
    logits: torch.Tensor,
    params: SamplingParams,
    kind: Kind,
    rng: Generator,
    *,
    needs_seed: bool,
) -> CrossedRequest:
    """Make a request of a kind. Its row has XTC where the uniform of the seed applies it; without a seed always."""
    (seed,), (position,) = random_seeds(rng, 1)
    is_applied = params.xtc_probability > 0
    if is_applied and kind == "seeded":
        is_applied = reference.applies_xtc(params, seed, position, subject.gumbel_dtype)
    elif is_applied and needs_seed and kind != "greedy with a seed":
        is_applied = False
    elif is_applied and kind == "unseeded":
        params = replace(params, xtc_probability=1.0)
    decided = replace(params, xtc_probability=float(is_applied))
    row = row_of(subject.capabilities, site, design, logits.to(site.torch_dtype), decided)
    return CrossedRequest(row, _of_kind(params, kind, seed), position)
