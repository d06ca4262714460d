"""Verifications, before any statistics: possible chains, for any batch, drafts and values."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.plugin import INPUT_DTYPES, PAD_LOGPROB, DraftKind, VerifyMode
from tokendraw.tools import all_of
from tokendraw_testing.kit.inputs import require_unmodified
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.refusals import require_refusal
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.expectation import expect
from tokendraw_testing.rows.logprobs import TOLERANCE, expected_values, require_values
from tokendraw_testing.rows.requests import describe, has_logprobs
from tokendraw_testing.verify.draft_batch import DraftBatch, chains, require_same
from tokendraw_testing.verify.subject import VerifySubject, draft_refusal

properties = Properties("verify")
Array = NDArray[Any]

_VOCAB_SIZE: Final = 1100  # two tiles, the last of them not full
_WIDE_SIZE: Final = 65_543
SURE_LOGIT: Final = 60.0
"""A logit beside zeros that leaves nothing for anything else."""


@properties.required("verify output")
def output(subject: VerifySubject, trial: Trial) -> str:
    """Accepted drafts, one token more, then -1: [B, K + 1] int64, whatever the batch; and tokens that are kept."""
    capabilities = subject.capabilities
    all_ways = subject.ways
    trial.require(all_ways, "'verify' needs a mode and a kind of drafts, found none advertised")
    looks = subject.share_requests((1, 31, 1025, 2600), 24)
    for dtype, size, count in looks:
        batch = DraftBatch.of(subject, trial.generator(f"{size} {dtype}"), count, size, dtype=dtype)
        possible = [
            [expect(x, params, capabilities.tie_rule).possible for x in rows]
            for rows, params in zip(batch.target, batch.params, strict=True)
        ]
        for mode, kind in all_ways:
            results = chains(batch.verify(subject, mode, kind))
            for tokens, rows, params in zip(results, possible, batch.params, strict=True):
                for token, kept in zip(tokens, rows, strict=False):
                    trial.require(
                        kept[token],
                        f"V = {size}, {dtype}, {mode}, {kind}: {describe(params)} needs one of {kept.sum()} kept "
                        f"tokens, found {token}",
                    )
    for mode, kind in all_ways:
        for counts in ([], [0], [0, 0, 0]) if capabilities.ragged_drafts else ([], [2]):
            for dtype in capabilities.dtypes:
                require_sure_chains(subject, trial, mode, kind, counts, dtype=dtype)
    return f"{len(all_ways)} ways, {len(looks)} dtypes and vocabularies, no drafts, no requests"


def require_sure_chains(
    subject: VerifySubject,
    trial: Trial,
    mode: VerifyMode,
    kind: DraftKind,
    counts: list[int],
    reject_step: int | None = None,
    *,
    dtype: str,
) -> None:
    """Demand that a target sure of all drafts accepts them, up to draft ``reject_step`` of the last request."""
    size = 300
    rng = trial.generator(f"{counts} {reject_step}")
    sure_tokens = rng.integers(0, size, sum(counts) + len(counts))
    target = np.zeros((len(sure_tokens), size), np.float32)
    target[np.arange(len(sure_tokens)), sure_tokens] = SURE_LOGIT
    start = np.cumsum([0, *(n + 1 for n in counts)])
    sure_ids = [sure_tokens[s : s + n].tolist() for s, n in zip(start, counts, strict=False)]
    ids = [list(tokens) for tokens in sure_ids]
    accepted = list(counts)
    if reject_step is not None:
        ids[-1][reject_step], accepted[-1] = -1, reject_step
    rows = [s + step for s, n in zip(start, counts, strict=False) for step in range(n)]
    draft_logits = target[rows] if kind == "logits" else (target[rows] > 0).astype(np.float32)
    draft_rows = subject.upload_draft(draft_logits, dtype, kind)
    logits, first = subject.upload(target, dtype), [7] * len(counts)
    output = subject.verify_ids(logits, ids, (mode, kind), draft_rows, first=first)
    trial.require(
        output.num_accepted.tolist() == accepted,
        f"{mode}, {kind}: drafts that the target is sure of need to be accepted, {accepted} of {counts}, found "
        f"{output.num_accepted.tolist()}",
    )
    last = [int(sure_tokens[s + n]) for s, n in zip(start, accepted, strict=False)]
    trial.require(
        [tokens[-1] for tokens in chains(output)] == last,
        f"{mode}, {kind}: after sure drafts the tokens {last} need to follow, found others",
    )


@properties.required("verify inputs unmodified")
def inputs_unmodified(subject: VerifySubject, trial: Trial) -> str:
    """Logits, drafts and the tensors of the request keep every bit."""
    for dtype, size, count in subject.share_requests([_VOCAB_SIZE], 24):
        batch = DraftBatch.of(subject, trial.generator(f"rows {dtype}"), count, size, dtype=dtype)
        for mode, kind in subject.ways:
            logits, drafts = batch.logits(subject), batch.drafts(subject, kind)
            metadata = batch.metadata(drafts)
            with require_unmodified(trial, target_logits=logits, drafts=drafts, metadata=metadata):
                subject.verify(logits, drafts, metadata, mode)
    return f"{len(subject.ways)} ways"


@properties.required("verify strides")
def strides(subject: VerifySubject, trial: Trial) -> str:
    """Rows of a wider buffer, with +inf and NaN behind each, give the chains of contiguous ones."""
    counter = subject.capabilities.seeding == "counter"
    sizes = [_VOCAB_SIZE] if subject.effort.mixed else [_VOCAB_SIZE, _WIDE_SIZE]
    for dtype, size, count in subject.share_requests(sizes, 24):
        num_requests = count if size == _VOCAB_SIZE else 2
        rng = trial.generator(f"rows {size} {dtype}")
        batch = DraftBatch.of(subject, rng, num_requests, size, dtype=dtype)
        _require_same_strided(subject, trial, batch, counter=counter)
    return "+inf and NaN behind every row of target and drafts"


def _require_same_strided(subject: VerifySubject, trial: Trial, batch: DraftBatch, *, counter: bool) -> None:
    for mode, kind in subject.ways if batch.size == _VOCAB_SIZE else subject.outer_ways:
        drafts = batch.drafts(subject, kind)
        metadata = batch.metadata(drafts)
        logits = batch.logits(subject)
        probs, drawn_from = drafts.draft_probs, drafts.draft_logits
        strided_drafts = replace(
            drafts,
            draft_probs=None if probs is None else _into_wider_buffer(probs),
            draft_logits=None if drawn_from is None else _into_wider_buffer(drawn_from),
        )
        expected = subject.verify(logits, drafts, metadata, mode)
        strided_output = subject.verify(_into_wider_buffer(logits), strided_drafts, metadata, mode)
        trial.require(
            strided_output.valid.all(),
            f"{mode}, {kind}: what lies behind a row needs to be left alone, found read",
        )
        if counter:
            require_same(
                trial,
                chains(expected),
                chains(strided_output),
                f"{batch.dtype}, {mode}, {kind}: rows of a wider buffer",
            )


def _into_wider_buffer(rows: torch.Tensor) -> torch.Tensor:
    buffer = torch.full((len(rows), rows.shape[1] + 37), float("nan"), dtype=rows.dtype, device=rows.device)
    buffer[:, 1::2] = float("inf")
    buffer[:, 5 : 5 + rows.shape[1]] = rows
    return buffer[:, 5 : 5 + rows.shape[1]]


@properties.required("verify dtypes")
def dtypes(subject: VerifySubject, trial: Trial) -> str:
    """Logits of every dtype that is advertised are the float32 values that they are; others are refused."""
    capabilities = subject.capabilities
    batch = DraftBatch.of(subject, trial.generator("rows"), subject.effort.rows(24, least=3), _VOCAB_SIZE)
    for name in capabilities.dtypes:
        dtype = getattr(torch, name)
        for mode, kind in subject.ways:
            logits, drafts = batch.logits(subject).to(dtype), batch.drafts(subject, kind)
            if drafts.draft_logits is not None:
                drafts = replace(drafts, draft_logits=drafts.draft_logits.to(dtype))
            metadata = batch.metadata(drafts)
            results = chains(subject.verify(logits, drafts, metadata, mode))
            if capabilities.seeding == "counter" and "float32" in capabilities.dtypes:
                float32_drafts = drafts
                if drafts.draft_logits is not None:
                    float32_drafts = replace(drafts, draft_logits=drafts.draft_logits.float())
                expected = chains(subject.verify(logits.float(), float32_drafts, metadata, mode))
                require_same(
                    trial, expected, results, f"{name}, {mode}, {kind}: rows and their float32 values"
                )
    for name in INPUT_DTYPES:
        if name not in capabilities.dtypes:
            require_refusal(subject, Refusal({"dtype": name}))
    return all_of(capabilities.dtypes)


@properties.advertised("verify logprobs", has_logprobs, draft_refusal(params=SamplingParams(logprobs=1)))
def logprobs(subject: VerifySubject, trial: Trial) -> str:
    """Values, ranks, N best and kept mass of every emitted token agree with float64 to 1e-5; then there is padding."""
    capabilities, size, num_best = subject.capabilities, 700, 3
    num_tokens = 0
    batches = []
    for dtype, _, count in subject.share_requests([size], 24):
        batch = DraftBatch.of(subject, trial.generator(f"rows {dtype}"), count, size, dtype=dtype)
        batches.append(replace(batch, params=[replace(p, logprobs=num_best) for p in batch.params]))
    for batch, logprobs_mode in itertools.product(batches, capabilities.logprobs_modes):
        for mode, kind in subject.outer_ways:
            output = batch.verify(subject, mode, kind, logprobs_mode=logprobs_mode)
            assert output.logprobs is not None
            assert output.log_kept_mass is not None
            ids, values, ranks = (
                getattr(output.logprobs, name).cpu().numpy() for name in ("token_ids", "logprobs", "ranks")
            )
            masses = output.log_kept_mass.cpu().numpy()
            for i, tokens in enumerate(chains(output)):
                end = len(tokens)
                is_padded = (
                    (ids[i, end:] == -1).all()
                    and (values[i, end:] == -np.inf).all()
                    and not ranks[i, end:].any()
                    and (masses[i, end:] == PAD_LOGPROB).all()
                )
                trial.require(
                    is_padded, f"{mode}, {kind}: logprobs need padding behind the last token, found none"
                )
                trial.require(
                    ids[i, :end, 0].tolist() == tokens,
                    "the emitted token needs to come first in its logprobs",
                )
                for step, (x, token) in enumerate(zip(batch.target[i], tokens, strict=False)):
                    expected = expected_values(
                        x, batch.params[i], token, logprobs_mode, capabilities.tie_rule
                    )
                    if expected is None:
                        continue
                    num_tokens += 1
                    mass = expect(x, batch.params[i], capabilities.tie_rule).log_share
                    trial.require(
                        abs(masses[i, step] - mass) <= TOLERANCE,
                        f"{batch.dtype}, {mode}, {kind}: {describe(batch.params[i])} needs log_kept_mass {mass:.6f}, "
                        f"found {masses[i, step]:.6f}",
                    )
                    require_values(
                        trial, f"{batch.dtype}, {mode}, {kind}", ids[i, step], values[i, step], expected
                    )
                    rank = int((np.nan_to_num(x, nan=-np.inf) >= x[token]).sum())
                    trial.require(
                        ranks[i, step] == rank, f"token {token} needs rank {rank}, found {ranks[i, step]}"
                    )
    return f"{num_tokens} tokens in {len(capabilities.logprobs_modes)} modes"
