"""Statistics of ``sample``: draws follow the distribution, tails included, and no noise is used twice."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.random import Generator

from tokendraw import SamplingMetadata, SamplingParams
from tokendraw.philox import TILE_SIZE
from tokendraw_testing import cases
from tokendraw_testing.cases import CrossedRequest, CrossedRow, Site
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.statistical_tests import coincidences, fit, independence, worst_of
from tokendraw_testing.kit.subject import SampleSubject, crossed_orders, with_seeds
from tokendraw_testing.kit.trial import Experiment, Trial, Verdict
from tokendraw_testing.logits_families import FAMILIES, gaussian
from tokendraw_testing.reference import Array

properties = Properties("sample")

_POISONED: Final = 8
"""Of so many rows of a narrow vocabulary one has a NaN, and no bearing on the others."""


def draw_many(
    subject: SampleSubject,
    logits: Array | torch.Tensor,
    params: SamplingParams,
    draws: int,
    rng: Generator,
    *,
    seeded: bool = False,
) -> Array:
    """Draw ``draws`` tokens or a few more from one row [V] in any dtype: rows of a batch differ only in their noise."""
    rows = max(1, min(draws, subject.effort.elements // len(logits), 1 << 16))
    row = torch.as_tensor(logits).to(subject.device)
    is_wide = len(logits) > 1 << 14
    batch = row.expand(rows, -1) if is_wide else row.repeat(rows, 1)
    is_clean = np.ones(rows, bool)
    if not is_wide and rows > _POISONED:
        is_clean[::_POISONED] = False
        batch[::_POISONED, 0] = torch.nan
    parts = []
    left = draws
    while left > 0:
        count = min(rows, left + -(-left // (_POISONED - 1)))
        if seeded:
            (seeds, positions), some = cases.random_seeds(rng, count), [replace(params, seed=0)] * count
            metadata = SamplingMetadata.from_params(some, device=subject.device, positions=positions)
            output = subject.call("sample", batch[:count], with_seeds(metadata, seeds))
        else:
            output = subject.sample(batch[:count], params)
        parts.append(output.token_ids.cpu().numpy()[is_clean[:count]])
        left -= len(parts[-1])
    return np.concatenate(parts)


class _Look(NamedTuple):
    """A row to draw from, how often, and the bins of its tokens."""

    label: str
    row: CrossedRow
    draws: int
    bins: Array | None = None
    seeded: bool = False


def _judge(subject: SampleSubject, trial: Trial, looks: Iterable[_Look]) -> None:
    """Judge the draws of rows by their probabilities."""
    for look in looks:
        experiment = functools.partial(_follows, subject, look, look.row.expected.probabilities)
        trial.judge(f"{look.label}{', seeded' * look.seeded}", experiment, look.draws)


def _follows(
    subject: SampleSubject, look: _Look, probabilities: Array, rng: Generator, count: int
) -> Verdict:
    """Draw from the row of a look, and fit the tokens to their probabilities."""
    tokens = draw_many(subject, look.row.logits, look.row.params, count, rng, seeded=look.seeded)
    return fit(tokens, probabilities, look.bins, look.row.expected.in_part)


def _row(
    subject: SampleSubject, logits: Any, params: SamplingParams | None = None, turn: int = 0
) -> CrossedRow:
    c = subject.capabilities
    site = Site(c.dtypes[turn % len(c.dtypes)], len(logits))
    x = torch.as_tensor(logits).to(site.torch_dtype)
    return cases.row_of(c, site, "known", x, params or SamplingParams())


@properties.required("distribution")
def distribution(subject: SampleSubject, trial: Trial) -> str:
    """Tokens follow the softmax, at the seams of kernels, beside poisoned rows and among +inf."""
    _judge(subject, trial, _infinities(subject, trial.generator("+inf")))
    return f"{judge_rows(subject, trial)}, seams of 2500 equal tokens, beside poisoned rows, and rows of +inf"


def judge_rows(subject: SampleSubject, trial: Trial) -> str:
    """Judge draws of rows of a few shapes, with seeds too where they are served."""
    effort, rng, few = subject.effort, trial.generator("rows"), subject.effort.tiled_draws
    skewed_row = np.full(201, np.log(0.01 / 200), np.float32)  # the tail is one per cent of the mass
    skewed_row[100] = np.log(0.99)
    small_row, flat, ids = np.log(rng.dirichlet(np.full(40, 0.5))), np.zeros(2500), np.arange(2500)
    is_end = np.isin(ids % TILE_SIZE, np.r_[0:16, TILE_SIZE - 16 : TILE_SIZE]).astype(int)
    rows: list[tuple[str, Array, float, int, Array | None]] = [
        ("40 tokens", small_row, 1.0, effort.draws, None),
        ("a tail of one per cent", skewed_row, 1.0, effort.draws, None),
        ("temperature 0.6", small_row, 0.6, effort.draws, None),
        ("temperature 2.5", FAMILIES["bimodal"](rng, 300), 2.5, effort.draws // 2, None),
        ("three tiles, peaked", FAMILIES["zipf"](rng, 2500), 1.0, few, None),
        ("three tiles, gaussian", gaussian(rng, 2500), 2.0, few, None),
        ("halves of the vocabulary", flat, 1.0, few, ids // 1250),
        ("tiles, the last partial", flat, 1.0, few, ids // TILE_SIZE),
        ("lanes of 32", flat, 1.0, few, ids % 32),
        ("tiles of 128", flat, 1.0, few, ids // 128),
        ("ends of tiles", flat, 1.0, few, is_end),
    ]
    looks = (
        # Tokens of seeds are compared one by one, too.
        _Look(label, _row(subject, x, SamplingParams(temperature=t)), draws // (1 + seeded), bins, seeded)
        for seeded in cases.seedings(subject.capabilities)
        for label, x, t, draws, bins in rows[: 6 if seeded else None]
    )
    _judge(subject, trial, looks)
    return f"{len(rows)} rows"


def _infinities(subject: SampleSubject, rng: Generator) -> Iterator[_Look]:
    """Draw among three tokens of +inf, under a few requests."""
    x, requests = gaussian(rng, 1100), cases.combinations(subject.capabilities, 1100)
    x[[5, 800, 1099]], x[20] = np.inf, np.nan
    for i, params in enumerate(requests[:: max(1, len(requests) // 6)]):
        if params.temperature > 0 and params.top_k != 1:
            yield _Look(f"+inf, request {i}", _row(subject, x, params, i), subject.effort.draws_of(600))


def judge_xtc(subject: SampleSubject, trial: Trial) -> None:
    """Judge that XTC applies to the stated share of rows without seeds."""
    limit, share = subject.capabilities.max_vocab_size or len(cases.LAW), 0.4
    if ("xtc", "per_row") in subject.capabilities.filters and limit >= len(cases.LAW):
        kept = np.where(np.arange(len(cases.LAW)) >= 2, cases.LAW, 0.0)
        params = SamplingParams(xtc_probability=share, filter_order=subject.filter_order)
        look = _Look("XTC", _row(subject, np.log(cases.LAW), params), subject.effort.draws_of(20_000))
        p = (1 - share) * cases.LAW + share * kept / kept.sum()
        experiment = functools.partial(_follows, subject, look, p)
        trial.judge("rows with XTC without seeds", experiment, look.draws)


_WIDE_TAIL, _TILE_TAIL = (14.0, 30), (13.0, 30)
"""Gap below the head, and how many draws of the tail to expect, in every dtype; to see none is no chance then."""


@properties.required("tails")
def tails(subject: SampleSubject, trial: Trial) -> str:
    """Tails that are heavy together and light each keep their mass, however far below the head they lie."""
    effort, c = subject.effort, subject.capabilities
    size = min(effort.tail_vocab_size, c.max_vocab_size or effort.tail_vocab_size)
    looks: list[tuple[str, int, float, int, int | None]]
    looks = [(c.dtypes[0], size, gap, hits, None) for gap, hits in effort.tails]
    for dtype in c.dtypes:  # in a wide vocabulary, and in one tile, with the noise of tokens alone
        looks.append((dtype, min(size, TILE_SIZE), *_TILE_TAIL, effort.most_draws))
        if dtype != c.dtypes[0]:
            looks.append((dtype, size, *_WIDE_TAIL, effort.most_draws))
    for dtype, width, gap, hits, most in looks:
        logits = torch.full((width,), -gap, dtype=torch.float64)
        logits[head := (size // 2 + 100) % width] = 0
        row = cases.row_of(c, Site(dtype, width), "tail", logits.to(getattr(torch, dtype)), SamplingParams())
        draws = int(np.ceil(hits / (1 - row.expected.probabilities[head])))
        is_tail = (np.arange(width) != head).astype(int)
        label = f"gap {gap:g} below one of {width} in {dtype}"
        _judge(subject, trial, [_Look(label, row, min(draws, most or draws), is_tail)])
    return f"gaps {', '.join(f'{gap:g}' for gap, _ in effort.tails)}"


# Designed rows in every dtype and vocabulary.

_PLAIN_DRAWS: Final = 12_000
"""Enough to see the y of each token rounded to a quarter."""
_ORDER_PROBABILITIES: Final = (0.35, 0.25, 0.20, 0.05, 0.03, 0.03, 0.03, 0.03, 0.03)
_LEVEL_DESIGNS: Final = ("stairs", "last ids", "deep bulk")
"""Designs of a few heavy levels, of which a few dozen draws say whether each is drawn, and all of it."""


@properties.required("crossed distributions")
def crossed_distributions(subject: SampleSubject, trial: Trial) -> str:
    """Unseeded rows draw every level of designed rows as often as they should, in each part of its ids."""
    effort, rows = subject.effort, _design_rows(subject, trial.generator("table"))
    looks = [
        (row, effort.draws_of(effort.by_width(row.site.size, 300, 48)) * (1 + is_edge))
        for is_edge, row in rows
        if row.expected.certain
    ]
    looks += [(row, effort.draws_of(_PLAIN_DRAWS)) for row in _plain_rows(subject, trial.generator("plain"))]
    numbered = (
        _Look(f"{i}: {CrossedRequest(row, row.params, 0)}", row, draws)
        for i, (row, draws) in enumerate(looks)
    )
    _judge(subject, trial, numbered)
    return f"{len(looks)} rows over {len({row.site for row, *_ in looks})} dtypes and vocabularies"


def _design_rows(subject: SampleSubject, rng: Generator) -> list[tuple[bool, CrossedRow]]:
    """Make rows of a few levels in every dtype and vocabulary, and rows on each threshold in one vocabulary."""
    c, all_sites = subject.capabilities, cases.sites(subject.capabilities, subject.effort)
    rows: dict[tuple[Site, str], CrossedRow] = {}
    for site, covering in cases.covering_rows(subject, rng).items():
        rows |= {(site, row.design): row for row in covering if row.design in _LEVEL_DESIGNS}
    size = min((site.size for site in all_sites if site.size >= TILE_SIZE), default=all_sites[-1].size)
    narrow = [row for site in all_sites if site.size == size for row in cases.threshold_rows(c, site, rng)]
    narrow = [row for row in narrow if row.params.top_p in (1.0, 0.3, 0.9)]  # another is not visible
    edges = narrow[:: 8 if subject.effort.interpreted else 1]
    return [*((False, row) for row in rows.values()), *((True, row) for row in edges)]


def _plain_rows(subject: SampleSubject, rng: Generator) -> Iterator[CrossedRow]:
    """Make rows of a few likely tokens in every dtype: plain, cold, hot, of two equal tokens, and in each order."""
    c, limit = subject.capabilities, subject.capabilities.max_vocab_size or 33
    distances = 2 * rng.random(min(33, limit))
    rows = [(1.0, distances), (0.02, distances), (12.0, distances), (1.0, np.zeros(min(2, limit)))]
    few = rows[: 1 if subject.effort.interpreted else None]
    for turn, (t, below) in itertools.product(range(len(c.dtypes)), few):
        yield _row(subject, t * (cases.LARGEST_Y_SHIFT - below), SamplingParams(temperature=t), turn)
    if subject.has("top_k") and subject.has("top_p") and (c.max_top_k or 4) >= 4 and limit >= 9:
        for order in crossed_orders(c):  # top-p keeps another number of tokens in the other order
            params = SamplingParams(top_k=4, top_p=0.82, filter_order=order)
            yield _row(subject, np.log(_ORDER_PROBABILITIES), params)


# Noise used twice, a bug invisible to tests of single tokens.

_LAGS: Final = (1 << 16, 1 << 15, 4096, 1024, 256, 128, 64, 32, 16, 4, 3, 2, 1)
"""Distances between rows, the largest first: noise that repeats with a period bends the statistics of all others."""
_SMALL_BATCH_ROWS: Final = 200
"""Rows of a small call."""


@properties.required("independent draws")
def independent_draws(subject: SampleSubject, trial: Trial) -> str:
    """Equal rows of a batch, near and far apart, and of successive calls draw independently, as tiles and tokens do."""
    effort, tokens_by_count = subject.effort, dict[int, Array]()
    tiles = min(4, (subject.capabilities.max_vocab_size or 4 * TILE_SIZE) // TILE_SIZE)
    lags = [lag for lag in _LAGS if lag < effort.batch_rows]

    def calls(number: int, rows: int, size: int) -> Array:
        return np.stack([subject.tokens(torch.zeros(rows, size), SamplingParams()) for _ in range(number)])

    def of_rows(rng: Generator, batches: int, lag: int) -> Verdict:
        if batches not in tokens_by_count:  # one set of draws serves every distance
            tokens_by_count[batches] = calls(batches, effort.batch_rows, 8)
        tokens, left = tokens_by_count[batches], np.arange(effort.batch_rows - lag)
        left = left[(left // lag) % 2 == 0]  # no row is in two of the pairs
        pairs = tokens[:, left].ravel(), tokens[:, left + lag].ravel()
        return independence(*pairs, np.full(8, 1 / 8), f"rows {lag} apart")

    def of_calls(rng: Generator, draws: int, rows: int, size: int) -> Verdict:
        tokens = calls(2 * -(-draws // rows), rows, size)
        pairs = tokens[::2].ravel(), tokens[1::2].ravel()
        return independence(*pairs, np.full(size, 1 / size), "successive draws")

    def of_levels(rng: Generator, draws: int, seeded: bool) -> Verdict:
        row = np.full(tiles * TILE_SIZE, -np.inf, np.float32)
        row[np.arange(tiles * TILE_SIZE) % TILE_SIZE < tiles] = (
            0  # as many ids of each tile as there are tiles
        )
        tokens = draw_many(subject, row, SamplingParams(), draws, rng, seeded=seeded)
        pairs = tokens // TILE_SIZE, tokens % TILE_SIZE
        return independence(*pairs, np.full(tiles, 1 / tiles), "number of tile and of token")

    for lag in lags:
        trial.judge(f"lag {lag}", functools.partial(of_rows, lag=lag), 1)
    for rows, size in ((1, 2), (64, 8), (4096, 8)):
        if rows <= effort.batch_rows:
            draws = effort.draws_of(600 if rows == 1 else 8192)
            trial.judge(f"batches of {rows}", functools.partial(of_calls, rows=rows, size=size), draws)
    for seeded in cases.seedings(subject.capabilities) if tiles > 1 else ():
        label = "tile against token" + ", seeded" * seeded
        trial.judge(label, functools.partial(of_levels, seeded=seeded), effort.tiled_draws)
    return f"{effort.batch_rows} rows at {len(lags)} distances, successive calls, tiles and tokens"


@properties.required("noise of distant rows")
def distant_rows(subject: SampleSubject, trial: Trial) -> str:
    """No two rows of a batch or of successive batches share noise, at any distance, in any dtype and vocabulary."""
    all_sites = cases.some_sites(subject.capabilities, subject.effort)
    most = subject.effort.batch_rows // 5
    crowds = [(site, min(most, subject.effort.by_width(site.size, 1100, 140))) for site in all_sites]
    crowds = [(site, rows) for site, rows in crowds if site.size > 4 * rows]
    if not crowds:
        limit = subject.capabilities.max_vocab_size
        trial.skip(f"needs a vocabulary in which few rows draw the same token, found a limit of {limit}")
    for turn, (site, rows) in enumerate(crowds):
        trial.judge(f"{rows} rows of {site}", _crowd_experiment(subject, site, rows, turn), 1)
    return f"{sum(rows for _, rows in crowds)} rows in {len(crowds)} dtypes and vocabularies"


def _crowd_experiment(subject: SampleSubject, site: Site, rows: int, turn: int) -> Experiment:
    """Make the experiment that draws equal rows under filters that keep all, beside seeds, by slots, with logprobs."""
    size, c = site.size, subject.capabilities
    batch = torch.zeros(1, size, dtype=site.torch_dtype, device=subject.device).expand(rows, -1)
    is_narrow = size <= cases.WIDE_SIZE and rows > _SMALL_BATCH_ROWS
    # All tokens are kept, or all but a few.
    keeping: list[dict[str, Any]] = [{}, {"min_p": 0.5}, {"top_k": size - 1}, {"top_p": 0.999}]
    requests = cases.served_requests(cases.per_row(c), keeping)[: None if is_narrow else 2]
    mixed = [requests[i // 2 % len(requests)] for i in range(rows)]

    def experiment(rng: Generator, calls: int) -> Verdict:
        seeds, positions = cases.random_seeds(rng, rows)
        partly = [
            replace(requests[0], seed=seed if i % 7 == 3 and cases.has_counter(c) else None)
            for i, seed in enumerate(seeds)
        ]
        few, parts = batch[:_SMALL_BATCH_ROWS], list[Array]()
        for _ in range(calls):
            parts += [subject.tokens(batch, params, positions) for params in (mixed, partly)]
            if is_narrow:
                slots = torch.arange(len(few)) % len(requests)
                parts.append(subject.tokens(few, requests, row_index=slots))
            if is_narrow and c.logprobs_modes:
                shown = [replace(params, logprobs=1) for params in mixed[: len(few)]]
                mode = c.logprobs_modes[turn % len(c.logprobs_modes)]
                parts.append(subject.tokens(few, shown, logprobs_mode=mode))
        tokens = np.concatenate(parts)
        verdicts = [coincidences(tokens, 1 / size, f"of {size} tokens")]
        if size > 4 * TILE_SIZE:
            shares = np.bincount(np.arange(size) // TILE_SIZE) / size
            verdicts.append(coincidences(tokens // TILE_SIZE, float((shares**2).sum()), "tiles"))
        return worst_of(verdicts)

    return experiment


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
