"""Verifications of crossed requests, judged by the reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import Drafts, SamplerOutput, SamplingMetadata, VerifyOutput
from tokendraw.plugin import PAD_LOGPROB, PAD_TOKEN_ID, LogprobsMode
from tokendraw_testing import reference, reference_walk
from tokendraw_testing.crossing.comparison import largest_ids, require_given
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.expectation import expect
from tokendraw_testing.rows.logprobs import TOLERANCE, given_columns, require_values
from tokendraw_testing.rows.thresholds import require_threshold
from tokendraw_testing.verify.crossing.requests import DraftRequest, Form, usable_probs
from tokendraw_testing.verify.draft_batch import chains, pad_ids
from tokendraw_testing.verify.subject import VerifySubject, row_metadata

Array = NDArray[Any]

LAYOUTS: Final = ("flat", "padded", "padded int32", "padded, rows behind")
"""Of the ids: [L - B], or [B, K] with more rows of logits than the requests have."""
_EXTRA_ROWS: Final = 3
_RESIDUAL_MARGIN: Final = 1e-4
"""A token belongs to a residual if p is larger than q by this share, and does not if it is smaller by it."""


@dataclass(frozen=True, kw_only=True)
class CrossedCall:
    """A verification of requests of one form; a request may occur several times."""

    form: Form
    requests: list[DraftRequest]
    order: list[int]
    """The request in each place of the batch."""
    logprobs_mode: LogprobsMode | None
    layout: str
    """How the ids are laid out, one of :data:`LAYOUTS`."""

    def __str__(self) -> str:
        form = self.form
        dtype_text = "" if form.kind == "chosen" else f" in {form.draft_dtype}"
        return (
            f"{form.site}, {form.mode}, {form.kind}{dtype_text}, {form.gumbel_dtype} noise, B = {len(self.order)}"
            + f", {self.layout} ids"
        )

    def of_most_drafts(self) -> CrossedCall:
        """Return the call of the request with the most drafts alone."""
        request_of_most = max(self.requests, key=lambda request: len(request.ids))
        return replace(self, requests=[request_of_most], order=[0])

    def verify(self, subject: VerifySubject) -> VerifyOutput:
        """Make the call."""
        form, batch = self.form, [self.requests[i] for i in self.order]
        ids = [request.ids for request in batch]
        draft = [row for request in batch for row in request.draft]
        draft_rows = self._on(subject, draft, form.draft_dtype) if form.kind != "chosen" else None
        flat = subject.drafts(ids, form.site.size, form.kind, draft_rows)
        target = self._on(subject, [row for request in batch for row in request.target], form.site.dtype)
        metadata = row_metadata(flat, [r.params for r in batch], [r.first for r in batch])
        drafts = flat if self.layout == "flat" else pad_ids(flat, ids, self.layout)
        if self.layout == "padded, rows behind":
            drafts, target, metadata = append_rows(drafts, target, metadata)
        return subject.verify(
            target,
            drafts,
            metadata,
            form.mode,
            logprobs_mode=self.logprobs_mode,
            gumbel_dtype=form.gumbel_dtype,
        )

    def _on(self, subject: VerifySubject, rows: list[Array], dtype: str) -> torch.Tensor:
        """Lay rows out on the device, in their own dtype."""
        array = np.stack(rows) if rows else np.zeros((0, self.form.site.size), np.float32)
        return subject.upload(array, dtype)

    def draft(self, subject: VerifySubject) -> SamplerOutput:
        """Draw a draft from the first row of each distinct request."""
        metadata = SamplingMetadata.from_params(
            [request.params for request in self.requests],
            device=subject.device,
            positions=[request.first for request in self.requests],
        )
        rows = self._on(subject, [request.target[0] for request in self.requests], self.form.site.dtype)
        return subject.draft(rows, metadata, gumbel_dtype=self.form.gumbel_dtype)

    def answers(self) -> list[reference_walk.Answer | None]:
        """Walk along the drafts of every seeded or greedy request; None for the rest."""
        form, walks, seeds = self.form, [], []
        flags = [r.params.seed is not None or not r.params.temperature > 0 for r in self.requests]
        for request, is_known in zip(self.requests, flags, strict=True):
            if is_known:
                walks.append(_walking(form, request))
                seeds.append(request.params.seed or 0)
        answers = iter(reference.together(walks, seeds, form.gumbel_dtype) if walks else [])
        return [next(answers) if is_known else None for is_known in flags]


def _walking(form: Form, request: DraftRequest) -> reference.Drawing[reference_walk.Answer]:
    return reference_walk.walking(
        request.rows,
        request.ids,
        request.params,
        range(request.first, request.first + len(request.rows)),
        probs=np.stack(request.draft) if form.kind == "probs" and request.draft else None,
        logits=request.draft_rows if form.kind == "logits" else None,
        mode=form.mode,
    )


def append_rows(
    drafts: Drafts, target: torch.Tensor, metadata: SamplingMetadata
) -> tuple[Drafts, torch.Tensor, SamplingMetadata]:
    """Append rows of NaN to the last request, as engines leave them in buffers of one size."""

    def longer(rows: torch.Tensor, value: float) -> torch.Tensor:
        return torch.cat((rows, rows.new_full((_EXTRA_ROWS, *rows.shape[1:]), value)))

    draft_tensors = {name: getattr(drafts, name) for name in ("draft_probs", "draft_logits")}
    longer_tensors = {
        name: longer(rows, float("nan")) for name, rows in draft_tensors.items() if rows is not None
    }
    assert metadata.positions is not None
    assert metadata.row_index is not None
    positions, row_index = longer(metadata.positions, 0), longer(metadata.row_index, 0)
    return (
        replace(drafts, **longer_tensors),  # type: ignore[arg-type]
        longer(target, float("nan")),
        replace(metadata, positions=positions, row_index=row_index),
    )


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
            rank = int((row.x >= row.x[token]).sum())
            trial.require(
                ranks is None or ranks[place, step] == rank,
                f"{what} needs rank {rank} of token {token}, found {None if ranks is None else ranks[place, step]}",
            )
