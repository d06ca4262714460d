"""A vocabulary that lies on several ranks: what one device draws, on all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import torch

from tokendraw import SamplingParams
from tokendraw.plugin import Capabilities
from tokendraw_testing.crossing.comparison import Request, requested
from tokendraw_testing.crossing.covering import random_case
from tokendraw_testing.crossing.factors import Site, allowed, kinds, sites
from tokendraw_testing.crossing.rows import CrossedRow, crossed_row
from tokendraw_testing.crossing.table import factors
from tokendraw_testing.kit.property import Ask, Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.requests import has_logprobs
from tokendraw_testing.rows.sampling import Sampling
from tokendraw_testing.sample import corners, support
from tokendraw_testing.sample.crossed_calls import judge_call, judge_logprobs
from tokendraw_testing.sample.over_ranks import over_ranks
from tokendraw_testing.shards.designed_rows import DESIGNED, designed_rows

properties = Properties("sample")

_WIDEST: Final = 1 << 14
"""Largest vocabulary in a quick run."""
_CASES: Final = 9
"""Random cases of a dtype and vocabulary."""
_COPIES: Final = 4
"""Copies of a designed row in a call."""
_SMALL_K: Final = 1000
"""Samplers may send as many values as the largest k of a call, or look for it in another way."""
_FLAT: Final = 100
"""Rows over equal tokens, of which many draw another one if a tile weighs more, or has other noise."""
_LEAST_POISONED: Final = 64
_SHOWN: Final = (0, 5, 1, 50, None, -1)
"""Numbers of best tokens that the rows of a call ask for."""


def _has_shards(capabilities: Capabilities) -> bool:
    return capabilities.vocab_parallel


@properties.advertised("sharded requests", _has_shards, Ask({"vocab_parallel": True}))
def sharded_requests(subject: Sampling, trial: Trial) -> str:
    """Ranks that hold parts of the logits draw what one device draws, all of them alike, whatever the split."""
    rng = trial.generator("rows")
    dtypes, keeping_all = subject.capabilities.gumbel_dtypes, _keeping_all(subject)
    with over_ranks(subject, trial) as view:
        seed_torch(rng)
        support.output(view, trial)
        for number, site in enumerate(_sites(subject)):
            for turn, rows in enumerate(_calls(subject, site, rng)):
                judge_call(view, trial, _mixed(subject, rows, turn, rng), dtypes[turn % len(dtypes)])
            flat = torch.zeros(subject.effort.rows(_FLAT), site.size, dtype=site.torch_dtype)
            view.sample(flat, keeping_all[number % len(keeping_all)])
    return view.words


@properties.advertised("sharded logprobs", lambda c: _has_shards(c) and has_logprobs(c))
def sharded_logprobs(subject: Sampling, trial: Trial) -> str:
    """Over ranks, values, N best, ranks and log_kept_mass are those of the whole vocabulary, in every mode."""
    rng = trial.generator("rows")
    modes, dtypes = subject.capabilities.logprobs_modes, subject.capabilities.gumbel_dtypes
    turn = 0
    with over_ranks(subject, trial) as view:
        seed_torch(rng)
        for site in _sites(subject)[:: 1 + subject.effort.quick]:
            for rows in _calls(subject, site, rng):
                shown = _SHOWN[turn % 2 :: 2]
                batch = [
                    request.showing(shown[i % len(shown)])
                    for i, request in enumerate(_mixed(subject, rows, turn, rng))
                ]
                judge_logprobs(view, trial, batch, modes[turn % len(modes)], dtypes[turn % len(dtypes)])
                turn += 1
    return view.words


@properties.advertised("sharded NaN and infinities", _has_shards)
def sharded_poison(subject: Sampling, trial: Trial) -> str:
    """Over ranks, NaN, +inf and -inf count wherever they lie, in the row's token and in its flag on every rank."""
    rng = trial.generator("rows")
    modes = subject.capabilities.logprobs_modes
    dtypes = subject.capabilities.gumbel_dtypes
    with over_ranks(subject, trial) as view:
        seed_torch(rng)
        poisonable = [site for site in _sites(subject) if site.size >= _LEAST_POISONED]
        if not poisonable:
            limit = subject.capabilities.max_vocab_size
            trial.skip(f"needs a vocabulary of {_LEAST_POISONED}, found a limit of {limit}")
        for turn, site in enumerate(poisonable):
            batch = _mixed(subject, corners.poisoned(subject, site, rng), turn, rng)
            judge_call(view, trial, batch)
            if turn % 2 and modes:
                shown = [request.showing(3) for request in batch]
                judge_logprobs(view, trial, shown, modes[turn % len(modes)], dtypes[turn % len(dtypes)])
    return view.words


def _keeping_all(subject: Sampling) -> list[SamplingParams]:
    """List requests that keep all equal tokens, without a filter and with one."""
    order = (*subject.capabilities.filter_orders, "top_k_first")[0]
    found = [SamplingParams(filter_order=order)]
    if subject.has("min_p"):
        found.append(SamplingParams(min_p=0.5, filter_order=order))
    return found


def _sites(subject: Sampling) -> list[Site]:
    """List dtypes and vocabularies, without large ones in a quick run: a call over ranks takes as long as several."""
    every = sites(subject.capabilities, subject.effort)
    some = [site for site in every if site.size <= _WIDEST or not subject.effort.quick]
    return some[:: subject.effort.fewer // 2 or 1]


def _calls(subject: Sampling, site: Site, rng: np.random.Generator) -> Iterator[list[CrossedRow]]:
    """Make the rows of several calls: with designed rows alone, and with random ones by how large their k is."""
    crossed, ties = {**factors(subject), "site": [site]}, subject.capabilities.tie_rule
    cases = [random_case(crossed, rng, allowed) for _ in range(subject.effort.rows(_CASES))]
    rows = [crossed_row(case, rng, ties) for case in cases]
    yield from filter(
        None,
        (
            *designed_rows(subject.capabilities, site, rng, copies=max(1, _COPIES // subject.effort.fewer)),
            [row for row in rows if row.params.top_k == 0],
            [row for row in rows if 0 < row.params.top_k <= _SMALL_K],
            [row for row in rows if row.params.top_k > _SMALL_K],
        ),
    )


def _mixed(
    subject: Sampling, rows: Sequence[CrossedRow], turn: int, rng: np.random.Generator
) -> list[Request]:
    """Make a request of each row, their kinds in turn; designed rows draw in any case."""
    offered = kinds(subject.capabilities)
    drawn = [kind for kind in offered if not kind.startswith("greedy")]
    return [
        request
        for i, row in enumerate(rows)
        for own in [drawn if row.design in DESIGNED else offered]
        for request in requested(row, [own[(i + turn) % len(own)]], rng)
    ]
