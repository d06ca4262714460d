"""Thresholds: the least kept logit of each row, with and without logprobs."""

from __future__ import annotations

from collections.abc import Sequence

from tokendraw.plugin import Capabilities, LogprobsMode
from tokendraw_testing.crossing.comparison import CrossedRequest, requests_in_turn
from tokendraw_testing.crossing.factors import kinds
from tokendraw_testing.crossing.table import (
    covering_rows,
    share_among_dtypes,
)
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.subjects import SampleSubject
from tokendraw_testing.sample import corners
from tokendraw_testing.sample.crossed_calls import judge_thresholds

properties = Properties("sample")

_SPECIAL_SIZE = 64


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


def _judge(
    view: SampleSubject, trial: Trial, batch: Sequence[CrossedRequest], mode: LogprobsMode | None
) -> int:
    """Judge tokens and thresholds of a batch, of which two rows in three ask for logprobs if there is a mode."""
    if mode is not None:
        batch = [request.with_logprobs((0, 3, None)[i % 3]) for i, request in enumerate(batch)]
    return judge_thresholds(view, trial, batch, mode)
