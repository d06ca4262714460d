"""Unseeded rows in every dtype and at wide vocabularies: their distribution, and noise that rows share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from tokendraw import SamplingParams
from tokendraw.philox import TILE_SIZE
from tokendraw.plugin import LogprobsMode
from tokendraw_testing.crossing.comparison import Request
from tokendraw_testing.crossing.covering import covering, random_case
from tokendraw_testing.crossing.factors import Site, allowed, sites
from tokendraw_testing.crossing.rows import SHIFT, TOPS, CrossedRow, crossed_row, in_dtype
from tokendraw_testing.crossing.table import by_value, factors
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.statistical_tests import fit, pooled
from tokendraw_testing.kit.trial import Experiment, Trial, Verdict
from tokendraw_testing.rows.draws import draw_many, random_seeds, seed_torch
from tokendraw_testing.rows.requests import has_counter, scalar_filters, tokens_of
from tokendraw_testing.rows.sampling import Sampling

properties = Properties("sample")
Array = NDArray[Any]

_PLAIN: Final = 33
_PLAIN_DRAWS: Final = 12_000
"""Enough to see the y of each token rounded to a quarter."""
_LEVELS: Final = ("stairs", "last ids", "deep bulk", "ties at k", "plateau at p", "edges of min-p")
"""Designs of a few heavy levels, of which a few dozen draws say whether each is drawn, and all of it."""
_SMALL_KS: Final = (1, 40, 100)
_NARROW: Final = 1 << 14
"""Largest vocabulary in which crowds have every filter, shared slots and logprobs."""


@properties.required("crossed distributions")
def crossed_distributions(subject: Sampling, trial: Trial) -> str:
    """Unseeded rows draw every level of designed rows as often as they should, in each half of its ids."""
    rows = _designed(subject, trial)
    for site, crossed in rows.items():
        for i, row in enumerate(crossed):
            label = f"{Request(row, row.params, 0)}"
            trial.judge(f"{i}: {label}", _experiment(subject, row), subject.effort.crossed_draws(site.size))
    for row in _plain(subject, trial):
        label = f"{Request(row, row.params, 0)}"
        trial.judge(label, _experiment(subject, row, each=True), subject.effort.draws_of(_PLAIN_DRAWS))
    for i, row in enumerate(_of_values(subject, trial)):
        label = f"value {i}: {Request(row, row.params, 0)}"
        trial.judge(label, _experiment(subject, row), 2 * subject.effort.crossed_draws(row.site.size))
    return f"{sum(map(len, rows.values()))} designed rows over {len(rows)} dtypes and vocabularies"


def _plain(subject: Sampling, trial: Trial) -> list[CrossedRow]:
    """Make rows of a few likely tokens without any filter in every dtype: plain, cold and hot, and two equal ones."""
    rng, limit = trial.generator("plain rows"), subject.capabilities.max_vocab_size or _PLAIN
    likely = 2 * rng.random(min(_PLAIN, limit))
    wanted = [(1.0, likely), (0.02, likely), (12.0, likely), (1.0, np.zeros(min(2, limit)))]
    return [
        CrossedRow(
            Site(dtype, len(below)),
            "likely tokens",
            in_dtype(temperature * (SHIFT - below), getattr(torch, dtype)),
            SamplingParams(temperature=temperature),
            subject.capabilities.tie_rule,
        )
        for dtype in subject.capabilities.dtypes
        for temperature, below in wanted[: 1 if subject.effort.mixed else None]
    ]


def _of_values(subject: Sampling, trial: Trial) -> list[CrossedRow]:
    """Make a row for each value of min-p, in a vocabulary of a tile or little more."""
    if subject.effort.mixed:
        return []
    rng, found = trial.generator("values"), sites(subject.capabilities, subject.effort)
    size = min((site.size for site in found if site.size >= TILE_SIZE), default=0)
    own = [site for site in found if site.size == size]
    rows = [row for site in own for row in by_value(subject.capabilities, site, rng)]
    return [row for row in rows if row.expected.certain and row.params.min_p > 0]


def _designed(subject: Sampling, trial: Trial) -> dict[Site, list[CrossedRow]]:
    """Make rows of every design in every dtype and vocabulary, their filters and temperatures by a covering table."""
    rng = trial.generator("table")
    crossed = factors(subject)
    crossed |= {"design": [design for design in crossed["design"] if design.name in _LEVELS], "top": TOPS[:1]}
    found: dict[Site, list[CrossedRow]] = {}
    met = set()
    for case in subject.effort.some(covering(crossed, rng, lambda case: allowed(case) and _visible(case)), 6):
        key = case["site"], case["design"].name
        row = crossed_row(case, rng, subject.capabilities.tie_rule)
        if key not in met and row.expected.certain:
            met.add(key)
            found.setdefault(case["site"], []).append(row)
    for site in (
        crossed["site"] if subject.has("top_k") else ()
    ):  # whatever the table holds, ties at a small k
        if 4 * TILE_SIZE < site.size <= _NARROW:
            small = {"top_k": [k for k in crossed["top_k"] if k in _SMALL_KS], "temperature": [1.0]}
            own = [design for design in crossed["design"] if design.needs == "top_k"]
            given = {**crossed, **small, "site": [site], "design": own, "top_p": [1.0], "min_p": [0.0]}
            row = crossed_row(random_case(given, rng, allowed), rng, subject.capabilities.tie_rule)
            found.setdefault(site, []).append(row)
    return found


def _visible(case: Any) -> bool:
    """Allow designed filters alone, and a top-p that drops enough to be seen."""
    design = case.get("design")
    if design is not None and design.needs is None:
        return all(case.get(name, off) == off for name, off in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)))
    return bool(case.get("top_p", 1.0) in (1.0, 0.3, 0.9))


def _experiment(subject: Sampling, row: CrossedRow, *, each: bool = False) -> Experiment:
    """Count the draws of every level, or of each token."""

    def experiment(rng: np.random.Generator, count: int) -> Verdict:
        tokens = draw_many(subject, row.logits, row.params, count, rng)
        return fit(tokens, row.expected.probabilities, None if each else _bins(row, count))

    return experiment


def _bins(row: CrossedRow, draws: int) -> Array:
    """Put every token into a bin by its level, half a unit of y wide, and by the half of it that its id is in."""
    expected = row.expected
    drawn = np.flatnonzero(expected.probabilities > 0)
    level = np.floor(2 * np.log(expected.probabilities[drawn] / expected.probabilities.max()) - 1e-6)
    order = np.argsort(level, kind="stable")
    starts = np.flatnonzero(np.diff(level[order], prepend=np.nan) != 0)
    sizes = np.diff(starts, append=len(order))
    later = np.arange(len(order)) - np.repeat(starts, sizes) >= np.repeat(sizes, sizes) // 2
    cell = np.empty(len(order), np.int64)
    cell[order] = 2 * np.repeat(np.arange(len(starts)), sizes) + later
    masses = np.bincount(cell, expected.probabilities[drawn])
    in_part = np.bincount(cell, expected.in_part[drawn]) > 0
    bins = np.full(len(expected.probabilities), -1)
    bins[drawn] = pooled(masses, draws, in_part)[cell]
    return bins


_FEW: Final = 200
"""Rows of such a call."""


@dataclass(frozen=True)
class _Crowd:
    """A batch of equal rows over equal tokens, in which two rows hardly ever draw the same token."""

    site: Site
    rows: int


@properties.required("noise of distant rows")
def distant_rows(subject: Sampling, trial: Trial) -> str:
    """No two rows of a batch or of successive batches share noise, at any distance, in any dtype and vocabulary."""
    crowds = [
        _Crowd(site, subject.effort.crowd_of(site.size))
        for site in sites(subject.capabilities, subject.effort)
    ]
    crowds = [crowd for crowd in crowds if crowd.site.size > 4 * crowd.rows]
    if not crowds:
        limit = subject.capabilities.max_vocab_size
        trial.skip(f"needs a vocabulary in which few rows draw the same token, found a limit of {limit}")
    for turn, crowd in enumerate(crowds):
        logits = torch.zeros(1, crowd.site.size, dtype=crowd.site.torch_dtype, device=subject.device)
        is_narrow = crowd.site.size <= _NARROW and crowd.rows > _FEW
        requests = _keeping_all(subject, crowd.site)[: None if is_narrow else 2]
        mixed = [requests[i // 2 % len(requests)] for i in range(crowd.rows)]
        modes = subject.capabilities.logprobs_modes
        mode = modes[turn % len(modes)] if modes and is_narrow else None

        def experiment(
            rng: np.random.Generator,
            calls: int,
            crowd: _Crowd = crowd,
            logits: torch.Tensor = logits,
            mixed: list[SamplingParams] = mixed,
            requests: list[SamplingParams] = requests,
            mode: LogprobsMode | None = mode,
            is_narrow: bool = is_narrow,
        ) -> Verdict:
            seed_torch(rng)
            seeds, positions = random_seeds(rng, crowd.rows)
            beside = [
                replace(requests[0], seed=seed if i % 7 == 3 and has_counter(subject.capabilities) else None)
                for i, seed in enumerate(seeds)
            ]
            batch, few = logits.expand(crowd.rows, -1), _FEW
            drawn = []
            for _ in range(calls):
                drawn += [tokens_of(subject, batch, params, positions) for params in (mixed, beside)]
                if is_narrow and not scalar_filters(subject.capabilities):
                    slots = torch.arange(few) % len(requests)
                    drawn.append(subject.tokens(batch[:few], requests, row_index=slots))
                if mode is not None:
                    shown = [replace(params, logprobs=1) for params in mixed[:few]]
                    drawn.append(tokens_of(subject, batch[:few], shown, mode=mode))
            tokens, size = np.concatenate(drawn), crowd.site.size
            found = [coincidences(tokens, size)]
            if size > 4 * TILE_SIZE:
                shares = np.bincount(np.arange(size) // TILE_SIZE) / size
                found.append(coincidences(tokens // TILE_SIZE, 1 / (shares**2).sum(), "tiles"))
            worst = min(found, key=lambda verdict: verdict.p_value)
            return replace(worst, p_value=min(1.0, worst.p_value * len(found)))

        trial.judge(f"{crowd.rows} rows of {crowd.site}", experiment, 1)
    return ", ".join(f"{crowd.rows} rows of {crowd.site}" for crowd in crowds)


def _keeping_all(subject: Sampling, site: Site) -> list[SamplingParams]:
    """Make a request of each filter that keeps all, or all but a few, of equal tokens."""
    found = [SamplingParams()]
    if subject.has("min_p"):
        found.append(SamplingParams(min_p=0.5))
    if subject.has("top_k") and subject.capabilities.max_top_k is None:
        found.append(SamplingParams(top_k=site.size - 1))
    if subject.has("top_p"):
        found.append(SamplingParams(top_p=0.999))
    order = (*subject.capabilities.filter_orders, "top_k_first")[0]
    return [replace(params, filter_order=order) for params in found]


def coincidences(tokens: Array, size: float, what: str = "tokens") -> Verdict:
    """Test rows over ``size`` equal tokens for noise that two of them share, at every distance.

    Whether rows i and i + d draw the same token is independent for all i, given d, even though most rows stand in two
    of these pairs: the pairs of one distance make no circle. So their number is binomial, exactly, for each distance.
    """
    order = np.argsort(tokens, kind="stable")
    lags = np.zeros(len(tokens), np.int64)
    ends = np.flatnonzero(np.diff(tokens[order], append=-1)) + 1
    for group in np.split(order, ends[:-1]):
        if len(group) > 1:
            apart = np.abs(np.subtract.outer(group, group))
            np.add.at(lags, apart[np.triu_indices(len(group), 1)], 1)
    distance = np.arange(1, len(tokens))
    tails = stats.binom.sf(lags[1:] - 1, len(tokens) - distance, 1 / size)
    worst = int(tails.argmin())
    return Verdict(
        min(1.0, float(tails[worst]) * len(tails)),
        f"rows {worst + 1} apart draw the same of {round(size)} {what} {lags[worst + 1]} times, "
        f"expected {(len(tokens) - worst - 1) / size:.2f}",
        len(tokens),
    )
