"""Judges each column of a verification by float64: chains, ``valid``, kept sets and log-probabilities, and drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tokendraw import VerifyOutput
from tokendraw.plugin import PAD_LOGPROB, GumbelDtype
from tokendraw_testing import reference, reference_walk
from tokendraw_testing.cases.drafts import DRAFT, CrossedCall, DraftRequest, chains
from tokendraw_testing.cases.requests import CrossedRequest, request_metadata, stack_logits
from tokendraw_testing.judges.rows import LogprobRows, require_bounds, require_draws
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.subjects import VerifySubject

_RESIDUAL_MARGIN: Final = 1e-4
"""A token belongs to a residual if p is larger than q by this share, and does not if it is smaller by it."""


def judge_chains(
    subject: VerifySubject, trial: Trial, call: CrossedCall, least_lead: float = reference.NEAR_TIE
) -> int:
    """Make a call and judge each request; return the number of chains named by the reference.

    :param least_lead: that names a chain.
    """
    output, answers, num_named = call.verify(subject), call.answers(), 0
    results, valid = chains(output), output.valid.tolist()
    for place, (i, tokens) in enumerate(zip(call.order, results, strict=True)):
        request, answer = call.requests[i], answers[i]
        what = f"{call}, request {place}: {request}"
        num_used = len(request.target) if call.form.mode == "block" else len(tokens)
        if request.is_settled(num_used) and answer is not None:
            is_named = answer.lead >= least_lead
            is_same = tokens == answer.tokens or not is_named
            trial.require(is_same, f"{what} needs {answer.tokens}, found {tokens}")
            num_named += is_named
        elif request.is_settled(num_used):
            _require_possible(trial, request, tokens, what)
        expected_valid = _is_valid(request, len(tokens))
        trial.require(
            valid[place] == expected_valid or not subject.capabilities.valid_flag,
            f"{what} needs valid {expected_valid}, found {valid[place]}",
        )
    if output.threshold is not None:
        _require_bounds(trial, call, output)
    if output.logprobs is not None:
        _require_logprobs(subject, trial, call, output, results)
    return num_named


def require_drafts(
    subject: VerifySubject, trial: Trial, batch: Sequence[CrossedRequest], dtype: GumbelDtype | None = None
) -> None:
    """Draw a draft from each row, and require a kept token or the token of the seed, and ``valid``."""
    dtype, metadata = dtype or subject.gumbel_dtype, request_metadata(batch, subject.device)
    output = subject.call("draft", stack_logits(batch, subject.device), metadata, gumbel_dtype=dtype)
    require_draws(subject, trial, batch, output, dtype, DRAFT)


def _read_steps(request: DraftRequest, num_used: int) -> list[int]:
    """List the steps whose drafts' rows are read for the first tokens."""
    ids = request.ids[:num_used] if request.params.temperature > 0 else []
    return [step for step, token in enumerate(ids) if 0 <= token < request.form.site.size]


def _is_valid(request: DraftRequest, num_used: int) -> bool:
    """Whether all rows of ``num_used`` tokens are free of NaN and have a value above -inf."""
    read = _read_steps(request, num_used)
    return all(row.valid for row in request.rows[:num_used]) and all(request.drawn_by(i)[1] for i in read)


def _require_possible(trial: Trial, request: DraftRequest, tokens: list[int], what: str) -> None:
    for token, row in zip(tokens, request.rows, strict=False):
        trial.require(row.kept[token], f"{what} needs kept tokens, found {tokens}: {token} is dropped")
    for step in _read_steps(request, len(tokens)):
        p, (q, _) = reference_walk.distribution(request.rows[step]), request.drawn_by(step)
        token, is_possible = tokens[step], True
        if step < len(tokens) - 1:
            is_possible = q[token] > 0
        elif request.form.mode == "rejection" and (p > q * (1 + _RESIDUAL_MARGIN)).any():
            is_possible = p[token] > q[token] * (1 - _RESIDUAL_MARGIN)
        needed = "an accepted draft that has q > 0, or a token from max(p - q, 0)"
        at = f"{token} with p = {p[token]:.3g}, q = {q[token]:.3g}"
        trial.require(is_possible, f"{what} needs {needed}, found {at}")


def _require_bounds(trial: Trial, call: CrossedCall, output: VerifyOutput) -> None:
    """Require the bounds of every row whose kept set rounding does not decide, whether or not the row was used."""
    assert output.threshold is not None
    thresholds = output.threshold.tolist()
    ceilings = [None] * len(thresholds) if output.ceiling is None else output.ceiling.tolist()
    rows = [(request, row) for request in call.batch for row in request.rows]
    for (request, row), threshold, ceiling in zip(rows, thresholds, ceilings, strict=False):
        has_ceiling = request.params.typical_p < 1 or request.params.xtc_probability > 0
        if row.certain:
            what = f"{call}, a row of {request}"
            require_bounds(trial, what, row, threshold, ceiling, has_ceiling=has_ceiling)


def _require_logprobs(
    subject: VerifySubject, trial: Trial, call: CrossedCall, output: VerifyOutput, results: list[list[int]]
) -> None:
    """Demand values, the N best and ranks of every token from a row without poison, and padding behind."""
    assert output.logprobs is not None
    rows = LogprobRows(output.logprobs, output.log_kept_mass)
    mode = call.logprobs_mode or subject.need().logprobs_mode
    places = {i: place for place, i in reversed(list(enumerate(call.order)))}
    for i, place in places.items():
        request, tokens = call.requests[i], results[place]
        if request.params.logprobs is None:
            continue
        what = f"{call}, {mode}, N = {request.params.logprobs}, request {place}: {request}"
        behind = rows.masses[place, len(tokens) :]
        trial.require(
            (behind == PAD_LOGPROB).all(),
            f"{what} needs log_kept_mass -inf behind its {len(tokens)} tokens, found {behind.tolist()}",
        )
        for step, token in enumerate(tokens):
            row, at = request.rows[step], (place, step)
            if row.valid and row.x.max() < np.inf:
                rows.require(trial, what, request.step(step), token, mode, at)
            else:
                rows.require_form(trial, what, request.params, token, call.form.site.size, at)
