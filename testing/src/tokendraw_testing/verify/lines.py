"""Verifications, before any statistics: chains that can be, whatever the batch, the drafts and the values in them."""

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
from tokendraw_testing.kit.inputs import unmodified
from tokendraw_testing.kit.property import Ask, Properties
from tokendraw_testing.kit.refusals import refused
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.bounds import leading_rows, narrow_requests
from tokendraw_testing.rows.expected import expect
from tokendraw_testing.rows.logprobs import TOLERANCE, expected_values, require_values
from tokendraw_testing.rows.requests import described, has_logprobs
from tokendraw_testing.verify.drafting import (
    Batch,
    chains,
    drafts_of,
    first_and_last_way,
    on,
    require_same,
    rounded,
    row_metadata,
    spread,
    ways,
)
from tokendraw_testing.verify.verifying import Verifying, draft_ask

properties = Properties("verify")
Array = NDArray[Any]

_SIZE: Final = 1100  # two tiles, the last of them not full
_WIDE: Final = 65_543
SURE: Final = 60.0
"""A logit beside zeros that leaves nothing for anything else."""


@properties.required("verify output")
def output(subject: Verifying, trial: Trial) -> str:
    """Accepted drafts, one token more, then -1: [B, K + 1] int64, whatever the batch; and tokens that are kept."""
    offered = subject.capabilities
    some = ways(offered)
    trial.require(some, "'verify' needs a mode and a kind of drafts, found none advertised")
    looks = spread(subject, (1, 31, 1025, 2600), 24)
    for dtype, size, count in looks:
        batch = Batch.of(subject, trial.generator(f"{size} {dtype}"), count, size, dtype=dtype)
        possible = [
            [expect(x, params, offered.tie_rule).possible for x in rows]
            for rows, params in zip(batch.target, batch.params, strict=True)
        ]
        for mode, kind in some:
            found = chains(batch.verify(subject, mode, kind))
            for tokens, rows, params in zip(found, possible, batch.params, strict=True):
                for token, kept in zip(tokens, rows, strict=False):
                    trial.require(
                        kept[token],
                        f"V = {size}, {dtype}, {mode}, {kind}: {described(params)} needs one of {kept.sum()} kept "
                        f"tokens, found {token}",
                    )
    for mode, kind in some:
        for counts in ([], [0], [0, 0, 0]) if offered.ragged_drafts else ([], [2]):
            for dtype in offered.dtypes:
                require_sure_chains(subject, trial, mode, kind, counts, dtype=dtype)
    return f"{len(some)} ways, {len(looks)} dtypes and vocabularies, no drafts, no requests"


def require_sure_chains(
    subject: Verifying,
    trial: Trial,
    mode: VerifyMode,
    kind: DraftKind,
    counts: list[int],
    wrong: int | None = None,
    *,
    dtype: str,
) -> None:
    """Make requests whose target is sure of the drafts: all are accepted up to draft ``wrong`` of the last request."""
    size = 300
    rng = trial.generator(f"{counts} {wrong}")
    sure = rng.integers(0, size, sum(counts) + len(counts))
    target = np.zeros((len(sure), size), np.float32)
    target[np.arange(len(sure)), sure] = SURE
    start = np.cumsum([0, *(n + 1 for n in counts)])
    own = [sure[s : s + n].tolist() for s, n in zip(start, counts, strict=False)]
    ids = [list(tokens) for tokens in own]
    accepted = list(counts)
    if wrong is not None:
        ids[-1][wrong], accepted[-1] = -1, wrong
    rows = [s + step for s, n in zip(start, counts, strict=False) for step in range(n)]
    given = target[rows] if kind == "logits" else (target[rows] > 0).astype(np.float32)
    held = on(subject, given, dtype if kind == "logits" else "float32")
    drafts = drafts_of(subject, ids, size, kind, held)
    metadata = row_metadata(drafts, [SamplingParams()] * len(counts), [7] * len(counts))
    found = subject.verify(on(subject, target, dtype), drafts, metadata, mode)
    trial.require(
        found.num_accepted.tolist() == accepted,
        f"{mode}, {kind}: drafts that the target is sure of need to be accepted, {accepted} of {counts}, found "
        f"{found.num_accepted.tolist()}",
    )
    last = [int(sure[s + n]) for s, n in zip(start, accepted, strict=False)]
    trial.require(
        [tokens[-1] for tokens in chains(found)] == last,
        f"{mode}, {kind}: after sure drafts the tokens {last} need to follow, found others",
    )


@properties.required("verify inputs unmodified")
def inputs_unmodified(subject: Verifying, trial: Trial) -> str:
    """Logits, drafts and the tensors of the request keep every bit."""
    for dtype, size, count in spread(subject, [_SIZE], 24):
        batch = Batch.of(subject, trial.generator(f"rows {dtype}"), count, size, dtype=dtype)
        for mode, kind in ways(subject.capabilities):
            logits, drafts = batch.logits(subject), batch.drafts(subject, kind)
            metadata = batch.metadata(drafts)
            with unmodified(trial, target_logits=logits, drafts=drafts, metadata=metadata):
                subject.verify(logits, drafts, metadata, mode)
    return f"{len(ways(subject.capabilities))} ways"


@properties.required("verify strides")
def strides(subject: Verifying, trial: Trial) -> str:
    """Rows of a wider buffer, with +inf and NaN behind each, give the chains of contiguous ones."""
    counter = subject.capabilities.seeding == "counter"
    for dtype, size, count in spread(subject, [_SIZE, *[_WIDE] * (not subject.effort.mixed)], 24):
        few = count if size == _SIZE else 2
        batch = Batch.of(subject, trial.generator(f"rows {size} {dtype}"), few, size, dtype=dtype)
        _require_stride_is_free(subject, trial, batch, counter=counter)
    return "+inf and NaN behind every row of target and drafts"


def _require_stride_is_free(subject: Verifying, trial: Trial, batch: Batch, *, counter: bool) -> None:
    some = ways if batch.size == _SIZE else first_and_last_way
    for mode, kind in some(subject.capabilities):
        drafts = batch.drafts(subject, kind)
        metadata = batch.metadata(drafts)
        logits = batch.logits(subject)
        probs, drawn_from = drafts.draft_probs, drafts.draft_logits
        wide = replace(
            drafts,
            draft_probs=None if probs is None else _in_a_wider_buffer(probs),
            draft_logits=None if drawn_from is None else _in_a_wider_buffer(drawn_from),
        )
        plain = subject.verify(logits, drafts, metadata, mode)
        found = subject.verify(_in_a_wider_buffer(logits), wide, metadata, mode)
        trial.require(
            found.valid.all(), f"{mode}, {kind}: what lies behind a row needs to be left alone, found read"
        )
        if counter:
            require_same(
                trial, chains(plain), chains(found), f"{batch.dtype}, {mode}, {kind}: rows of a wider buffer"
            )


def _in_a_wider_buffer(rows: torch.Tensor) -> torch.Tensor:
    wide = torch.full((len(rows), rows.shape[1] + 37), float("nan"), dtype=rows.dtype, device=rows.device)
    wide[:, 1::2] = float("inf")
    wide[:, 5 : 5 + rows.shape[1]] = rows
    return wide[:, 5 : 5 + rows.shape[1]]


@properties.required("verify dtypes")
def dtypes(subject: Verifying, trial: Trial) -> str:
    """Logits of every dtype that is advertised are the float32 values that they are; others are refused."""
    offered = subject.capabilities
    batch = Batch.of(subject, trial.generator("rows"), subject.effort.rows(24, least=3), _SIZE)
    for name in offered.dtypes:
        dtype = getattr(torch, name)
        for mode, kind in ways(offered):
            logits, drafts = batch.logits(subject).to(dtype), batch.drafts(subject, kind)
            if drafts.draft_logits is not None:
                drafts = replace(drafts, draft_logits=drafts.draft_logits.to(dtype))
            metadata = batch.metadata(drafts)
            found = chains(subject.verify(logits, drafts, metadata, mode))
            if offered.seeding == "counter" and "float32" in offered.dtypes:
                exact = drafts
                if drafts.draft_logits is not None:
                    exact = replace(drafts, draft_logits=drafts.draft_logits.float())
                expected = chains(subject.verify(logits.float(), exact, metadata, mode))
                require_same(trial, expected, found, f"{name}, {mode}, {kind}: rows and their float32 values")
    for name in INPUT_DTYPES:
        if name not in offered.dtypes:
            refused(subject, Ask({"dtype": name}))
    return all_of(offered.dtypes)


@properties.advertised("verify logprobs", has_logprobs, draft_ask(params=SamplingParams(logprobs=1)))
def logprobs(subject: Verifying, trial: Trial) -> str:
    """Values, ranks, N best and kept mass of every emitted token agree with float64 to 1e-5; then there is padding."""
    offered, size, wanted = subject.capabilities, 700, 3
    looked = 0
    batches = []
    for dtype, _, count in spread(subject, [size], 24):
        batch = Batch.of(subject, trial.generator(f"rows {dtype}"), count, size, dtype=dtype)
        batches.append(replace(batch, params=[replace(p, logprobs=wanted) for p in batch.params]))
    for batch, logprobs_mode in itertools.product(batches, offered.logprobs_modes):
        for mode, kind in first_and_last_way(offered):
            found = batch.verify(subject, mode, kind, logprobs_mode=logprobs_mode)
            assert found.logprobs is not None
            assert found.log_kept_mass is not None
            ids, values, ranks = (
                getattr(found.logprobs, name).cpu().numpy() for name in ("token_ids", "logprobs", "ranks")
            )
            masses = found.log_kept_mass.cpu().numpy()
            for i, tokens in enumerate(chains(found)):
                end = len(tokens)
                padded = (
                    (ids[i, end:] == -1).all()
                    and (values[i, end:] == -np.inf).all()
                    and not ranks[i, end:].any()
                    and (masses[i, end:] == PAD_LOGPROB).all()
                )
                trial.require(
                    padded, f"{mode}, {kind}: logprobs need padding behind the last token, found none"
                )
                trial.require(
                    ids[i, :end, 0].tolist() == tokens,
                    "the emitted token needs to come first in its logprobs",
                )
                for step, (x, token) in enumerate(zip(batch.target[i], tokens, strict=False)):
                    expected = expected_values(x, batch.params[i], token, logprobs_mode, offered.tie_rule)
                    if expected is None:
                        continue
                    looked += 1
                    mass = expect(x, batch.params[i], offered.tie_rule).log_share
                    trial.require(
                        abs(masses[i, step] - mass) <= TOLERANCE,
                        f"{batch.dtype}, {mode}, {kind}: {described(batch.params[i])} needs log_kept_mass {mass:.6f}, "
                        f"found {masses[i, step]:.6f}",
                    )
                    require_values(
                        trial, f"{batch.dtype}, {mode}, {kind}", ids[i, step], values[i, step], expected
                    )
                    rank = int((np.nan_to_num(x, nan=-np.inf) >= x[token]).sum())
                    trial.require(
                        ranks[i, step] == rank, f"token {token} needs rank {rank}, found {ranks[i, step]}"
                    )
    return f"{looked} tokens in {len(offered.logprobs_modes)} modes"


@properties.advertised("verify logprob bounds", has_logprobs)
def logprob_bounds(subject: Verifying, trial: Trial) -> str:
    """No log-probability and no log_kept_mass lies above 0, where rounding brings them next to it."""
    offered, looked = subject.capabilities, 0
    requests = [replace(p, logprobs=2) for p in narrow_requests(offered)]
    for dtype, size, count in spread(subject, (2, 33, 1300), 48):
        rng = trial.generator(f"rows {size} {dtype}")
        batch = Batch.of(subject, rng, count, size, seed=False, dtype=dtype)
        target = [rounded(leading_rows(rng, size, len(rows)), dtype) for rows in batch.target]
        params = [requests[i] for i in rng.integers(0, len(requests), count)]
        batch = replace(batch, target=target, params=params)
        for mode, kind in first_and_last_way(offered):
            for logprobs_mode in offered.logprobs_modes:
                batch.verify(subject, mode, kind, logprobs_mode=logprobs_mode)  # holds it against the bound
                looked += count
    return f"{looked} requests: one kept token, a few, uniform rows"
