"""Judges verifications of crossed requests: chains, ``valid``, thresholds and log-probabilities, by the reference."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tokendraw import VerifyOutput
from tokendraw.plugin import PAD_LOGPROB, PAD_TOKEN_ID
from tokendraw_testing import reference, reference_walk
from tokendraw_testing.crossing.comparison import largest_ids, require_given
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.expectation import expect
from tokendraw_testing.rows.logprobs import TOLERANCE, given_columns, require_values
from tokendraw_testing.rows.thresholds import require_threshold
from tokendraw_testing.verify.crossing.calls import CrossedCall
from tokendraw_testing.verify.crossing.requests import DraftRequest, Form, usable_probs
from tokendraw_testing.verify.draft_batch import chains
from tokendraw_testing.verify.subject import VerifySubject

Array = NDArray[Any]

_RESIDUAL_MARGIN: Final = 1e-4
"""A token belongs to a residual if p is larger than q by this share, and does not if it is smaller by it."""


def require_answers(subject: VerifySubject, trial: Trial, call: CrossedCall) -> int:
    """Make a call and judge each request; return the number of chains named by the reference.

    :raises Violation: a chain, ``valid`` or log-probabilities are wrong.
    """
    output, answers, num_named = call.verify(subject), call.answers(), 0
    results, valid = chains(output), output.valid.tolist()
    if output.threshold is not None:
        _require_thresholds(trial, call, output.threshold.tolist())
    for place, i in enumerate(call.order):
        request, answer, tokens = call.requests[i], answers[i], results[place]
        what = f"{call}, request {place}: {request}"
        num_used = len(request.rows) if call.form.mode == "block" else len(tokens)
        is_settled = _is_settled(subject, request, num_used)
        if answer is not None and is_settled:
            trial.require(
                tokens == answer.tokens or answer.lead < reference.NEAR_TIE,
                f"{what} needs {answer.tokens}, found {tokens}",
            )
            num_named += answer.lead >= reference.NEAR_TIE
        elif is_settled:
            _require_possible(trial, call.form, request, tokens, what)
        expected_valid = _is_valid(call.form, request, len(tokens))
        trial.require(
            valid[place] == expected_valid or not subject.capabilities.valid_flag,
            f"{what} needs valid {expected_valid}, found {valid[place]}",
        )
    if output.logprobs is not None:
        _require_logprobs(subject, trial, call, output, results)
    _require_drafts(subject, trial, call)
    return num_named


def _require_drafts(subject: VerifySubject, trial: Trial, call: CrossedCall) -> None:
    """Require kept drafts, the drafts of the seeds, and ``valid``."""
    output = call.draft(subject)
    streams = (reference_walk.DRAFT_TOKEN, reference_walk.DRAFT_TILE)
    drawings = [reference.drawing(request.rows[0], request.first, streams) for request in call.requests]
    answers = reference.together(
        drawings, [r.params.seed or 0 for r in call.requests], call.form.gumbel_dtype
    )
    results = zip(output.token_ids.tolist(), output.valid.tolist(), answers, strict=True)
    for request, (drafted, valid, (token, lead)) in zip(call.requests, results, strict=True):
        row, what = request.rows[0], f"{call}: a draft from the first row of {request}"
        is_known = request.params.seed is not None or row.greedy
        if _is_settled(subject, request, 1):
            trial.require(row.kept[drafted], f"{what} needs a kept token, found {drafted}")
            is_free = not is_known or lead < reference.NEAR_TIE
            trial.require(is_free or drafted == token, f"{what} needs {token}, found {drafted}")
        trial.require(
            valid == row.valid or not subject.capabilities.valid_flag,
            f"{what} needs valid {row.valid}, found {valid}",
        )


def _is_settled(subject: VerifySubject, request: DraftRequest, num_used: int) -> bool:
    """Whether rounding decides no filter of the used rows, and the sampler none of their ties."""
    rule = subject.capabilities.tie_rule
    if not all(row.certain for row in (*request.rows[:num_used], *request.draft_rows[:num_used])):
        return False
    if rule == "value":
        return True
    rows = [*request.target[:num_used], *request.draft[: num_used if request.draft_rows else 0]]
    return not any(expect(x, request.params, rule).in_part.any() for x in rows)


def _is_valid(form: Form, request: DraftRequest, num_used: int) -> bool:
    """Whether all rows of ``num_used`` tokens are free of NaN and have a value above -inf."""
    is_valid = all(row.valid for row in request.rows[:num_used])
    if form.mode == "coupled" or form.kind == "chosen" or not request.params.temperature > 0:
        return is_valid
    for step, token in enumerate(request.ids[:num_used]):
        if not 0 <= token < form.site.size:
            continue
        if form.kind == "logits":
            is_valid = is_valid and request.draft_rows[step].valid
        else:
            q = request.draft[step]
            is_valid = is_valid and bool((q >= 0).all() and 0 < q.max() < np.inf)
    return is_valid


def _require_possible(trial: Trial, form: Form, request: DraftRequest, tokens: list[int], what: str) -> None:
    """Require possible tokens of a request without a seed."""
    last = len(tokens) - 1
    for step, token in enumerate(tokens):
        row = request.rows[step]
        trial.require(
            row.kept[token], f"{what} needs kept tokens, found {tokens}, of which {token} is dropped"
        )
        if form.mode == "coupled" or form.kind == "chosen" or step == len(request.ids):
            continue
        if not 0 <= request.ids[step] < form.site.size:
            continue
        p = reference_walk.distribution(row)
        if form.kind == "probs":
            q = usable_probs(request.draft[step])
        else:
            q = reference_walk.distribution(request.draft_rows[step])
        if step < last:
            trial.require(
                q[token] > 0, f"{what} needs drafts that may have been drawn, found {token} accepted"
            )
        elif form.mode == "rejection" and (p > q * (1 + _RESIDUAL_MARGIN)).any():
            trial.require(
                p[token] > q[token] * (1 - _RESIDUAL_MARGIN),
                f"{what} needs a token from max(p - q, 0), found {token} with p = {p[token]:.3g}, q = {q[token]:.3g}",
            )


def _require_thresholds(trial: Trial, call: CrossedCall, found: list[float]) -> None:
    """Require the threshold of every row whose kept set rounding does not decide, whether or not the row was used."""
    place = 0
    for i in call.order:
        request = call.requests[i]
        for step, row in enumerate(request.rows):
            if row.certain:
                what = f"{call}, row {step} of {request}"
                require_threshold(trial, what, found[place + step], row)
        place += len(request.rows)


def _require_logprobs(
    subject: VerifySubject, trial: Trial, call: CrossedCall, output: VerifyOutput, results: list[list[int]]
) -> None:
    """Demand values, the N best and ranks of every token from a row without poison, and padding behind."""
    assert output.logprobs is not None
    assert output.log_kept_mass is not None
    masses = output.log_kept_mass.cpu().numpy()
    mode = call.logprobs_mode or subject.need().logprobs_mode
    ids, values = (getattr(output.logprobs, name).cpu().numpy() for name in ("token_ids", "logprobs"))
    ranks = None if output.logprobs.ranks is None else output.logprobs.ranks.cpu().numpy()
    given_ids, given_values = given_columns(output.logprobs)
    seen_requests = set[int]()
    for place, i in enumerate(call.order):
        request, tokens = call.requests[i], results[place]
        if request.params.logprobs is None or i in seen_requests:
            continue
        seen_requests.add(i)
        num_best = request.params.logprobs
        num_columns = call.form.site.size if num_best == -1 else min(num_best, call.form.site.size)
        what = f"{call}, {mode}, N = {num_best}, request {place}: {request}"
        trial.require(
            (masses[place, len(tokens) :] == PAD_LOGPROB).all(),
            f"{what} needs log_kept_mass -inf behind its {len(tokens)} tokens, found {masses[place].tolist()}",
        )
        for step, token in enumerate(tokens):
            row = request.rows[step]
            row_ids, row_values = ids[place, step], values[place, step]
            trial.require(
                row_ids[0] == token, f"{what} needs the emitted token {token} first, found {row_ids[0]}"
            )
            trial.require(
                (row_ids[1 + num_columns :] == PAD_TOKEN_ID).all()
                and (row_values[1 + num_columns :] == PAD_LOGPROB).all(),
                f"{what} needs padding behind its {num_columns} best, found {row_ids[1 + num_columns :][:3].tolist()}",
            )
            step_ids, step_values = given_ids[place, step], given_values[place, step]
            require_given(trial, what, request.params, step_ids, step_values)
            if not row.valid or not row.x.max() < np.inf or not _is_settled(subject, request, step + 1):
                continue
            expected = reference.values(row, token, mode)
            require_values(trial, what, row_ids[: 1 + num_columns], row_values[: 1 + num_columns], expected)
            num_given = len(request.params.logprob_token_ids or ())
            require_values(trial, what, step_ids[:num_given], step_values[:num_given], expected)
            mass = reference.log_kept_mass(row)
            trial.require(
                abs(masses[place, step] - mass) <= TOLERANCE,
                f"{what} needs log_kept_mass {mass:.6f} of token {token}, found {masses[place, step]:.6f}",
            )
            if mode.startswith("raw") and num_columns:
                best = largest_ids(row.x, num_columns)
                mismatches = np.flatnonzero(row_ids[1 : 1 + num_columns] != best)[:1]
                trial.require(
                    not len(mismatches),
                    f"{what} needs {best[mismatches]} in place {mismatches + 1}, found {row_ids[1 + mismatches]}",
                )
            rank = reference.rank(row, expected, token)
            trial.require(
                ranks is None or ranks[place, step] == rank,
                f"{what} needs rank {rank} of token {token}, found {None if ranks is None else ranks[place, step]}",
            )
