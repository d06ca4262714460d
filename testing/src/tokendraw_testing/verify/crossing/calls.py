"""Verifications of crossed requests, and what the reference says of each of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import Drafts, SamplerOutput, SamplingMetadata, VerifyOutput
from tokendraw.plugin import PAD_LOGPROB, PAD_TOKEN_ID, LogprobsMode
from tokendraw_testing import reference, reference_walk
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.expected import expect
from tokendraw_testing.rows.logprobs import TOLERANCE, require_values
from tokendraw_testing.verify.crossing.requests import Form, Request, given_probs
from tokendraw_testing.verify.drafting import chains, drafts_of, on, row_metadata
from tokendraw_testing.verify.verifying import Verifying

Array = NDArray[Any]

LAYOUTS: Final = ("flat", "padded", "padded int32", "padded, rows behind")
"""Of the ids: [L - B], or [B, K] with more rows of logits than the requests have."""
_BEHIND: Final = 3
_SURELY_MORE: Final = 1e-4
"""A token belongs to a residual if p is larger than q by this share, and does not if it is smaller by it."""


@dataclass(frozen=True, kw_only=True)
class CrossedCall:
    """A verification of requests of one form, which may be the same several times."""

    form: Form
    requests: list[Request]
    order: list[int]
    """The request in each place of the batch."""
    logprobs_mode: LogprobsMode | None
    layout: str
    """How the ids are laid out, one of :data:`LAYOUTS`."""

    def __str__(self) -> str:
        form = self.form
        given = "" if form.kind == "chosen" else f" in {form.draft_dtype}"
        return (
            f"{form.site}, {form.mode}, {form.kind}{given}, {form.gumbel_dtype} noise, B = {len(self.order)}"
            + f", {self.layout} ids"
        )

    def of_most_drafts(self) -> CrossedCall:
        """Return the same call of one request alone, that with the most drafts."""
        longest = max(self.requests, key=lambda request: len(request.ids))
        return replace(self, requests=[longest], order=[0])

    def verify(self, subject: Verifying) -> VerifyOutput:
        """Make the call."""
        form, batch = self.form, [self.requests[i] for i in self.order]
        ids = [request.ids for request in batch]
        draft = [row for request in batch for row in request.draft]
        given = self._on(subject, draft, form.draft_dtype) if form.kind != "chosen" else None
        flat = drafts_of(subject, ids, form.site.size, form.kind, given)
        target = self._on(subject, [row for request in batch for row in request.target], form.site.dtype)
        metadata = row_metadata(flat, [r.params for r in batch], [r.first for r in batch])
        drafts = flat if self.layout == "flat" else padded(flat, ids, self.layout)
        if self.layout == "padded, rows behind":
            drafts, target, metadata = rows_behind(drafts, target, metadata)
        return subject.verify(
            target,
            drafts,
            metadata,
            form.mode,
            logprobs_mode=self.logprobs_mode,
            gumbel_dtype=form.gumbel_dtype,
        )

    def _on(self, subject: Verifying, rows: list[Array], dtype: str) -> torch.Tensor:
        """Lay rows out on the device, in their own dtype."""
        held = np.stack(rows) if rows else np.zeros((0, self.form.site.size), np.float32)
        return on(subject, held, dtype)

    def draft(self, subject: Verifying) -> SamplerOutput:
        """Draw a draft from the first row of each request that differs."""
        metadata = SamplingMetadata.from_params(
            [request.params for request in self.requests],
            device=subject.device,
            positions=[request.first for request in self.requests],
        )
        rows = self._on(subject, [request.target[0] for request in self.requests], self.form.site.dtype)
        return subject.draft(rows, metadata, gumbel_dtype=self.form.gumbel_dtype)

    def answers(self) -> list[reference_walk.Answer | None]:
        """Walk along the drafts of every request; None for those without a seed, unless they are greedy."""
        form, walks, seeds = self.form, [], []
        known = [r.params.seed is not None or not r.params.temperature > 0 for r in self.requests]
        for request, is_known in zip(self.requests, known, strict=True):
            if is_known:
                walks.append(_walking(form, request))
                seeds.append(request.params.seed or 0)
        found = iter(reference.together(walks, seeds, form.gumbel_dtype) if walks else [])
        return [next(found) if is_known else None for is_known in known]


def _walking(form: Form, request: Request) -> reference.Drawing[reference_walk.Answer]:
    return reference_walk.walking(
        request.rows,
        request.ids,
        request.params,
        range(request.first, request.first + len(request.rows)),
        probs=np.stack(request.draft) if form.kind == "probs" and request.draft else None,
        logits=request.draft_rows if form.kind == "logits" else None,
        coupled=form.mode == "coupled",
    )


def rows_behind(
    drafts: Drafts, target: torch.Tensor, metadata: SamplingMetadata
) -> tuple[Drafts, torch.Tensor, SamplingMetadata]:
    """Put rows of NaN behind those of the last request, as engines leave them in buffers of one size."""

    def longer(rows: torch.Tensor, value: float) -> torch.Tensor:
        return torch.cat((rows, rows.new_full((_BEHIND, *rows.shape[1:]), value)))

    given = {name: getattr(drafts, name) for name in ("draft_probs", "draft_logits")}
    held = {name: longer(rows, float("nan")) for name, rows in given.items() if rows is not None}
    assert metadata.positions is not None
    assert metadata.row_index is not None
    positions, row_index = longer(metadata.positions, 0), longer(metadata.row_index, 0)
    return (
        replace(drafts, **held),  # type: ignore[arg-type]
        longer(target, float("nan")),
        replace(metadata, positions=positions, row_index=row_index),
    )


def padded(flat: Drafts, ids: list[list[int]], layout: str) -> Drafts:
    """Lay the ids out [B, K + 2], padded with -1, in a short dtype if the layout says so."""
    most = max(map(len, ids), default=0) + 2
    short = layout == "padded int32" and all(abs(token) < 2**31 for own in ids for token in own)
    wide = torch.full((len(ids), most), -1, device=flat.device, dtype=torch.int32 if short else torch.int64)
    for i, own in enumerate(ids):
        wide[i, : len(own)] = torch.tensor(own, dtype=wide.dtype)
    return Drafts(
        draft_token_ids=wide,
        cu_num_logits=flat.cu_num_logits.to(torch.int32),
        draft_probs=flat.draft_probs,
        draft_logits=flat.draft_logits,
        max_drafts=most,
        any_placeholder=flat.any_placeholder,
    )


def require_answers(subject: Verifying, trial: Trial, call: CrossedCall) -> int:
    """Make a call, and demand of each request what is known of it; return how many chains the reference named.

    :raises Violation: a chain, ``valid`` or log-probabilities are wrong.
    """
    output, answers, named = call.verify(subject), call.answers(), 0
    found, valid = chains(output), output.valid.tolist()
    for place, i in enumerate(call.order):
        request, answer, tokens = call.requests[i], answers[i], found[place]
        what = f"{call}, request {place}: {request}"
        settled = _is_settled(subject, request, len(tokens))
        if answer is not None and settled:
            trial.require(
                tokens == answer.tokens or answer.lead < reference.NEAR_TIE,
                f"{what} needs {answer.tokens}, found {tokens}",
            )
            named += answer.lead >= reference.NEAR_TIE
        elif settled:
            _require_possible(trial, call.form, request, tokens, what)
        fine = _is_valid(call.form, request, len(tokens))
        trial.require(
            valid[place] == fine or not subject.capabilities.valid_flag,
            f"{what} needs valid {fine}, found {valid[place]}",
        )
    if output.logprobs is not None:
        _require_logprobs(subject, trial, call, output, found)
    _require_drafts(subject, trial, call)
    return named


def _require_drafts(subject: Verifying, trial: Trial, call: CrossedCall) -> None:
    """Demand drafts that are kept, those of the seeds where there are some, and ``valid``."""
    output = call.draft(subject)
    streams = (reference_walk.DRAFT_TOKEN, reference_walk.DRAFT_TILE)
    drawings = [reference.drawing(request.rows[0], request.first, streams) for request in call.requests]
    needed = reference.together(drawings, [r.params.seed or 0 for r in call.requests], call.form.gumbel_dtype)
    given = zip(output.token_ids.tolist(), output.valid.tolist(), needed, strict=True)
    for request, (found, valid, (token, lead)) in zip(call.requests, given, strict=True):
        row, what = request.rows[0], f"{call}: a draft from the first row of {request}"
        is_known = request.params.seed is not None or row.greedy
        if _is_settled(subject, request, 1):
            trial.require(row.kept[found], f"{what} needs a kept token, found {found}")
            is_free = not is_known or lead < reference.NEAR_TIE
            trial.require(is_free or found == token, f"{what} needs {token}, found {found}")
        trial.require(
            valid == row.valid or not subject.capabilities.valid_flag,
            f"{what} needs valid {row.valid}, found {valid}",
        )


def _is_settled(subject: Verifying, request: Request, used: int) -> bool:
    """Whether rounding decides no filter of the used rows, and the sampler none of their ties."""
    rule = subject.capabilities.tie_rule
    if not all(row.certain for row in (*request.rows[:used], *request.draft_rows[:used])):
        return False
    if rule == "value":
        return True
    looked = [*request.target[:used], *request.draft[: used if request.draft_rows else 0]]
    return not any(expect(x, request.params, rule).in_part.any() for x in looked)


def _is_valid(form: Form, request: Request, used: int) -> bool:
    """Whether all rows that ``used`` tokens come from hold no NaN, and something above -inf."""
    fine = all(row.valid for row in request.rows[:used])
    if form.mode == "coupled" or form.kind == "chosen" or not request.params.temperature > 0:
        return fine
    for step, token in enumerate(request.ids[:used]):
        if not 0 <= token < form.site.size:
            continue
        if form.kind == "logits":
            fine = fine and request.draft_rows[step].valid
        else:
            q = request.draft[step]
            fine = fine and bool((q >= 0).all() and 0 < q.max() < np.inf)
    return fine


def _require_possible(trial: Trial, form: Form, request: Request, tokens: list[int], what: str) -> None:
    """Demand tokens that can be, of a request without a seed."""
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
            q = given_probs(request.draft[step])
        else:
            q = reference_walk.distribution(request.draft_rows[step])
        if step < last:
            trial.require(
                q[token] > 0, f"{what} needs drafts that may have been drawn, found {token} accepted"
            )
        elif (p > q * (1 + _SURELY_MORE)).any():
            trial.require(
                p[token] > q[token] * (1 - _SURELY_MORE),
                f"{what} needs a token from max(p - q, 0), found {token} with p = {p[token]:.3g}, q = {q[token]:.3g}",
            )


def _require_logprobs(
    subject: Verifying, trial: Trial, call: CrossedCall, output: VerifyOutput, found: list[list[int]]
) -> None:
    """Demand values, the N best and ranks of every token from a row without poison, and padding behind."""
    assert output.logprobs is not None
    assert output.log_kept_mass is not None
    masses = output.log_kept_mass.cpu().numpy()
    mode = call.logprobs_mode or subject.need().logprobs_mode
    ids, values = (getattr(output.logprobs, name).cpu().numpy() for name in ("token_ids", "logprobs"))
    ranks = None if output.logprobs.ranks is None else output.logprobs.ranks.cpu().numpy()
    seen = set[int]()
    for place, i in enumerate(call.order):
        request, tokens = call.requests[i], found[place]
        if request.params.logprobs is None or i in seen:
            continue
        seen.add(i)
        wanted = request.params.logprobs
        n = call.form.site.size if wanted == -1 else min(wanted, call.form.site.size)
        what = f"{call}, {mode}, N = {wanted}, request {place}: {request}"
        trial.require(
            (masses[place, len(tokens) :] == PAD_LOGPROB).all(),
            f"{what} needs log_kept_mass -inf behind its {len(tokens)} tokens, found {masses[place].tolist()}",
        )
        for step, token in enumerate(tokens):
            row = request.rows[step]
            own, told = ids[place, step], values[place, step]
            trial.require(own[0] == token, f"{what} needs the emitted token {token} first, found {own[0]}")
            trial.require(
                (own[1 + n :] == PAD_TOKEN_ID).all() and (told[1 + n :] == PAD_LOGPROB).all(),
                f"{what} needs padding behind its {n} best, found {own[1 + n :][:3].tolist()}",
            )
            if not row.valid or not row.x.max() < np.inf or not _is_settled(subject, request, step + 1):
                continue
            require_values(trial, what, own[: 1 + n], told[: 1 + n], reference.values(row, token, mode))
            mass = reference.log_kept_mass(row)
            trial.require(
                abs(masses[place, step] - mass) <= TOLERANCE,
                f"{what} needs log_kept_mass {mass:.6f} of token {token}, found {masses[place, step]:.6f}",
            )
            if mode.startswith("raw") and n:
                best = largest(row.x, n)
                apart = np.flatnonzero(own[1 : 1 + n] != best)[:1]
                trial.require(
                    not len(apart), f"{what} needs {best[apart]} in place {apart + 1}, found {own[1 + apart]}"
                )
            rank = int((row.x >= row.x[token]).sum())
            trial.require(
                ranks is None or ranks[place, step] == rank,
                f"{what} needs rank {rank} of token {token}, found {None if ranks is None else ranks[place, step]}",
            )


def largest(x: Array, n: int) -> Array:
    """Return the ids of the N largest of [V], in descending order, the lowest first on a tie."""
    least = np.partition(x, len(x) - n)[len(x) - n]
    ids = np.flatnonzero(x >= least)
    return ids[np.lexsort((ids, -x[ids]))][:n]
