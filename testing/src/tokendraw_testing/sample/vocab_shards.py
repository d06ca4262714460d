"""A vocabulary on several ranks: every rank draws the tokens of a single device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch
from numpy.random import Generator

from tokendraw import SamplingParams
from tokendraw.plugin import Capabilities
from tokendraw_testing.crossing.comparison import CrossedRequest, make_requests
from tokendraw_testing.crossing.covering import random_case
from tokendraw_testing.crossing.factors import Site, is_allowed, kinds, sites
from tokendraw_testing.crossing.rows import CrossedRow, crossed_row
from tokendraw_testing.crossing.table import factors
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.requests import has_logprobs
from tokendraw_testing.rows.subjects import SampleSubject
from tokendraw_testing.sample import corners, support
from tokendraw_testing.sample.crossed_calls import judge_call, judge_logprobs
from tokendraw_testing.sample.sharded_subject import over_ranks
from tokendraw_testing.shards.designed_rows import DESIGN_NAMES, designed_rows

properties = Properties("sample")

_QUICK_SIZE: Final = 1 << 14
"""Largest vocabulary in a quick run."""
_CASES: Final = 9
"""Random cases of a dtype and vocabulary."""
_COPIES: Final = 4
"""Copies of a designed row in a call."""
_SMALL_TOP_K: Final = 1000
"""Samplers may send as many values as the largest k of a call, or look for it in another way."""
_FLAT_ROWS: Final = 100
"""Rows over equal tokens: many of them change if a tile weighs more or has other noise."""
_SPECIAL_SIZE: Final = 64
_NUMS_BEST: Final = (0, 5, 1, 50, None, -1)
"""Numbers of best tokens that the rows of a call ask for."""


def _has_shards(capabilities: Capabilities) -> bool:
    return capabilities.vocab_parallel


@properties.advertised("sharded requests", _has_shards, Refusal({"vocab_parallel": True}))
def sharded_requests(subject: SampleSubject, trial: Trial) -> str:
    """Ranks that hold parts of the logits draw what one device draws, all of them alike, whatever the split."""
    rng = trial.generator("rows")
    dtypes, keeping_all = subject.capabilities.gumbel_dtypes, _unfiltered_requests(subject)
    with over_ranks(subject, trial) as view:
        seed_torch(rng)
        support.check_shapes(view, trial)
        for number, site in enumerate(_sites(subject)):
            for turn, rows in enumerate(_rows_of_calls(subject, site, rng)):
                judge_call(view, trial, _mix_kinds(subject, rows, turn, rng), dtypes[turn % len(dtypes)])
            flat = torch.zeros(subject.effort.rows(_FLAT_ROWS), site.size, dtype=site.torch_dtype)
            view.sample(flat, keeping_all[number % len(keeping_all)])
    return view.words


@properties.advertised("sharded logprobs", lambda c: _has_shards(c) and has_logprobs(c))
def sharded_logprobs(subject: SampleSubject, trial: Trial) -> str:
    """Over ranks, values, N best, ranks and log_kept_mass are those of the whole vocabulary, in every mode."""
    rng = trial.generator("rows")
    modes, dtypes = subject.capabilities.logprobs_modes, subject.capabilities.gumbel_dtypes
    turn = 0
    with over_ranks(subject, trial) as view:
        seed_torch(rng)
        for site in _sites(subject)[:: 1 + subject.effort.quick]:
            for rows in _rows_of_calls(subject, site, rng):
                nums_best = _NUMS_BEST[turn % 2 :: 2]
                batch = [
                    request.with_logprobs(nums_best[i % len(nums_best)])
                    for i, request in enumerate(_mix_kinds(subject, rows, turn, rng))
                ]
                judge_logprobs(view, trial, batch, modes[turn % len(modes)], dtypes[turn % len(dtypes)])
                turn += 1
    return view.words


@properties.advertised("sharded NaN and infinities", _has_shards)
def sharded_special_values(subject: SampleSubject, trial: Trial) -> str:
    """Over ranks, NaN, +inf and -inf count wherever they lie, in the row's token and in its flag on every rank."""
    rng = trial.generator("rows")
    modes = subject.capabilities.logprobs_modes
    dtypes = subject.capabilities.gumbel_dtypes
    with over_ranks(subject, trial) as view:
        seed_torch(rng)
        poisonable = [site for site in _sites(subject) if site.size >= _SPECIAL_SIZE]
        if not poisonable:
            limit = subject.capabilities.max_vocab_size
            trial.skip(f"needs a vocabulary of {_SPECIAL_SIZE}, found a limit of {limit}")
        for turn, site in enumerate(poisonable):
            batch = _mix_kinds(subject, corners.make_special_rows(subject, site, rng), turn, rng)
            judge_call(view, trial, batch)
            if turn % 2 and modes:
                logprob_requests = [request.with_logprobs(3) for request in batch]
                judge_logprobs(
                    view, trial, logprob_requests, modes[turn % len(modes)], dtypes[turn % len(dtypes)]
                )
    return view.words


def _unfiltered_requests(subject: SampleSubject) -> list[SamplingParams]:
    """List requests that keep all equal tokens, with and without a filter."""
    order = subject.filter_order
    requests = [SamplingParams(filter_order=order)]
    if subject.has("min_p"):
        requests.append(SamplingParams(min_p=0.5, filter_order=order))
    return requests


def _sites(subject: SampleSubject) -> list[Site]:
    """List dtypes and vocabularies, only small ones in a quick run: a call over ranks takes several calls."""
    all_sites = sites(subject.capabilities, subject.effort)
    chosen_sites = [site for site in all_sites if site.size <= _QUICK_SIZE or not subject.effort.quick]
    return chosen_sites[:: subject.effort.fewer // 2 or 1]


def _rows_of_calls(subject: SampleSubject, site: Site, rng: Generator) -> Iterator[list[CrossedRow]]:
    """Make the rows of several calls: designed rows alone, and random rows by the size of their k."""
    domains, ties = {**factors(subject), "site": [site]}, subject.capabilities.tie_rule
    cases = [random_case(domains, rng, is_allowed) for _ in range(subject.effort.rows(_CASES))]
    rows = [crossed_row(case, rng, ties) for case in cases]
    yield from filter(
        None,
        (
            *designed_rows(subject.capabilities, site, rng, copies=max(1, _COPIES // subject.effort.fewer)),
            [row for row in rows if row.params.top_k == 0],
            [row for row in rows if 0 < row.params.top_k <= _SMALL_TOP_K],
            [row for row in rows if row.params.top_k > _SMALL_TOP_K],
        ),
    )


def _mix_kinds(
    subject: SampleSubject, rows: Sequence[CrossedRow], turn: int, rng: Generator
) -> list[CrossedRequest]:
    """Make a request of each row, their kinds in turn; designed rows draw in any case."""
    row_kinds = kinds(subject.capabilities)
    drawing_kinds = [kind for kind in row_kinds if not kind.startswith("greedy")]
    return [
        request
        for i, row in enumerate(rows)
        for kinds_of_row in [drawing_kinds if row.design in DESIGN_NAMES else row_kinds]
        for request in make_requests(row, [kinds_of_row[(i + turn) % len(kinds_of_row)]], rng)
    ]
