"""Statistics of ``sample``: draws follow the distribution, tails included, and no noise is used twice."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.philox import TILE_SIZE
from tokendraw_testing import reference
from tokendraw_testing.cases.factors import Site, covering, is_allowed, random_case, sites, some_sites
from tokendraw_testing.cases.requests import (
    CrossedRequest,
    combinations,
    has_counter,
    random_seeds,
    scalar_filters,
    seed_torch,
    seedings,
    tokens_of,
)
from tokendraw_testing.cases.rows import (
    LARGEST_Y_SHIFT,
    TOPS,
    WIDE_SIZE,
    CrossedRow,
    crossed_row,
    factors,
    row_of,
    special_rows,
    threshold_rows,
)
from tokendraw_testing.judges.expectation import expect
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.statistical_tests import fit, independence, pool_tokens, share
from tokendraw_testing.kit.trial import Experiment, Trial, Verdict, Violation
from tokendraw_testing.logits_families import bimodal, gaussian, zipf
from tokendraw_testing.statistics.draws import coincidences, draw_many, fit_experiment, worst_of
from tokendraw_testing.subjects import SampleSubject, crossed_orders

properties = Properties("sample")
Array = NDArray[Any]

_WIDE_TAIL, _TILE_TAIL = (14.0, 30), (13.0, 30)
"""Gap below the head, and how many draws of the tail to expect, in every dtype; to see none is no chance then."""
_EXACT_TAILS: Final = ((14.0, 20), (18.0, 20), (20.5, 20))
"""Gaps below the head, each with how many seeded draws of the tail are compared with the reference."""


@properties.required("distribution")
def distribution(subject: SampleSubject, trial: Trial) -> str:
    """Tokens follow the softmax, at the seams of kernels, beside poisoned rows and among +inf."""
    words = judge_rows(subject, trial)
    _judge_seams(subject, trial)
    _judge_neighbours(subject, trial)
    _judge_infinities(subject, trial)
    return f"{words}, seams of 2500 equal tokens, rows beside poisoned ones and of +inf"


def judge_rows(subject: SampleSubject, trial: Trial) -> str:
    """Judge draws of rows of a few shapes, with seeds too where they are served."""
    effort, rng = subject.effort, trial.generator("rows")
    small_row = np.log(rng.dirichlet(np.full(40, 0.5))).astype(np.float32)
    skewed_row = np.full(201, np.log(0.01 / 200), np.float32)  # the tail is one per cent of the mass
    skewed_row[100] = np.log(0.99)
    rows: list[tuple[str, Array, float, int]] = [
        ("40 tokens", small_row, 1.0, effort.draws),
        ("a tail of one per cent", skewed_row, 1.0, effort.draws),
        ("temperature 0.6", small_row, 0.6, effort.draws),
        ("temperature 2.5", bimodal(rng, 300), 2.5, effort.draws // 2),
        ("three tiles, peaked", zipf(rng, 2500), 1.0, effort.tiled_draws),
        ("three tiles, gaussian", gaussian(rng, 2500), 2.0, effort.tiled_draws),
    ]
    for seeded in seedings(subject.capabilities):
        for label, row, temperature, draws in rows:
            params = SamplingParams(temperature=temperature)
            p = expect(row, params).probabilities
            experiment = fit_experiment(
                subject, row, params, p, functools.partial(pool_tokens, p), seeded=seeded
            )
            num_draws = draws // (1 + seeded)  # tokens of seeds are compared one by one, too
            trial.judge(f"{label}{', seeded' * seeded}", experiment, num_draws)
    return f"{len(rows)} rows"


def _judge_seams(subject: SampleSubject, trial: Trial) -> None:
    """Judge the halves of the ids, the last partial tile, lanes, and the first and last of a tile of equal tokens."""
    size, draws_by_count = 2500, dict[int, Array]()
    row, ids = np.zeros(size, np.float32), np.arange(size)
    pools = {
        "halves of the vocabulary": (ids >= size // 2).astype(int),
        "tiles, the last partial": ids // TILE_SIZE,
        "lanes of 32": ids % 32,
        "tiles of 128": ids // 128,
        "ends of tiles": np.isin(ids % TILE_SIZE, np.r_[0:16, TILE_SIZE - 16 : TILE_SIZE]).astype(int),
    }

    def experiment(rng: Generator, count: int, bins: Array) -> Verdict:
        if count not in draws_by_count:  # one set of draws serves every way of pooling it
            draws_by_count[count] = draw_many(subject, row, SamplingParams(), count, rng)
        return fit(draws_by_count[count], np.full(size, 1 / size), bins)

    for label, bins in pools.items():
        trial.judge(label, functools.partial(experiment, bins=bins), subject.effort.tiled_draws)


def _judge_neighbours(subject: SampleSubject, trial: Trial) -> None:
    """Judge rows without seeds beside rows with NaN and infinities."""
    num_tokens, probabilities = 60, np.exp(np.linspace(0, -3, 60))
    poison = list(special_rows(trial.generator("poison"), 64).values())
    batch = np.full((2 * len(poison), 64), -np.inf, np.float32)
    batch[::2, :num_tokens], batch[1::2] = np.log(probabilities), np.stack(poison)

    def experiment(rng: Generator, draws: int) -> Verdict:
        seed_torch(rng)
        calls = -(-draws // len(poison))
        logits = torch.from_numpy(batch).repeat(min(calls, 64), 1)
        parts = [subject.tokens(logits, SamplingParams())[::2] for _ in range(-(-calls // 64))]
        return fit(np.concatenate(parts), np.append(probabilities, np.zeros(4)))

    trial.judge("clean rows beside poisoned ones", experiment, subject.effort.tiled_draws)


def _judge_infinities(subject: SampleSubject, trial: Trial) -> None:
    """Judge draws among three tokens of +inf, under a few requests."""
    row, requests = gaussian(trial.generator("+inf"), 1100), combinations(subject.capabilities, 1100)
    row[[5, 800, 1099]], row[20] = np.inf, np.nan
    for i, params in enumerate([*requests[:: max(1, len(requests) // 6)], requests[-1]]):
        if params.temperature > 0 and params.top_k != 1:
            logits = torch.from_numpy(row).to(subject.dtypes[i % len(subject.dtypes)])
            p = expect(logits.double().numpy(), params, subject.capabilities.tie_rule).probabilities
            experiment = fit_experiment(subject, logits, params, p)
            trial.judge(f"tokens of +inf, request {i}", experiment, subject.effort.draws_of(600))


@properties.required("tails")
def tails(subject: SampleSubject, trial: Trial) -> str:
    """Tails that are heavy together and light each keep their mass, however far below the head they lie."""
    size = subject.effort.tail_vocab_size
    size = min(size, subject.capabilities.max_vocab_size or size)
    head = size // 2 + 100
    for gap, hits in subject.effort.tails:
        _judge_tail(subject, trial, torch.float32, size, head, gap, hits)
    for dtype in subject.dtypes:  # in a wide vocabulary, and in one tile, with the noise of tokens alone
        looks = (size, *_WIDE_TAIL), (min(size, TILE_SIZE), *_TILE_TAIL)
        for width, gap, hits in looks[dtype == torch.float32 :]:  # float32 has had the wide one
            most = subject.effort.most_draws
            _judge_tail(subject, trial, dtype, width, head % width, gap, hits, most)
    num_seeded = _require_seeded_tails(subject, trial, size, head) if has_counter(subject.capabilities) else 0
    gaps = ", ".join(f"{gap:g}" for gap, _ in subject.effort.tails)
    return f"gaps {gaps}" + f"; {num_seeded} seeded draws from tails down to gap 20.5" * bool(num_seeded)


def _judge_tail(
    subject: SampleSubject,
    trial: Trial,
    dtype: torch.dtype,
    size: int,
    head: int,
    gap: float,
    hits: int,
    most: int | None = None,
) -> None:
    """Judge the mass of a tail ``gap`` below the head, by draws enough for ``hits`` of the tail, at most ``most``."""
    row = torch.full((size,), -gap, dtype=dtype)
    row[head] = 0
    mass = (size - 1) * np.exp(-gap)
    probability = float(mass / (1 + mass))

    def experiment(rng: Generator, draws: int) -> Verdict:
        tokens = draw_many(subject, row, SamplingParams(), draws, rng)
        return share(int((tokens != head).sum()), draws, probability, f"{size - 1} tail tokens")

    draws = int(np.ceil(hits / probability))
    trial.judge(f"gap {gap:g} below one of {size} in {dtype}", experiment, min(draws, most or draws))


def _require_seeded_tails(subject: SampleSubject, trial: Trial, size: int, head: int) -> int:
    """Draw at seeds and positions where the reference draws from the tail: the tiles alone tell."""
    counts = np.bincount(np.arange(size) // TILE_SIZE)
    head_tile, num_draws = head // TILE_SIZE, 0
    for gap, num_positions in _EXACT_TAILS:
        masses = counts * np.exp(-gap)
        masses[head_tile] += 1 - np.exp(-gap)
        seed = int(trial.generator(f"seed {gap}").integers(2**63))
        positions = _tail_positions(seed, masses, head_tile, subject.effort.rows(num_positions))
        row = np.full(size, np.float32(-gap))
        row[head] = 0
        logits = torch.from_numpy(row).to(subject.device).expand(len(positions), -1)
        tokens = subject.tokens(logits, SamplingParams(seed=seed), positions)
        prepared = reference.prepare(row, SamplingParams())
        for position, token in zip(positions, tokens, strict=True):
            expected, lead = reference.draw(prepared, seed, position, subject.gumbel_dtype)
            trial.require(
                token == expected or lead < reference.NEAR_TIE,
                f"gap {gap:g}: seed {seed} at position {position} needs token {expected} of the tail, found {token}",
            )
        num_draws += len(positions)
    return num_draws


def _tail_positions(seed: int, masses: Array, head_tile: int, count: int) -> list[int]:
    tail_positions: list[int] = []
    tiles, log_masses = np.arange(len(masses)), np.log(masses)
    tail = np.delete(tiles, head_tile)
    for start in range(0, 1 << 20, 1 << 12):
        positions = np.arange(start, start + (1 << 12))
        head = log_masses[head_tile] + reference.gumbel(seed, positions, head_tile, reference.TILE)
        # Only a head with little luck can lose to a tail, so only there is the noise of the tail worked out.
        is_likely = masses[head_tile] > 0.9
        candidates = positions[head < np.sort(head)[len(head) // 16]] if is_likely else positions
        score = log_masses[tail] + reference.gumbel(seed, candidates[:, None], tail, reference.TILE)
        head_score = log_masses[head_tile] + reference.gumbel(seed, candidates, head_tile, reference.TILE)
        tail_positions += candidates[score.max(1) > head_score].tolist()
        if len(tail_positions) >= count:
            break
    return tail_positions[:count]


# Designed rows in every dtype and vocabulary.

_PLAIN_SIZE: Final = 33
_PLAIN_DRAWS: Final = 12_000
"""Enough to see the y of each token rounded to a quarter."""
_ORDER_PROBABILITIES: Final = (0.35, 0.25, 0.20, 0.05, 0.03, 0.03, 0.03, 0.03, 0.03)
_ORDER_TOP_K: Final = 4
_ORDER_DRAWS: Final = 3000  # enough for a bin of the least likely token that either order keeps
_LEVEL_DESIGNS: Final = ("stairs", "last ids", "deep bulk", "ties at k", "plateau at p", "edges of min-p")
"""Designs of a few heavy levels, of which a few dozen draws say whether each is drawn, and all of it."""


@properties.required("crossed distributions")
def crossed_distributions(subject: SampleSubject, trial: Trial) -> str:
    """Unseeded rows draw every level of designed rows as often as they should, in each half of its ids."""
    rows, effort = _design_rows(subject, trial), subject.effort

    def judge_row(prefix: str, row: CrossedRow, draws: int, bins: Callable[[int], Array] | None) -> None:
        experiment = fit_experiment(subject, row.logits, row.params, row.expected.probabilities, bins)
        trial.judge(f"{prefix}{CrossedRequest(row, row.params, 0)}", experiment, draws)

    for i, row in enumerate(rows):
        judge_row(f"{i}: ", row, effort.crossed_draws(row.site.size), functools.partial(_bins, row))
    for row in _plain_rows(subject, trial):
        judge_row("", row, effort.draws_of(_PLAIN_DRAWS), None)
    for row in _order_rows(subject):
        judge_row(f"{row.params.filter_order}: ", row, effort.draws_of(_ORDER_DRAWS), None)
    for i, row in enumerate(_min_p_rows(subject, trial)):
        judge_row(f"value {i}: ", row, 2 * effort.crossed_draws(row.site.size), functools.partial(_bins, row))
    return f"{len(rows)} designed rows over {len({row.site for row in rows})} dtypes and vocabularies"


def _plain_rows(subject: SampleSubject, trial: Trial) -> list[CrossedRow]:
    """Make rows of a few likely tokens without any filter in every dtype: plain, cold, hot, and of two equal tokens."""
    rng, limit = trial.generator("plain rows"), subject.capabilities.max_vocab_size or _PLAIN_SIZE
    distances = 2 * rng.random(min(_PLAIN_SIZE, limit))
    rows = [(1.0, distances), (0.02, distances), (12.0, distances), (1.0, np.zeros(min(2, limit)))]
    return [
        row_of(
            subject.capabilities,
            Site(dtype, len(below)),
            "likely tokens",
            temperature * (LARGEST_Y_SHIFT - below),
            SamplingParams(temperature=temperature),
        )
        for dtype in subject.capabilities.dtypes
        for temperature, below in rows[: 1 if subject.effort.mixed else None]
    ]


def _order_rows(subject: SampleSubject) -> list[CrossedRow]:
    """Make the same row in each filter order: top-p keeps another number of tokens in the other order."""
    size, c = len(_ORDER_PROBABILITIES), subject.capabilities
    is_served = (c.max_top_k or size) >= _ORDER_TOP_K and (c.max_vocab_size or size) >= size
    if not (subject.has("top_k") and subject.has("top_p") and is_served):
        return []
    site, logits = Site(c.dtypes[0], size), np.log(_ORDER_PROBABILITIES)
    requests = [
        SamplingParams(top_k=_ORDER_TOP_K, top_p=0.82, filter_order=order) for order in crossed_orders(c)
    ]
    return [row_of(c, site, "known", logits, params) for params in requests]


def _min_p_rows(subject: SampleSubject, trial: Trial) -> list[CrossedRow]:
    """Make a row for each value of min-p, in a vocabulary of a tile or little more."""
    if subject.effort.mixed:
        return []
    rng, all_sites = trial.generator("values"), sites(subject.capabilities, subject.effort)
    size = min((site.size for site in all_sites if site.size >= TILE_SIZE), default=0)
    tile_sites = [site for site in all_sites if site.size == size]
    rows = [row for site in tile_sites for row in threshold_rows(subject.capabilities, site, rng)]
    return [row for row in rows if row.expected.certain and row.params.min_p > 0]


def _design_rows(subject: SampleSubject, trial: Trial) -> list[CrossedRow]:
    """Make rows of every design in every dtype and vocabulary, their filters and temperatures by a covering table."""
    rng, rule = trial.generator("table"), subject.capabilities.tie_rule
    all_values = factors(subject)
    designs = [design for design in all_values["design"] if design.name in _LEVEL_DESIGNS]
    domains = {**all_values, "design": designs, "top": TOPS[:1]}
    rows: dict[tuple[Site, str], CrossedRow] = {}
    cases = covering(domains, rng, lambda case: is_allowed(case) and _is_visible(case))
    for case in subject.effort.some(cases, 6):
        row = crossed_row(case, rng, rule)
        if row.expected.certain:
            rows.setdefault((case["site"], row.design), row)
    ties = {"temperature": [1.0], "top_p": [1.0], "min_p": [0.0]}  # at a small k, in any table
    ties["top_k"] = [k for k in domains["top_k"] if k in (1, 40, 100)]
    ties["design"] = [design for design in designs if design.needs == "top_k"]
    more = [
        crossed_row(random_case({**domains, **ties, "site": [site]}, rng, is_allowed), rng, rule)
        for site in (domains["site"] if subject.has("top_k") else ())
        if 4 * TILE_SIZE < site.size <= WIDE_SIZE
    ]
    return [*rows.values(), *more]


def _is_visible(case: Any) -> bool:
    """Allow designed filters alone, and a top-p with a visible effect."""
    design = case.get("design")
    if design is not None and design.needs is None:
        filters = ("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)
        return all(case.get(name, default) == default for name, default in filters)
    return bool(case.get("top_p", 1.0) in (1.0, 0.3, 0.9))


def _bins(row: CrossedRow, draws: int) -> Array:
    """Put every token into a bin by its level, half a unit of y wide, and by the half of the level's ids."""
    expected = row.expected
    tokens = np.flatnonzero(expected.probabilities > 0)
    level = np.floor(2 * np.log(expected.probabilities[tokens] / expected.probabilities.max()) - 1e-6)
    order = np.argsort(level, kind="stable")
    starts = np.flatnonzero(np.diff(level[order], prepend=np.nan) != 0)
    sizes = np.diff(starts, append=len(order))
    is_second_half = np.arange(len(order)) - np.repeat(starts, sizes) >= np.repeat(sizes, sizes) // 2
    cell = np.empty(len(order), np.int64)
    cell[order] = 2 * np.repeat(np.arange(len(starts)), sizes) + is_second_half
    masses = np.bincount(cell, expected.probabilities[tokens])
    in_part = np.bincount(cell, expected.in_part[tokens]) > 0
    bins = np.full(len(expected.probabilities), -1)
    bins[tokens] = pool_tokens(masses, draws, in_part)[cell]
    return bins


# Noise used twice, a bug invisible to tests of single tokens.

_VOCAB_SIZE: Final = 8
_LAGS: Final = (1 << 16, 1 << 15, 4096, 1024, 256, 128, 64, 32, 16, 4, 3, 2, 1)
"""Distances between rows, the largest first: noise that repeats with a period bends the statistics of all others."""
_SMALL_BATCH_ROWS: Final = 200
"""Rows of a small call."""


@properties.required("independent draws")
def independent_draws(subject: SampleSubject, trial: Trial) -> str:
    """Equal rows of a batch, near and far apart, and of successive calls draw independently, as tiles and tokens do."""
    effort, p, tokens_by_count = subject.effort, np.full(_VOCAB_SIZE, 1 / _VOCAB_SIZE), dict[int, Array]()

    def of_rows(rng: Generator, batches: int, lag: int) -> Verdict:
        if batches not in tokens_by_count:
            seed_torch(rng)
            logits = torch.zeros(effort.batch_rows, _VOCAB_SIZE)
            calls = [subject.tokens(logits, SamplingParams()) for _ in range(batches)]
            tokens_by_count[batches] = np.stack(calls)
        tokens, left = tokens_by_count[batches], np.arange(effort.batch_rows - lag)
        left = left[(left // lag) % 2 == 0]  # no row is in two of the pairs
        return independence(tokens[:, left].ravel(), tokens[:, left + lag].ravel(), p, f"rows {lag} apart")

    def of_calls(rng: Generator, draws: int, rows: int, size: int) -> Verdict:
        seed_torch(rng)
        logits, pairs = torch.zeros(rows, size), -(-draws // rows)
        tokens = np.stack([subject.tokens(logits, SamplingParams()) for _ in range(2 * pairs)])
        uniform = np.full(size, 1 / size)
        return independence(tokens[::2].ravel(), tokens[1::2].ravel(), uniform, "successive draws")

    lags, wrong = [lag for lag in _LAGS if lag < effort.batch_rows], dict[int, Violation]()
    for lag in lags:
        try:
            trial.judge(f"lag {lag}", functools.partial(of_rows, lag=lag), 1)
        except Violation as violation:
            wrong[lag] = violation
    if len(wrong) == len(lags):
        raise Violation(f"at all distances, from 1 on: {wrong[1]}")
    if wrong:
        raise next(iter(wrong.values()))
    for rows, size in ((1, 2), (64, _VOCAB_SIZE), (4096, _VOCAB_SIZE)):
        if rows <= effort.batch_rows:
            draws = effort.draws_of(600 if rows == 1 else 8192)
            trial.judge(f"batches of {rows}", functools.partial(of_calls, rows=rows, size=size), draws)
    _judge_levels(subject, trial)
    return f"{effort.batch_rows} rows at {len(lags)} distances, successive calls, tiles and tokens"


def _judge_levels(subject: SampleSubject, trial: Trial) -> None:
    """Judge whether the drawn tile says nothing about the token within it: no noise serves both."""
    tiles = min(4, (subject.capabilities.max_vocab_size or 4 * TILE_SIZE) // TILE_SIZE)
    row = np.full(tiles * TILE_SIZE, -np.inf, np.float32)
    row[np.add.outer(np.arange(tiles) * TILE_SIZE, np.arange(tiles)).ravel()] = 0  # ids 0 to 3 of every tile

    def experiment(rng: Generator, draws: int, seeded: bool) -> Verdict:
        tokens = draw_many(subject, row, SamplingParams(), draws, rng, seeded=seeded)
        uniform = np.full(tiles, 1 / tiles)
        return independence(tokens // TILE_SIZE, tokens % TILE_SIZE, uniform, "number of tile and of token")

    for seeded in seedings(subject.capabilities) if tiles > 1 else ():
        label = "tile against token" + ", seeded" * seeded
        trial.judge(label, functools.partial(experiment, seeded=seeded), subject.effort.tiled_draws)


@properties.required("noise of distant rows")
def distant_rows(subject: SampleSubject, trial: Trial) -> str:
    """No two rows of a batch or of successive batches share noise, at any distance, in any dtype and vocabulary."""
    all_sites = some_sites(subject.capabilities, subject.effort)
    crowds = [(site, subject.effort.crowd_of(site.size)) for site in all_sites]
    crowds = [(site, rows) for site, rows in crowds if site.size > 4 * rows]
    if not crowds:
        limit = subject.capabilities.max_vocab_size
        trial.skip(f"needs a vocabulary in which few rows draw the same token, found a limit of {limit}")
    for turn, (site, rows) in enumerate(crowds):
        trial.judge(f"{rows} rows of {site}", _crowd_experiment(subject, site, rows, turn), 1)
    return ", ".join(f"{rows} rows of {site}" for site, rows in crowds)


def _crowd_experiment(subject: SampleSubject, site: Site, rows: int, turn: int) -> Experiment:
    """Make the experiment that draws equal rows under filters that keep all, beside seeds, by slots, with logprobs."""
    size, modes = site.size, subject.capabilities.logprobs_modes
    batch = torch.zeros(1, size, dtype=site.torch_dtype, device=subject.device).expand(rows, -1)
    is_narrow = size <= WIDE_SIZE and rows > _SMALL_BATCH_ROWS
    requests = _unfiltered_requests(subject, site)[: None if is_narrow else 2]
    mixed_requests = [requests[i // 2 % len(requests)] for i in range(rows)]

    def experiment(rng: Generator, calls: int) -> Verdict:
        seed_torch(rng)
        seeds, positions = random_seeds(rng, rows)
        partly_seeded = [
            replace(requests[0], seed=seed if i % 7 == 3 and has_counter(subject.capabilities) else None)
            for i, seed in enumerate(seeds)
        ]
        few, parts = batch[:_SMALL_BATCH_ROWS], []
        for _ in range(calls):
            parts += [
                tokens_of(subject, batch, params, positions) for params in (mixed_requests, partly_seeded)
            ]
            if is_narrow and not scalar_filters(subject.capabilities):
                slots = torch.arange(len(few)) % len(requests)
                parts.append(subject.tokens(few, requests, row_index=slots))
            if is_narrow and modes:
                shown = [replace(params, logprobs=1) for params in mixed_requests[: len(few)]]
                parts.append(tokens_of(subject, few, shown, mode=modes[turn % len(modes)]))
        tokens = np.concatenate(parts)
        verdicts = [coincidences(tokens, 1 / size, f"of {size} tokens")]
        if size > 4 * TILE_SIZE:
            shares = np.bincount(np.arange(size) // TILE_SIZE) / size
            verdicts.append(coincidences(tokens // TILE_SIZE, float((shares**2).sum()), "tiles"))
        return worst_of(verdicts)

    return experiment


def _unfiltered_requests(subject: SampleSubject, site: Site) -> list[SamplingParams]:
    """Make a request of each filter that keeps all, or all but a few, of equal tokens."""
    requests = [SamplingParams()]
    if subject.has("min_p"):
        requests.append(SamplingParams(min_p=0.5))
    if subject.has("top_k") and subject.capabilities.max_top_k is None:
        requests.append(SamplingParams(top_k=site.size - 1))
    if subject.has("top_p"):
        requests.append(SamplingParams(top_p=0.999))
    return [replace(params, filter_order=subject.filter_order) for params in requests]


@properties.advertised("torch.manual_seed", lambda c: c.seeding in ("counter", "launch"))
def manual_seed(subject: SampleSubject, trial: Trial) -> str:
    """torch.manual_seed reproduces the tokens of unseeded rows, and another seed gives others."""
    rows = subject.effort.rows(64)

    def run(seed: int, logits: torch.Tensor) -> list[list[int]]:
        torch.manual_seed(seed)
        return [subject.tokens(logits, SamplingParams()).tolist() for _ in range(3)]

    for dtype in subject.dtypes:
        logits = torch.zeros(rows, 1000, dtype=dtype)
        first, repeat, other = run(123, logits), run(123, logits), run(124, logits)
        trial.require(first == repeat, "one seed needs the same tokens again, found others")
        trial.require(first[0] != other[0], "another seed needs other tokens, found the same")
        trial.require(first[0] != first[1], "successive calls need other tokens, found the same")
    return f"3 calls of {rows} rows in each dtype, repeated"
