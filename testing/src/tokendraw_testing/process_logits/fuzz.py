"""Random cases: requests, drafts, bitmasks and rows of every sort, held against the formulas logit by logit."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator

from tokendraw import SamplingParams
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.process_logits.subject import MAX_TOKENS, EditRequest, Engine, ProcessSubject
from tokendraw_testing.reference import Array

_VOCAB_SIZES: Final = (1, 2, 31, 33, 300, 1024, 1025, 5003, 50_257, 65_543, 131_113, 262_147)
_WEIGHTS: Final = (1, 1, 2, 2, 8, 3, 3, 4, 2, 1, 1, 1)
_MOST_SLOTS: Final = 40
_SPECIAL_VALUES: Final = (float("-inf"), float("inf"), float("nan"), 0.0, -0.0)


def random_case(subject: ProcessSubject, rng: Generator, trial: Trial) -> str:
    """Edit the rows of some of the slots, at several steps of an engine."""
    dtype = subject.dtypes[rng.integers(len(subject.dtypes))]
    name = str(dtype).removeprefix("torch.")
    size = rng.choice(_VOCAB_SIZES, p=np.array(_WEIGHTS) / sum(_WEIGHTS))
    vocab_size = subject.vocab_size(int(size))
    most = min(subject.effort.rows(_MOST_SLOTS, 2), max(1, subject.effort.elements // (8 * vocab_size)))
    engine = subject.engine({}, int(rng.integers(1, most + 1)), vocab_size)
    steps, rows = int(rng.integers(1, 4)), 0
    for step in range(steps):
        _arrive_and_leave(engine, rng, vocab_size)
        rows += _edit(subject, engine, rng, trial, dtype, f"{vocab_size} ids in {name}, step {step}")
    return f"{rows} rows of {vocab_size} ids in {name}"


def _arrive_and_leave(engine: Engine, rng: Generator, vocab_size: int) -> None:
    """Fill slots and empty some, in any order."""
    for slot in [slot for slot in engine.requests if rng.random() < 0.5]:
        engine.remove(slot)
    slots = rng.permutation(engine.slots.num_slots).tolist()
    empty_slots = [slot for slot in slots if slot not in engine.requests]
    engine.add({slot: random_request(rng, vocab_size) for slot in empty_slots if rng.random() < 0.8})


def _edit(
    subject: ProcessSubject, engine: Engine, rng: Generator, trial: Trial, dtype: torch.dtype, what: str
) -> int:
    """Edit a step's rows and append a token to each request; return the number of rows."""
    live_slots = rng.permutation(sorted(engine.requests)).tolist()
    order: list[int] = live_slots
    if rng.random() < 0.3:
        order = live_slots[: int(rng.integers(len(live_slots) + 1))]
    if not order:
        return 0
    vocab_size = engine.slots.vocab_size
    drafts = None
    if subject.capabilities.drafts and rng.random() < 0.5:
        drafts = [_drafts(rng, engine.requests[slot], vocab_size) for slot in order]
    rows = len(order) + sum(map(len, drafts or ()))
    logits = _logits(subject, rng, rows, vocab_size, dtype)
    allowed = _allowed(rng, rows, vocab_size) if rng.random() < 0.5 else None
    subject.check_edits(trial, what, engine, order, logits, allowed=allowed, drafts=drafts)
    engine.append({slot: int(rng.integers(vocab_size)) for slot in order})
    return rows


def random_request(rng: Generator, vocab_size: int) -> EditRequest:
    """Draw a request of no, some or all edits, with common or separate ids.

    Its prompt ends with placeholders.
    """
    pool = rng.integers(0, vocab_size, int(rng.integers(1, 20)))

    def ids(most: int, least: int = 0) -> list[int]:
        return rng.choice(pool, int(rng.integers(least, most + 1))).tolist()  # type: ignore[no-any-return]

    def penalty() -> float:
        return float(rng.choice([0.0, 2.0, -2.0, rng.uniform(-2.0, 2.0)]))

    fields: dict[str, Any] = {
        "repetition_penalty": float(rng.choice([1.0, 1e-3, 3e4, rng.uniform(0.3, 3.0)])),
        "frequency_penalty": penalty(),
        "presence_penalty": penalty(),
        "logit_bias": {token: float(rng.choice([100.0, -100.0, rng.normal(0.0, 5.0)])) for token in ids(8)},
        "allowed_token_ids": sorted(
            {*ids(8, 1), *rng.integers(0, vocab_size, int(rng.integers(40))).tolist()}
        ),
        "bad_words": [ids(4, 1) for _ in range(rng.integers(1, 5))],
        "min_tokens": int(rng.integers(0, 30)),
        "stop_token_ids": sorted(set(ids(4))),
        "dry_multiplier": float(rng.uniform(0.0, 5.0)),
        "penalty_last_n": int(rng.choice([0, 1, 2, int(rng.integers(MAX_TOKENS))])),
    }
    share = rng.choice([0.1, 0.5, 0.9])
    chosen_fields = {name: value for name, value in fields.items() if rng.random() < share}
    if "min_tokens" in chosen_fields:
        chosen_fields["stop_token_ids"] = fields["stop_token_ids"]
    if "dry_multiplier" in chosen_fields:
        chosen_fields |= {
            "dry_base": float(rng.choice([1.0, 1.75, rng.uniform(1.0, 4.0), 1e20])),
            "dry_allowed_length": int(rng.integers(0, 4)),
            "dry_penalty_last_n": int(rng.choice([-1, -1, 0, 1, int(rng.integers(MAX_TOKENS))])),
            "dry_sequence_breakers": ids(2),
        }
    if rng.random() < share / 3:
        chosen_fields["thinking_budget"] = (int(rng.integers(0, 20)), ids(2, 1), ids(3, 1))
    half = MAX_TOKENS // 3
    return EditRequest(SamplingParams(**chosen_fields), [*ids(half), -1, vocab_size], ids(half))


def _drafts(rng: Generator, request: EditRequest, vocab_size: int) -> list[int]:
    """Draw drafts from the request's ids, placeholders and bad words, or any id."""
    words = [token for word in request.params.bad_words or () for token in word]
    candidates = [*request.output, *request.prompt, *words, int(rng.integers(vocab_size))]
    return rng.choice(candidates, int(rng.choice([0, 1, 2, 5, 8, 12]))).tolist()  # type: ignore[no-any-return]


def _logits(
    subject: ProcessSubject, rng: Generator, rows: int, vocab_size: int, dtype: torch.dtype
) -> torch.Tensor:
    """Draw logits with some special values, often as columns of a wider buffer."""
    num_before, num_after = rng.integers(0, 9, 2).tolist() if rng.random() < 0.5 else (0, 0)
    buffer = subject.logits(rng, rows, num_before + vocab_size + num_after, dtype)
    if rng.random() < 0.3:
        ids = torch.from_numpy(rng.integers(0, buffer.shape[1], len(_SPECIAL_VALUES))).to(subject.device)
        buffer[:, ids] = torch.tensor(_SPECIAL_VALUES, dtype=dtype, device=subject.device)
    return buffer[:, num_before : num_before + vocab_size]


def _allowed(rng: Generator, rows: int, vocab_size: int) -> Array:
    allowed: Array = rng.random((rows, vocab_size)) < rng.choice([0.0, 0.01, 0.5, 0.99, 1.0], (rows, 1))
    return allowed
