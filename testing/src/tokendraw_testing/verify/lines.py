"""Verifications, before any statistics: sure drafts in batches of any shape, unmodified inputs, any stride."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from tokendraw import SamplingParams
from tokendraw.plugin import INPUT_DTYPES, DraftKind, VerifyCapabilities, VerifyMode
from tokendraw_testing.kit.inputs import require_unmodified
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.refusals import offers, require_unadvertised
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.requests import has_counter, has_logprobs
from tokendraw_testing.verify.draft_batch import OUTSIDE_ID, DraftBatch, chains, require_same
from tokendraw_testing.verify.subject import VerifySubject, draft_refusal

properties = Properties("verify")

_VOCAB_SIZE: Final = 1100  # two tiles, the last of them not full
_WIDE_SIZE: Final = 65_543
SURE_LOGIT: Final = 60.0
"""A logit beside zeros that leaves nothing for anything else."""
_SURE_SIZE: Final = 300
_PLACEHOLDERS: Final = (-1, _SURE_SIZE, OUTSIDE_ID, -(2**63))
FILTERS: Final = {
    "top_k": SamplingParams(top_k=3),
    "top_p": SamplingParams(top_p=0.75),
    "min_p": SamplingParams(min_p=0.3),
}


_KINDS: Final[tuple[DraftKind, ...]] = ("probs", "logits", "chosen")
_REFUSALS: Final[tuple[tuple[Callable[[VerifyCapabilities], bool], Refusal], ...]] = (
    *((offers("dtypes", name), Refusal({"dtype": name})) for name in INPUT_DTYPES),
    *(
        (offers("filters", (name, "per_row")), draft_refusal(params=params))
        for name, params in FILTERS.items()
    ),
    *((offers("draft_kinds", kind), draft_refusal(kind=kind)) for kind in _KINDS),
    (lambda c: c.greedy, draft_refusal(params=SamplingParams(temperature=0.0))),
    (has_counter, draft_refusal(params=SamplingParams(seed=1))),
    (offers("gumbel_dtypes", "fp64"), Refusal({"gumbel_dtype": "fp64"})),
    (has_logprobs, draft_refusal(params=SamplingParams(logprobs=1))),
    (lambda c: c.ragged_drafts, draft_refusal(ragged=True)),
    (lambda c: c.placeholder_drafts, draft_refusal(placeholder=True)),
)
"""Capabilities, each with a request that has to be refused without it."""


@properties.required("verify output")
def output(subject: VerifySubject, trial: Trial) -> str:
    """Sure drafts up to a placeholder are accepted, in batches of any shape; unadvertised requests are refused."""
    capabilities, most = subject.capabilities, subject.effort.rows(128)
    trial.require(subject.ways, "'verify' needs a mode and a kind of drafts, found none advertised")
    shapes: tuple[list[int], ...] = ([], [2])
    large_shapes: tuple[list[int], ...] = ([4, 4],)
    if capabilities.ragged_drafts:
        shapes, large_shapes = ([], [0], [0, 0, 0]), ([2, 0, 9], [3, 0, 1, most], [0, most, 3, 1])
    for (mode, kind), large_dtype in zip(subject.ways, subject.cycle_dtypes(), strict=False):
        for counts, dtype in itertools.product(shapes, capabilities.dtypes):
            _require_sure_chains(subject, trial, mode, kind, counts, dtype=dtype)
        for counts in large_shapes:
            _require_sure_chains(subject, trial, mode, kind, counts, dtype=large_dtype)
        for placeholder in _PLACEHOLDERS if capabilities.placeholder_drafts else ():
            _require_sure_chains(subject, trial, mode, kind, large_shapes[0], placeholder, dtype=large_dtype)
    return f"{len(shapes + large_shapes)} shapes of batches" + require_unadvertised(subject, _REFUSALS)


def _require_sure_chains(
    subject: VerifySubject,
    trial: Trial,
    mode: VerifyMode,
    kind: DraftKind,
    counts: list[int],
    placeholder: int | None = None,
    *,
    dtype: str,
) -> None:
    """Demand that a target sure of all drafts accepts them, in the last request up to a placeholder beside NaN."""
    size, rng = _SURE_SIZE, trial.generator(f"{counts} {placeholder}")
    sure_tokens = rng.integers(0, size, sum(counts) + len(counts))
    target = np.zeros((len(sure_tokens), size), np.float32)
    target[np.arange(len(sure_tokens)), sure_tokens] = SURE_LOGIT
    start = np.cumsum([0, *(n + 1 for n in counts)])
    sure_ids = [sure_tokens[s : s + n].tolist() for s, n in zip(start, counts, strict=False)]
    ids = [list(tokens) for tokens in sure_ids]
    accepted = list(counts)
    if placeholder is not None:
        accepted[-1] = counts[-1] // 2
        ids[-1][accepted[-1]] = placeholder
    rows = [s + step for s, n in zip(start, counts, strict=False) for step in range(n)]
    draft_logits = target[rows] if kind == "logits" else (target[rows] > 0).astype(np.float32)
    if placeholder is not None:
        draft_logits[sum(counts[:-1]) + accepted[-1]] = np.nan
    draft_rows = subject.upload_draft(draft_logits, dtype, kind)
    logits, first = subject.upload(target, dtype), [7] * len(counts)
    output = subject.verify_ids(logits, ids, (mode, kind), draft_rows, first=first)
    trial.require(
        output.num_accepted.tolist() == accepted,
        f"{mode}, {kind}: drafts that the target is sure of need to be accepted, {accepted} of {counts}, found "
        f"{output.num_accepted.tolist()}",
    )
    trial.require(
        output.valid.all(),
        f"{mode}, {kind}: the draft's row of a placeholder needs to be left alone, found it read",
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
