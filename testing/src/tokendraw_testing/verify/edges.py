"""Decisions of the acceptance that hang on the last bit of p, q and u."""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.plugin import DraftKind
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.verify.lines import SURE_LOGIT
from tokendraw_testing.verify.subject import VerifySubject

properties = Properties("verify")
Array = NDArray[Any]

LEAST_U: Final = 228_227_993
"""A seed whose word of the stream ACCEPT at :data:`U_POSITION` is all zeros."""
LARGEST_U: Final = 12_713_842_529
"""A seed whose word of the stream ACCEPT at :data:`U_POSITION` is all ones."""
U_POSITION: Final = 9


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
