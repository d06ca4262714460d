"""Thresholds: the least kept logit of each row, with and without logprobs, on one device and over ranks."""

from __future__ import annotations

from collections.abc import Sequence

from tokendraw.plugin import Capabilities, LogprobsMode
from tokendraw_testing.crossing.comparison import CrossedRequest, requests_in_turn
from tokendraw_testing.crossing.factors import kinds, some_sites
from tokendraw_testing.crossing.table import (
    covering_rows,
    rows_of_designs,
    share_among_dtypes,
    threshold_rows,
)
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.subjects import SampleSubject
from tokendraw_testing.sample import corners
from tokendraw_testing.sample.crossed_calls import judge_thresholds
from tokendraw_testing.sample.sharded_subject import over_ranks

properties = Properties("sample")

_SPECIAL_SIZE = 64
_RANK_SIZE = 1 << 13
"""Largest vocabulary over ranks."""


def _has_thresholds(capabilities: Capabilities) -> bool:
    return capabilities.threshold


@properties.advertised("thresholds", _has_thresholds, Refusal({"threshold": True}), is_long=True)
def thresholds(subject: SampleSubject, trial: Trial) -> str:
    """Each row's threshold is its least kept logit, with and without logprobs, and tokens stay as they are."""
    rng = trial.generator("table")
    view = subject.with_need(threshold=True)
    row_kinds, modes = kinds(subject.capabilities), (None, *subject.capabilities.logprobs_modes)
    num_rows = num_judged = 0
    seed_torch(rng)
    rows_by_site = covering_rows(subject, rng, on_thresholds=True)
    for number, (site, rows) in enumerate(rows_by_site.items()):
        if site.size >= _SPECIAL_SIZE:
            rows.extend(share_among_dtypes(subject, site, corners.make_special_rows(subject, site, rng)))
        for turn in range(1 if subject.effort.mixed else 2):
            batch = requests_in_turn(rows, row_kinds, 1, rng, turn)
            batch = [batch[i] for i in rng.permutation(len(batch))]
            num_rows += len(batch)
            num_judged += _judge(view, trial, batch, modes[(number + turn) % len(modes)])
    return f"{num_rows} rows, the threshold of {num_judged} of them named by the reference"


@properties.advertised("sharded thresholds", lambda c: c.threshold and c.vocab_parallel)
def sharded_thresholds(subject: SampleSubject, trial: Trial) -> str:
    """Over ranks, each row's threshold is the least kept logit of the whole vocabulary, on every rank."""
    rng = trial.generator("rows")
    row_kinds, modes = kinds(subject.capabilities), (None, *subject.capabilities.logprobs_modes)
    turn = 0
    with over_ranks(subject, trial) as ranks:
        view = ranks.with_need(threshold=True)
        seed_torch(rng)
        for site in some_sites(subject.capabilities, subject.effort):
            if site.size > _RANK_SIZE:
                continue
            rows = rows_of_designs(subject.capabilities, site, rng)
            rows += threshold_rows(subject.capabilities, site, rng)
            if site.size >= _SPECIAL_SIZE:
                rows += corners.make_special_rows(subject, site, rng)
            rows = rows[turn % subject.effort.fewer :: subject.effort.fewer]
            _judge(view, trial, requests_in_turn(rows, row_kinds, 1, rng, turn), modes[turn % len(modes)])
            if turn == 0 and "greedy" in row_kinds:  # of such a batch ranks may tell their argmax alone
                _judge(view, trial, requests_in_turn(rows, ["greedy"], 1, rng), None)
            turn += 1
    return view.words


def _judge(
    view: SampleSubject, trial: Trial, batch: Sequence[CrossedRequest], mode: LogprobsMode | None
) -> int:
    """Judge tokens and thresholds of a batch, of which two rows in three ask for logprobs if there is a mode."""
    if mode is not None:
        batch = [request.with_logprobs((0, 3, None)[i % 3]) for i, request in enumerate(batch)]
    return judge_thresholds(view, trial, batch, mode)
