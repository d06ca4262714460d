"""Judges each column of a verification by float64: chains, ``valid``, kept sets and log-probabilities, and drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import SamplingMetadata, SamplingParams, VerifyOutput
from tokendraw.plugin import PAD_LOGPROB, GumbelDtype
from tokendraw_testing import reference, reference_walk
from tokendraw_testing.cases.drafts import CrossedCall, DraftRequest, Form, chains, usable_probs
from tokendraw_testing.judges.expectation import expect
from tokendraw_testing.judges.rows import LogprobRows, require_bounds, require_mass
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.subjects import VerifySubject

Array = NDArray[Any]

_RESIDUAL_MARGIN: Final = 1e-4
"""A token belongs to a residual if p is larger than q by this share, and does not if it is smaller by it."""


def judge_chains(
    subject: VerifySubject, trial: Trial, call: CrossedCall, answers: list[reference_walk.Answer | None]
) -> int:
    """Make a call and judge each request; return the number of chains named by the reference.

    :param answers: of the call, from ``call.answers()``.
    :raises Violation: a chain, ``valid``, a threshold or log-probabilities are wrong.
    """
    output, num_named, words = call.verify(subject), 0, str(call)
    results, valid = chains(output), output.valid.tolist()
    if output.threshold is not None:
        _require_bounds(trial, call, output)
    for place, i in enumerate(call.order):
        request, answer, tokens = call.requests[i], answers[i], results[place]
        what = f"{words}, request {place}: {request}"
        num_used = len(request.rows) if call.form.mode == "block" else len(tokens)
        is_known = is_settled(subject, request, num_used)
        if answer is not None and is_known:
            trial.require(
                tokens == answer.tokens or answer.lead < reference.NEAR_TIE,
                f"{what} needs {answer.tokens}, found {tokens}",
            )
            num_named += answer.lead >= reference.NEAR_TIE
        elif is_known:
            _require_possible(trial, call.form, request, tokens, what)
        expected_valid = _is_valid(call.form, request, len(tokens))
        trial.require(
            valid[place] == expected_valid or not subject.capabilities.valid_flag,
            f"{what} needs valid {expected_valid}, found {valid[place]}",
        )
    if output.logprobs is not None:
        _require_logprobs(subject, trial, call, output, results)
    return num_named


class Drawn(NamedTuple):
    """A row to draw a draft from."""

    params: SamplingParams
    position: int
    row: reference.ReferenceRow
    possible: Array | None
    """Tokens that may be drawn, [V] bool; None where rounding decides."""
    is_settled: bool
    about: str


def require_drafts(
    subject: VerifySubject,
    trial: Trial,
    logits: torch.Tensor,
    rows: Sequence[Drawn],
    dtype: GumbelDtype | None = None,
) -> None:
    """Draw a draft from each row, and require a kept token or the token of the seed, and ``valid``.

    :param dtype: precision of the noise.
    """
    metadata = SamplingMetadata.from_params(
        [row.params for row in rows], device=subject.device, positions=[row.position for row in rows]
    )
    output, dtype = subject.draft(logits, metadata, gumbel_dtype=dtype), dtype or subject.gumbel_dtype
    streams = (reference_walk.DRAFT_TOKEN, reference_walk.DRAFT_TILE)
    drawings = [reference.drawing(each.row, each.position, streams) for each in rows]
    answers = reference.together(drawings, [each.params.seed or 0 for each in rows], dtype)
    found = zip(rows, output.token_ids.tolist(), output.valid.tolist(), answers, strict=True)
    for each, token, valid, (expected, lead) in found:
        what = f"a draft of {each.about}"
        if each.possible is not None:
            num_kept = each.possible.sum()
            trial.require(each.possible[token], f"{what} needs one of {num_kept} kept tokens, found {token}")
        is_known = each.params.seed is not None or each.row.greedy
        is_free = not is_known or not each.is_settled or lead < reference.NEAR_TIE
        trial.require(is_free or token == expected, f"{what} needs token {expected}, found {token}")
        trial.require(
            valid == each.row.valid or not subject.capabilities.valid_flag,
            f"{what} needs valid {each.row.valid}, found {valid}",
        )


def judge_drafts(subject: VerifySubject, trial: Trial, call: CrossedCall) -> None:
    """Judge a draft from the first row of each distinct request of a call."""
    rows = []
    for request in call.requests:
        row, is_known = request.draft_row, is_settled(subject, request, 1)
        possible, about = row.kept if is_known else None, f"{call}: the first row of {request}"
        rows.append(Drawn(request.params, request.first, row, possible, is_known, about))
    logits = subject.upload(np.stack([request.target[0] for request in call.requests]), call.form.site.dtype)
    require_drafts(subject, trial, logits, rows, call.form.gumbel_dtype)


def is_settled(subject: VerifySubject, request: DraftRequest, num_used: int) -> bool:
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


def _require_bounds(trial: Trial, call: CrossedCall, output: VerifyOutput) -> None:
    """Require the bounds of every row whose kept set rounding does not decide, whether or not the row was used."""
    assert output.threshold is not None
    thresholds, place = output.threshold.tolist(), 0
    ceilings = [None] * len(thresholds) if output.ceiling is None else output.ceiling.tolist()
    for i in call.order:
        request = call.requests[i]
        has_ceiling = request.params.typical_p < 1 or request.params.xtc_probability > 0
        for step, row in enumerate(request.rows):
            if row.certain:
                what, at = f"{call}, row {step} of {request}", place + step
                require_bounds(trial, what, row, thresholds[at], ceilings[at], has_ceiling=has_ceiling)
        place += len(request.rows)


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
            rows.require_form(trial, what, request.params, token, call.form.site.size, at)
            if row.valid and row.x.max() < np.inf and is_settled(subject, request, step + 1):
                require_mass(trial, what, reference.log_kept_mass(row), float(rows.masses[at]))
                expected = reference.values(row, token, mode)
                rows.require_values(trial, what, request.params, token, row, expected, at)
