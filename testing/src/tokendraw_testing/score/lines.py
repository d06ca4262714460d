"""Scores beside the float64 reference, and beside those of draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tokendraw import LogprobsTensors, SamplingMetadata, SamplingParams
from tokendraw.plugin import INPUT_DTYPES, LOGPROBS_MODES, PAD_LOGPROB, PAD_TOKEN_ID, Filter, LogprobsMode
from tokendraw_testing import reference
from tokendraw_testing.crossing.comparison import (
    CrossedRequest,
    LogprobColumns,
    parts_of_equal_scalars,
    requests_in_turn,
    require_logprobs,
    require_thresholds,
    stack_logits,
)
from tokendraw_testing.crossing.factors import Kind
from tokendraw_testing.crossing.table import covering_rows
from tokendraw_testing.kit.inputs import require_unmodified
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.refusals import offers, require_unadvertised
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.requests import has_filter
from tokendraw_testing.rows.subjects import RowSubject, SampleSubject
from tokendraw_testing.score.subject import ScoreSubject

properties = Properties("score")

_WIDE_SIZE = 1 << 14
_NUMS_BEST = (None, 0, 3, 21)
_ENTROPY_TOLERANCE = 3e-5
_LABEL_PADDING = -100


@properties.required("scores", is_long=True)
def scores(subject: ScoreSubject, trial: Trial) -> str:
    """Values, ranks, best tokens, kept masses and entropies of given tokens are the reference's in every mode."""
    rng = trial.generator("table")
    modes, row_kinds = subject.capabilities.logprobs_modes, _kinds(subject)
    num_rows = 0
    rows_by_site = covering_rows(subject, rng, on_thresholds=True)
    for number, (site, rows) in enumerate(rows_by_site.items()):
        for turn, mode in enumerate(modes):
            is_first, effort = turn == number % len(modes), subject.effort
            if not is_first and (effort.fewer > 1 or effort.skips(site.size, number + turn)):
                continue
            requests = requests_in_turn(rows, row_kinds, 1, rng, turn)
            batch = [
                request.with_logprobs(_NUMS_BEST[i % len(_NUMS_BEST)]) for i, request in enumerate(requests)
            ]
            for part in parts_of_equal_scalars(subject, batch):
                tokens = [_token(request, i, int(rng.integers(site.size))) for i, request in enumerate(part)]
                judge_scores(subject, trial, part, tokens, mode)
            num_rows += len(batch)
    return f"{num_rows} rows in {len(modes)} modes"


@properties.required("scores of draws")
def scores_of_draws(subject: ScoreSubject, trial: Trial) -> str:
    """The token that ``sample`` drew has the values of that draw, bit for bit."""
    if "sample" not in subject.subject.capabilities:
        trial.skip("needs a plugin that also draws, found scores alone")
    rng = trial.generator("table")
    sampler, num_rows = SampleSubject(subject.subject), 0
    modes, row_kinds = subject.capabilities.logprobs_modes, _kinds(subject)
    for number, (site, rows) in enumerate(covering_rows(subject, rng).items()):
        mode = modes[number % len(modes)]
        requests = requests_in_turn(rows, row_kinds, 1, rng, number)
        batch = [request.with_logprobs(i % 3) for i, request in enumerate(requests)]
        for part in parts_of_equal_scalars(subject, batch):
            params, logits = [request.params for request in part], stack_logits(part, subject.device)
            drawn = sampler.sample(logits, params, [0] * len(part), mode=mode)
            scored = subject.score(logits, drawn.token_ids.tolist(), params, mode)
            pairs: dict[str, tuple[Any, Any]] = {"log_kept_mass": (scored.log_kept_mass, drawn.log_kept_mass)}
            for name in ("token_ids", "logprobs", "ranks"):
                pairs[name] = getattr(scored.logprobs, name), getattr(drawn.logprobs, name)
            for name, (found, expected) in pairs.items():
                trial.require(
                    torch.equal(found, expected),
                    f"{site}, {mode}: '{name}' needs the bits of the draw, found others",
                )
            num_rows += len(part)
    return f"{num_rows} rows"


_FILTERED: dict[Filter, SamplingParams] = {
    "top_k": SamplingParams(top_k=2),
    "top_p": SamplingParams(top_p=0.5),
    "min_p": SamplingParams(min_p=0.5),
    "typical_p": SamplingParams(typical_p=0.5),
    "xtc": SamplingParams(xtc_probability=1.0),
}
"""A request with each filter."""


def _refusal(params: SamplingParams, **need: Any) -> Refusal:
    def call(subject: ScoreSubject) -> Any:
        metadata = SamplingMetadata.from_params([params], device=subject.device, positions=[0])
        ids = torch.zeros(1, dtype=torch.int64, device=subject.device)
        return subject.new_call("score", torch.zeros(1, 4, device=subject.device), ids, metadata)

    return Refusal(need, call)


@properties.required("score output")
def output(subject: ScoreSubject, trial: Trial) -> str:
    """Batches of no row, V = 1 and padding have scores of the right form; unadvertised requests are refused."""
    for rows, size in ((0, 50), (1, 1), (3, 50)):
        tokens = [_LABEL_PADDING, 0, size][:rows]
        scored = subject.score(torch.zeros(rows, size), tokens, [SamplingParams()] * rows)
        _require_padding(trial, scored.logprobs, tokens, size)
    empty = subject.score(torch.full((1, 9), -torch.inf), [3], [SamplingParams()])
    trial.require(
        bool(empty.entropy.isnan().all()),
        f"a row of -inf needs the entropy NaN, found {empty.entropy.tolist()}",
    )
    refusals = (
        *((offers("dtypes", name), Refusal({"dtype": name})) for name in INPUT_DTYPES),
        *((offers("logprobs_modes", mode), Refusal({"logprobs_mode": mode})) for mode in LOGPROBS_MODES),
        *((has_filter(name), _refusal(params)) for name, params in _FILTERED.items()),
        (lambda c: c.greedy, _refusal(SamplingParams(temperature=0.0))),
    )
    return "4 shapes" + require_unadvertised(subject, refusals)


@properties.advertised("score thresholds", lambda c: c.threshold, Refusal({"threshold": True}))
def thresholds(subject: ScoreSubject, trial: Trial) -> str:
    """Each row's threshold is its least kept logit."""
    rng, num_judged = trial.generator("table"), 0
    view = subject.with_need(threshold=True)
    for site, rows in covering_rows(subject, rng, on_thresholds=True).items():
        if site.size > _WIDE_SIZE:
            continue
        batch = requests_in_turn(rows, _kinds(subject), 1, rng)
        for part in parts_of_equal_scalars(subject, batch):
            params = [request.params for request in part]
            scored = view.score(stack_logits(part, view.device), [0] * len(part), params)
            assert scored.threshold is not None
            num_judged += require_thresholds(trial, part, scored.threshold.tolist(), [None] * len(part))
    return f"{num_judged} rows"


def _kinds(subject: RowSubject) -> list[Kind]:
    """Return kinds of rows that differ for a score: seeds are ignored."""
    return ["unseeded", "greedy"] if subject.capabilities.greedy else ["unseeded"]


def _token(request: CrossedRequest, number: int, random_id: int) -> int:
    """Choose the likeliest, the least likely, a random, the last, or no token of a row."""
    x, size = request.row.x, request.row.site.size
    return (int(x.argmax()), int(x.argmin()), random_id, size - 1, _LABEL_PADDING)[number % 5]


def judge_scores(
    subject: ScoreSubject,
    trial: Trial,
    batch: Sequence[CrossedRequest],
    tokens: Sequence[int],
    mode: LogprobsMode,
) -> None:
    """Score a token of each row, and judge all values by the float64 reference."""
    logits = stack_logits(batch, subject.device)
    with require_unmodified(trial, logits=logits):
        scored = subject.score(logits, tokens, [request.params for request in batch], mode)
    best = scored.logprobs
    _require_padding(trial, best, tokens, batch[0].row.site.size)
    columns = LogprobColumns.of_rows(mode, best, scored.log_kept_mass)
    for i, (request, token, entropy) in enumerate(zip(batch, tokens, scored.entropy.tolist(), strict=True)):
        where = f"row {i} of {len(batch)}: "
        _require_entropy(trial, f"{where}{request}, {mode}", request, mode, entropy)
        if token >= 0:
            require_logprobs(trial, request, token, columns[i], where)


def _require_padding(trial: Trial, best: LogprobsTensors, tokens: Sequence[int], size: int) -> None:
    """Require padding in the first column and rank 0 where a token is none of the vocabulary."""
    ids, values = best.token_ids[:, 0].tolist(), best.logprobs[:, 0].tolist()
    ranks = [0] * len(tokens) if best.ranks is None else best.ranks.tolist()
    for token, *found in zip(tokens, ids, values, ranks, strict=True):
        trial.require(
            0 <= token < size or found == [PAD_TOKEN_ID, PAD_LOGPROB, 0],
            f"token {token} of a vocabulary of {size} needs padding and rank 0, found {found}",
        )


def _require_entropy(
    trial: Trial, what: str, request: CrossedRequest, mode: LogprobsMode, found: float
) -> None:
    row, params = request.row, request.params
    if not mode.startswith("raw") and params.temperature > 0 and not row.is_settled:
        return
    prepared = row.prepared if params.temperature > 0 else reference.prepare(row.x, params)
    expected = reference.entropy(prepared, mode)
    trial.require(
        abs(found - expected) <= _ENTROPY_TOLERANCE or (np.isnan(found) and np.isnan(expected)),
        f"{what} needs the entropy {expected:.7g}, found {found:.7g}",
    )
