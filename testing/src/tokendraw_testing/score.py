"""The lines of ``score``: every column beside float64 and beside those of draws, shapes and refusals."""

from __future__ import annotations

from typing import Any

import torch

from tokendraw import SamplingParams
from tokendraw.plugin import LOGPROBS_MODES
from tokendraw_testing import cases, exact, kept_sets
from tokendraw_testing.kit.property import OperationKit, Properties, Refusal, offers
from tokendraw_testing.kit.subject import SampleSubject, ScoreSubject, require_unadvertised
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.row_judge import LABEL_PADDING, LogprobRows
from tokendraw_testing.sample import ROW_REFUSALS, examples, judge_all, logprob_calls, scored_kinds

properties = Properties("score")


@properties.required("scores", is_long=True)
def scores(subject: ScoreSubject, trial: Trial) -> str:
    """Values, ranks, best tokens, masses, entropies and bounds of given tokens are float64's in every mode."""
    return judge_all(subject, trial, logprob_calls)


@properties.required("scores of draws")
def scores_of_draws(subject: ScoreSubject, trial: Trial) -> str:
    """The token that ``sample`` drew has the values of that draw, bit for bit."""
    if "sample" not in subject.subject.capabilities:
        trial.skip("needs a plugin that also draws, found scores alone")
    rng, sampler, num_rows = trial.generator("table"), SampleSubject(subject.subject), 0
    modes = subject.capabilities.logprobs_modes
    for number, (site, rows) in enumerate(cases.covering_rows(subject, rng).items()):
        mode = modes[number % len(modes)]
        requests = cases.requests_in_turn(rows, scored_kinds(subject.capabilities), 1, rng, number)
        batch = [request.asking(i % 3) for i, request in enumerate(requests)]
        for part in cases.parts_of_equal_scalars(subject, batch):
            params, logits = [request.params for request in part], cases.stack_logits(part, subject.device)
            drawn = sampler.sample(logits, params, [0] * len(part), logprobs_mode=mode)
            scored = subject.score(logits, drawn.token_ids.tolist(), params, mode)
            pairs: list[tuple[str, Any, Any]] = [("log_kept_mass", scored, drawn)]
            pairs += [(name, scored.logprobs, drawn.logprobs) for name in ("token_ids", "logprobs", "ranks")]
            for name, ours, theirs in pairs:
                trial.require(
                    torch.equal(getattr(ours, name), getattr(theirs, name)),
                    f"{site}, {mode}: '{name}' needs the bits of the draw, found others",
                )
            num_rows += len(part)
    return f"{num_rows} rows"


@properties.required("score output")
def output(subject: ScoreSubject, trial: Trial) -> str:
    """Batches of no row, V = 1 and padding have scores of the right form; unadvertised requests are refused."""
    for rows, size in ((0, 50), (1, 1), (3, 50)):
        tokens = [LABEL_PADDING, 0, size][:rows]
        scored = subject.score(torch.zeros(rows, size), tokens, [SamplingParams()] * rows)
        logprobs = LogprobRows(scored.logprobs, scored.log_kept_mass)
        for i, token in enumerate(tokens):
            if not 0 <= token < size:
                logprobs.require_padding(trial, token, i)
    empty = subject.score(torch.full((1, 9), -torch.inf), [3], [SamplingParams()])
    found = empty.entropy.tolist()
    trial.require(empty.entropy.isnan().all(), f"a row of -inf needs the entropy NaN, found {found}")
    modes = [(offers("logprobs_modes", mode), Refusal({"logprobs_mode": mode})) for mode in LOGPROBS_MODES]
    return "4 shapes" + require_unadvertised(subject, [*ROW_REFUSALS, *modes])


KIT = OperationKit(
    view=ScoreSubject,
    properties=(
        *properties.all,
        *kept_sets.lines("score"),
        *exact.lines("score", "score ", examples, device_shape=(24, 32_000)),
    ),
)
