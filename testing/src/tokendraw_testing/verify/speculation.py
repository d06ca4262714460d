"""Decodes many short sequences speculatively, and compares their tokens with the target's distribution.

A trial is a request. Its drafts are drawn by the subject's own ``draft``, at the very seeds and positions that verify
them where it serves seeds. Where a verification ends before the last place that is looked at, the sequence goes on with
further ones, as an engine's would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import Drafts, SamplingMetadata, SamplingParams, speculative
from tokendraw.plugin import DraftKind, VerifyMode
from tokendraw_testing.kit.statistical_tests import fit, share
from tokendraw_testing.kit.trial import Trial, Verdict
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.expectation import expect
from tokendraw_testing.rows.subjects import equal_rows
from tokendraw_testing.verify.draft_batch import round_to_dtype
from tokendraw_testing.verify.subject import VerifySubject

Array = NDArray[Any]

_PLAIN_PARAMS = SamplingParams()
_MOST_ROWS = 1 << 15
_PAIRS_SIZE = 64
"""Number of tokens of which all pairs are looked at."""


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Distributions of sequences and drafts."""

    target: Array
    """Logits [V], or [V + 1, V]: a row for each token before, and one for a first token."""
    draft: Array
    """Logits of the draft model, as many as ``target``."""
    drafts: int = 2
    """K; the first K + 1 tokens are looked at."""
    kind: DraftKind
    mode: VerifyMode
    params: SamplingParams = _PLAIN_PARAMS
    placeholders: tuple[int, ...] = ()
    """Places without a draft, where the target's next row continues from token 0."""
    dtype: str | None = None
    """Dtype of the logits by its torch name; None: the first advertised dtype."""

    def probabilities(self, subject: VerifySubject) -> tuple[Array, Array]:
        """Return p and q of the draws, float64: [V + 1, V], or [1, V] for equal rows."""
        rule = subject.capabilities.tie_rule
        logits_pair = [self.rows(subject, logits) for logits in (self.target, self.draft)]
        rows = [[expect(x, self.params, rule) for x in logits] for logits in logits_pair]
        assert all(row.certain for rows_of_model in rows for row in rows_of_model), (
            "the kit chose a row that rounding decides"
        )
        p, q = (np.stack([row.probabilities for row in rows_of_model]) for rows_of_model in rows)
        return p, q

    def rows(self, subject: VerifySubject, logits: Array) -> Array:
        """Round the rows of target or draft to the dtype of the logits: [V + 1, V] or [1, V] float32."""
        return round_to_dtype(np.atleast_2d(logits), self.own_dtype(subject))

    def own_dtype(self, subject: VerifySubject) -> str:
        """Return the dtype of the logits."""
        return self.dtype or subject.capabilities.dtypes[0]


def judge(
    subject: VerifySubject, trial: Trial, label: str, case: Decoding, draws: int, *, seeded: bool
) -> None:
    """Compare every token, the first two together, and the number of accepted drafts with the target."""
    p, q = case.probabilities(subject)
    size, sequences_by_count = p.shape[1], dict[int, tuple[Array, Array]]()

    def judge_part(what: str, verdict: Callable[[Array, Array], Verdict]) -> None:
        def experiment(rng: Generator, count: int) -> Verdict:
            if count not in sequences_by_count:  # one set of sequences serves every way of looking at it
                sequences_by_count[count] = decode(subject, case, q, count, rng, seeded=seeded)
            return verdict(*sequences_by_count[count])

        trial.judge(f"{label}{', seeded' * seeded}, {what}", experiment, draws)

    def token(step: int, probabilities: Array) -> None:
        judge_part(f"token {step + 1}", lambda tokens, _: fit(tokens[:, step], probabilities))

    def pairs(tokens: Array, _: Array) -> Verdict:
        probabilities = p[-1][:, None] * (p[:-1] if len(p) > 1 else p)
        verdict = fit(tokens[:, 0] * size + tokens[:, 1], probabilities.ravel())
        return replace(verdict, worst=f"of the pairs by number, {verdict.worst}")

    marginal = p[-1]
    for step in range(case.drafts + 1):
        token(step, marginal)
        marginal = marginal @ p[:-1] if len(p) > 1 else marginal
    if size <= _PAIRS_SIZE:
        judge_part("tokens 1 and 2 together", pairs)
    _judge_acceptance(case, p, q, judge_part)


def _judge_acceptance(case: Decoding, p: Array, q: Array, judge_part: Callable[..., None]) -> None:
    """Judge the acceptance rate of the first draft, and of every later draft if all rows are equal."""
    acceptance = np.minimum(p, q) if case.kind != "chosen" and case.mode != "coupled" else p * q
    rate = 0.0 if 0 in case.placeholders else min(1.0, float(acceptance[-1].sum()))

    def first(_: Array, accepted: Array) -> Verdict:
        verdict = share(int((accepted > 0).sum()), len(accepted), rate, "first drafts")
        return replace(verdict, worst=verdict.worst.replace(" drawn ", " accepted "))

    judge_part("first draft accepted", first)
    if case.drafts > 1 and len(p) == 1 and not case.placeholders:
        at_least = rate ** np.arange(case.drafts + 2)
        if case.mode == "block":
            at_least = _at_least_in_block(p[-1], q[-1], case.drafts, is_known=case.kind != "chosen")
        counts = np.append(at_least[:-2] - at_least[1:-1], at_least[-2])

        def in_a_row(_: Array, accepted: Array) -> Verdict:
            verdict = fit(accepted, counts)
            return replace(verdict, worst=f"of the numbers of accepted drafts, {verdict.worst}")

        judge_part("drafts accepted in a row", in_a_row)


def _at_least_in_block(p: Array, q: Array, drafts: int, *, is_known: bool) -> Array:
    """Return the probabilities that at least 0, 1 ... drafts are accepted, [K + 2]: the mean of ``r_i`` over drafts.

    :param p: [V], the target of every token, and ``q`` what every draft is drawn by.
    :param is_known: whether the verification knows q.
    """
    share, weight, at_least = np.ones(1), np.ones(1), [1.0]
    ratio = np.divide(p, q, out=np.zeros_like(p), where=q > 0) if is_known else p
    for _ in range(drafts):
        share = np.minimum(np.outer(share, ratio).ravel(), 1.0)
        weight = np.outer(weight, q).ravel()
        at_least.append(float((share * weight).sum()))
    return np.array([*at_least, 0.0])


def decode(
    subject: VerifySubject, case: Decoding, q: Array, trials: int, rng: Generator, *, seeded: bool
) -> tuple[Array, Array]:
    """Draw tokens [trials, K + 1], and count the drafts [trials] accepted by the first verification of each.

    :param q: [V + 1, V] or [1, V]: what the drafts are drawn by, where the verification is told so.
    """
    seed_torch(rng)
    dtype = case.own_dtype(subject)
    target, draft = (subject.upload(case.rows(subject, x), dtype) for x in (case.target, case.draft))
    probs = torch.from_numpy(q.astype(np.float32)).to(subject.device)
    size = target.shape[1]
    rows = min(_MOST_ROWS, subject.effort.elements // size) // (case.drafts + 1)
    parts = []
    for start in range(0, trials, max(1, rows)):
        count = min(max(1, rows), trials - start)
        seeds = torch.from_numpy(rng.integers(0, 2**64, count, np.uint64).view(np.int64)).to(subject.device)
        first = torch.from_numpy(rng.integers(0, 2**40, count)).to(subject.device)
        parts.append(_decode(subject, case, (target, draft, probs), seeds if seeded else None, first))
    tokens, accepted = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
    return tokens, accepted


def _decode(
    subject: VerifySubject,
    case: Decoding,
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    seeds: torch.Tensor | None,
    first: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    width, size = case.drafts + 1, rows[0].shape[1]
    steps = torch.arange(1, width + 1, device=first.device)
    # Column 0 holds the row of a first token; what is written behind the first K + 1 tokens is not looked at.
    tokens = torch.full((len(first), 1 + 2 * width), size, device=first.device)
    done = torch.zeros_like(first)
    accepted: torch.Tensor | None = None
    while len(live_requests := (done < width).nonzero().squeeze(1)):
        live_seeds = None if seeds is None else seeds[live_requests]
        before = tokens[live_requests, done[live_requests]]
        drafts, contexts = _draw_drafts(
            subject, case, rows, live_seeds, first[live_requests] + done[live_requests], before
        )
        count = len(drafts.draft_token_ids) + len(live_requests)
        metadata = _metadata(
            case,
            len(live_requests),
            live_seeds,
            speculative.row_positions(
                drafts.cu_num_logits, first[live_requests] + done[live_requests], count
            ),
            speculative.row_index(drafts.cu_num_logits, count),
        )
        output = subject.verify(_rows_after(rows[0], contexts), drafts, metadata, case.mode)
        tokens[live_requests.unsqueeze(1), done[live_requests].unsqueeze(1) + steps] = output.token_ids
        done[live_requests] += output.num_accepted + 1
        accepted = output.num_accepted if accepted is None else accepted
    assert accepted is not None
    return tokens[:, 1 : width + 1], accepted


def _draw_drafts(
    subject: VerifySubject,
    case: Decoding,
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    seeds: torch.Tensor | None,
    first: torch.Tensor,
    before: torch.Tensor,
) -> tuple[Drafts, torch.Tensor]:
    """Draw K drafts for each request; return them and the token before each row of the target [L]."""
    _, draft, probs = rows
    contexts, ids = [before], []
    # A block looks at drafts that it does not accept: the next ones at their positions need other noise.
    seeds = None if case.mode == "block" else seeds
    for step in range(case.drafts):
        metadata = _metadata(case, len(first), seeds, first + step)
        x = subject.draft(_rows_after(draft, contexts[-1]), metadata).token_ids
        is_drawn = step not in case.placeholders
        ids.append(x if is_drawn else torch.full_like(x, -1))
        contexts.append(x if is_drawn else torch.zeros_like(x))
    at = torch.stack(contexts[:-1], 1).flatten() if ids else before[:0]
    drafts = Drafts.from_counts(
        torch.stack(ids, 1).flatten() if ids else before[:0],
        [case.drafts] * len(first),
        draft_probs=_rows_after(probs, at) if case.kind == "probs" else None,
        draft_logits=_rows_after(draft, at) if case.kind == "logits" else None,
        any_placeholder=bool(case.placeholders),
    )
    return drafts, torch.stack(contexts, 1).flatten()


def _rows_after(rows: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Return the row after each token, or the only row."""
    return rows[before.clamp(max=len(rows) - 1)]


def _metadata(
    case: Decoding,
    slots: int,
    seeds: torch.Tensor | None,
    positions: torch.Tensor,
    row_index: torch.Tensor | None = None,
) -> SamplingMetadata:
    row = equal_rows(case.params, slots, positions.device)
    facts = row.facts if seeds is None else replace(row.facts, any_seeded=True, all_seeded=True)
    return replace(row, seed=seeds, positions=positions, row_index=row_index, facts=facts)
