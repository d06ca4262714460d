"""Verifies at the edges: empty rows, placeholders, and decisions independent of noise."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.plugin import DraftKind
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.expectation import expect
from tokendraw_testing.verify.draft_batch import (
    OUTSIDE_ID,
    DraftBatch,
    chains,
    pad_ids,
    requests,
    require_same,
)
from tokendraw_testing.verify.lines import SURE_LOGIT, require_sure_chains
from tokendraw_testing.verify.subject import VerifySubject, draft_refusal

properties = Properties("verify")
Array = NDArray[Any]

LEAST_U: Final = 228_227_993
"""A seed whose word of the stream ACCEPT at :data:`U_POSITION` is all zeros."""
LARGEST_U: Final = 12_713_842_529
"""A seed whose word of the stream ACCEPT at :data:`U_POSITION` is all ones."""
U_POSITION: Final = 9
_VOCAB_SIZE: Final = 1100  # two tiles, the last of them not full


@properties.advertised("verify sure drafts", lambda c: "rejection" in c.verify_modes)
def sure_drafts(subject: VerifySubject, trial: Trial) -> str:
    """p(x) = q(x) always accepts, p(x) = 0 and q(x) = 0 always reject, at the ends of u too."""
    capabilities = subject.capabilities
    count, size = subject.effort.draws_of(2048), 4
    counter = capabilities.seeding == "counter"
    flat = np.zeros(size, np.float32)
    impossible_row = np.array([0.0, -np.inf, 1.0, 0.5], np.float32)
    rng = trial.generator("rows")
    equal_row = (3 * rng.standard_normal(size)).astype(np.float32)
    first = rng.integers(0, 2**40, count).tolist()
    seeds: list[int | None] = rng.integers(0, 2**63, count).tolist() if counter else [None] * count
    if counter:
        seeds[:2], first[:2] = (LEAST_U, LARGEST_U), (U_POSITION, U_POSITION)
    params = [SamplingParams(seed=seed) for seed in seeds]
    sure_row = np.array([0.0, SURE_LOGIT, 0.0, 0.0], np.float32)
    cases: list[tuple[str, DraftKind, Array, Array, bool]] = [
        ("p = q", "probs", flat, np.full(size, 0.25, np.float32), True),
        ("p = q", "logits", equal_row, equal_row, True),
        ("p = q = 1", "probs", sure_row, np.eye(size, dtype=np.float32)[1], True),
        ("p = q = 1", "logits", sure_row, sure_row, True),
        ("p = q = 1", "chosen", sure_row, sure_row, True),
        ("p = 0", "probs", impossible_row, np.eye(size, dtype=np.float32)[1], False),
        ("p = 0", "logits", impossible_row, sure_row, False),
        ("p = 0", "chosen", impossible_row, sure_row, False),
        ("q = 0", "probs", flat, np.eye(size, dtype=np.float32)[2], False),
        ("q = 0", "logits", flat, impossible_row, False),
    ]
    num_cases = 0
    served_cases = [case for case in cases if case[1] in capabilities.draft_kinds]
    for (label, kind, target, draft, accepted), dtype in itertools.product(served_cases, capabilities.dtypes):
        draft_rows = subject.upload_draft(draft, dtype, kind).repeat(count, 1)
        logits = subject.upload(target, dtype).repeat(2 * count, 1)
        seed_torch(rng)
        output = subject.verify_ids(logits, [[1]] * count, ("rejection", kind), draft_rows, params, first)
        hits = int(output.num_accepted.sum())
        trial.require(
            hits == count * accepted,
            f"{label}, {dtype}, {kind}: of {count} drafts {count * accepted} need to be accepted, found {hits}",
        )
        num_cases += 1
    if counter:
        _ends_of_u(subject, trial)
    ends = ", the least and the largest u among them" * counter
    return f"{num_cases} cases and dtypes, {count} drafts each" + ends


def _ends_of_u(subject: VerifySubject, trial: Trial) -> None:
    """Require that the least u accepts at p / q = 3e-7, and that the largest u rejects as near to 1."""
    capabilities, even_row = subject.capabilities, np.zeros(4, np.float32)
    unlikely_row, nearly_sure_row = np.array([[0.0, -14.0, 0.0, 0.0], [-15.0, 0.0, -20.0, -20.0]], np.float32)
    sure_draft = np.array([-30.0, 0.0, -30.0, -30.0], np.float32)
    cases: list[tuple[DraftKind, int, Array, Array, int]] = [
        ("chosen", LEAST_U, unlikely_row, even_row, 1),
        ("logits", LEAST_U, unlikely_row, even_row, 1),
        ("probs", LEAST_U, unlikely_row, np.full(4, 0.25, np.float32), 1),
        ("chosen", LARGEST_U, nearly_sure_row, even_row, 0),
        ("logits", LARGEST_U, nearly_sure_row, sure_draft, 0),
        ("probs", LARGEST_U, nearly_sure_row, np.eye(4, dtype=np.float32)[1], 0),
    ]
    served_cases = [case for case in cases if case[0] in capabilities.draft_kinds]
    for (kind, seed, target, draft, accepted), dtype in itertools.product(served_cases, capabilities.dtypes):
        draft_rows = subject.upload_draft(draft[None], dtype, kind)
        logits, params = subject.upload(target, dtype).repeat(2, 1), [SamplingParams(seed=seed)]
        output = subject.verify_ids(logits, [[1]], ("rejection", kind), draft_rows, params, [U_POSITION])
        num_accepted, end = int(output.num_accepted[0]), "least" if accepted else "largest"
        trial.require(
            num_accepted == accepted,
            f"{dtype}, {kind}: the {end} u needs {accepted} of one draft to be accepted, found {num_accepted}",
        )


@properties.advertised(
    "verify greedy rows", lambda c: c.greedy, draft_refusal(params=SamplingParams(temperature=0.0))
)
def greedy(subject: VerifySubject, trial: Trial) -> str:
    """A greedy request accepts the argmax, the lowest id on a tie, and emits it in place of another draft."""
    looks = subject.share_requests([_VOCAB_SIZE], 48)
    for dtype, size, count in looks:
        rng = trial.generator(f"rows {dtype}")
        _require_greedy(subject, trial, rng, DraftBatch.of(subject, rng, count, size, dtype=dtype))
    return f"every other of {sum(count for *_, count in looks)} requests, {len(subject.ways)} ways"


def _require_greedy(subject: VerifySubject, trial: Trial, rng: Generator, batch: DraftBatch) -> None:
    count, size = len(batch), batch.size
    for i in range(0, count, 2):
        batch.params[i] = replace(batch.params[i], temperature=0.0)
        for x in batch.target[i]:
            x[rng.integers(size, size=2)] = x.max()
        for step in range(len(batch.ids[i])):
            if rng.random() < 0.7:
                batch.ids[i][step] = int(batch.target[i][step].argmax())
    for mode, kind in subject.ways:
        for i, tokens in list(enumerate(chains(batch.verify(subject, mode, kind))))[::2]:
            best = [int(x.argmax()) for x in batch.target[i]]
            ids = [*batch.ids[i], -1]
            end = next(step for step, token in enumerate(ids) if token != best[step]) + 1
            trial.require(
                tokens == best[:end],
                f"{batch.dtype}, {mode}, {kind}: a greedy request with drafts {ids[:-1]} needs {best[:end]}, found "
                f"{tokens}",
            )


@properties.advertised("verify ragged drafts", lambda c: c.ragged_drafts, draft_refusal(ragged=True))
def ragged(subject: VerifySubject, trial: Trial) -> str:
    """Requests of 3, 0, 1 and 128 drafts share a batch, and ids padded to [B, K] give the chains of flat ones."""
    max_drafts = subject.effort.rows(128)
    rng = trial.generator("rows")
    for (mode, kind), dtype in zip(subject.ways, subject.cycle_dtypes(), strict=False):
        require_sure_chains(subject, trial, mode, kind, [3, 0, 1, max_drafts], dtype=dtype)
        require_sure_chains(subject, trial, mode, kind, [0, max_drafts, 3, 1], dtype=dtype)
        if subject.capabilities.seeding != "counter":
            continue
        batch = DraftBatch.of(subject, rng, subject.effort.rows(32, least=4), 300, dtype=dtype)
        flat = batch.drafts(subject, kind)
        padded_drafts = pad_ids(flat, batch.ids, "padded")
        metadata = batch.metadata(flat)
        logits = batch.logits(subject)
        outputs = [subject.verify(logits, drafts, metadata, mode) for drafts in (flat, padded_drafts)]
        require_same(trial, chains(outputs[0]), chains(outputs[1]), f"{mode}, {kind}: padded ids")
    return f"[3, 0, 1, {max_drafts}] and [0, {max_drafts}, 3, 1] drafts, flat and padded"


@properties.advertised("verify placeholders", lambda c: c.placeholder_drafts, draft_refusal(placeholder=True))
def placeholders(subject: VerifySubject, trial: Trial) -> str:
    """-1, V and 2**31 - 1 are rejected, no draft behind them is accepted, and the row beside them is not looked at."""
    capabilities, size = subject.capabilities, 300
    count = subject.effort.rows(24, least=4)
    plain_params = requests(capabilities, size)[0]
    for (mode, kind), dtype in zip(subject.ways, subject.cycle_dtypes(), strict=False):
        rng = trial.generator(f"{mode} {kind}")
        target = np.stack([gaussian(rng, size) for _ in range(3 * count)])
        second_drafts = target[1::3].argmax(1)
        target[1::3][np.arange(count), second_drafts] += SURE_LOGIT
        ids = [[(-1, size, OUTSIDE_ID, -(2**63))[i % 4], int(second_drafts[i])] for i in range(count)]
        rows = np.stack([gaussian(rng, size) for _ in range(2 * count)])
        if kind == "probs":
            rows = np.stack([expect(x, plain_params).probabilities for x in rows]).astype(np.float32)
        params = [
            replace(plain_params, seed=i if capabilities.seeding == "counter" else None) for i in range(count)
        ]
        chains_by_draft = []
        for drafted in (rows, np.where(np.arange(2 * count)[:, None] % 2 == 0, np.float32(np.nan), rows)):
            draft_rows = subject.upload_draft(drafted, dtype, kind)
            logits, first = subject.upload(target, dtype), list(range(count))
            output = subject.verify_ids(logits, ids, (mode, kind), draft_rows, params, first)
            trial.require(
                not output.num_accepted.any(),
                f"{mode}, {kind}: a request that begins with a placeholder needs 0 drafts accepted, found "
                f"{int(output.num_accepted.max())}",
            )
            trial.require(
                output.valid.all(),
                f"{mode}, {kind}: the draft's row of a placeholder needs to be left alone, found it read",
            )
            chains_by_draft.append(chains(output))
        if capabilities.seeding == "counter":
            require_same(
                trial, chains_by_draft[0], chains_by_draft[1], f"{mode}, {kind}: placeholders beside NaN"
            )
        counts = [4, 4] if not capabilities.ragged_drafts else [2, 0, 9]
        require_sure_chains(subject, trial, mode, kind, counts, reject_step=2, dtype=dtype)
    return "first and later ones, of 4 ids, beside rows of NaN"
