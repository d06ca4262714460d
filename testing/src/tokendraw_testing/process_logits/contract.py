"""Checks unedited rows and ids, foreign slots, and memory around the logits."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from tokendraw import SamplingParams
from tokendraw_testing.kit.inputs import require_unmodified
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.process_logits.formulas import random_edits
from tokendraw_testing.process_logits.subject import EditRequest, ProcessSubject

properties = Properties("process_logits")

_VOCAB_SIZE = 300
_NANS: Final = {torch.float32: 0x7FA00001, torch.bfloat16: 0x7FA1, torch.float16: 0x7D01}
"""Bits of a NaN that no computation makes."""
_ALL_EDITS: Final = SamplingParams(
    repetition_penalty=1.7,
    frequency_penalty=-1.1,
    presence_penalty=0.9,
    logit_bias={0: 2.5, 3: -2.5, 40: 1.0},
)


@properties.required("process shapes")
def shapes(subject: ProcessSubject, trial: Trial) -> str:
    """Rows of every size are edited to the last id, in batches of every size."""
    num_shapes = 0
    for vocab_size, rows in subject.effort.pairs():
        if vocab_size * rows > 1 << 20 or subject.vocab_size(vocab_size) != vocab_size:
            continue
        rng = trial.generator(f"{vocab_size} x {rows}")
        count = min(rows, 8)
        last = vocab_size - 1
        params = SamplingParams(
            repetition_penalty=1.3,
            logit_bias={last: 1.5},
            stop_token_ids=[last // 2],
            min_tokens=1,
            bad_words=[[last // 3]],
        )
        requests = {s: EditRequest(params, [last, 0], []) for s in range(count)}
        engine = subject.engine(requests, max(count, 1), vocab_size)
        logits = subject.logits(rng, count, vocab_size, subject.dtypes[0])
        subject.check_edits(trial, f"{vocab_size} ids", engine, range(count), logits)
        num_shapes += 1
    return f"{num_shapes} shapes"


@properties.required("process strides")
def strides(subject: ProcessSubject, trial: Trial) -> str:
    """Logits may be columns of wider ones, and so may bitmasks; what lies beside the logits keeps its bits."""
    vocab_size, rows = subject.vocab_size(_VOCAB_SIZE), 5
    for turn, dtype in enumerate(subject.dtypes):
        step = len(subject.dtypes) if subject.effort.interpreted else 1
        for num_before, num_after in ((0, 1), (3, 0), (1, 7), (8, 8))[turn % step :: step]:
            rng = trial.generator(f"{num_before}, {num_after}, {dtype}")
            requests = {slot: random_edits(rng, vocab_size) for slot in range(rows)}
            buffer = subject.logits(rng, rows, num_before + vocab_size + num_after, dtype)
            original = buffer.cpu().clone()
            logits = buffer[:, num_before : num_before + vocab_size]
            engine = subject.engine(requests, rows, vocab_size)
            what = f"{num_before} before, {num_after} behind, {dtype}"
            subject.check_edits(trial, what, engine, range(rows), logits)
            result = buffer.cpu().clone()
            result[:, num_before : num_before + vocab_size] = original[
                :, num_before : num_before + vocab_size
            ]
            trial.require(
                torch.equal(result, original),
                "memory beside the logits needs to stay as it is, found changed",
            )
    if subject.has_bitmask:
        _require_mask_columns(subject, trial, rows, vocab_size)
    return f"4 places in {len(subject.dtypes)} dtypes"


def _require_mask_columns(subject: ProcessSubject, trial: Trial, rows: int, vocab_size: int) -> None:
    wide_mask = torch.full((rows, 40), -1, dtype=torch.int32, device=subject.device)
    words = -(-vocab_size // 32)
    wide_mask[:, 7] = 0  # beside the mask, and the first word of it
    engine = subject.engine({s: EditRequest(SamplingParams()) for s in range(rows)}, rows, vocab_size)
    logits = torch.zeros(rows, vocab_size, dtype=subject.dtypes[0], device=subject.device)
    slots = torch.arange(rows, device=subject.device)
    subject.make(subject.new_call("process", logits, engine.slots, slots, wide_mask[:, 7 : 7 + words]))
    is_forbidden = logits.cpu() == float("-inf")
    trial.require(
        bool(is_forbidden[:, :32].all()) and not bool(is_forbidden[:, 32:].any()),
        f"a bitmask of row stride 40 needs to forbid the first 32 ids, found {int(is_forbidden.sum())} forbidden",
    )


@properties.required("process rows left alone")
def rows_left_alone(subject: ProcessSubject, trial: Trial) -> str:
    """Rows of requests that ask for nothing keep every bit, also of NaN, beside rows that are edited."""
    vocab_size, rows = subject.vocab_size(_VOCAB_SIZE), 6
    for dtype in subject.dtypes:
        rng = trial.generator(str(dtype))
        plain_params = SamplingParams(temperature=0.5, stop_token_ids=[1], frequency_penalty=-0.0)
        requests = {
            slot: EditRequest(_ALL_EDITS if slot % 2 else plain_params, [1, 5], [3, 5, 40])
            for slot in range(rows)
        }
        logits = subject.logits(rng, rows, vocab_size, dtype)
        bits = logits.view(torch.int32 if dtype is torch.float32 else torch.int16)
        bits[::2, :100:3] = _NANS[dtype]
        logits[::2, 1:100:3] = -0.0
        subject.check_edits(
            trial, str(dtype), subject.engine(requests, rows, vocab_size), range(rows), logits
        )
    return f"{rows} rows in {len(subject.dtypes)} dtypes"


@properties.required("process special values")
def special_values(subject: ProcessSubject, trial: Trial) -> str:
    """-inf stays -inf, NaN stays NaN, and infinities, zeros and the largest numbers go through the formulas."""
    vocab_size = subject.vocab_size(_VOCAB_SIZE)
    for dtype in subject.dtypes:
        top = torch.finfo(dtype).max
        inf, tiny = float("inf"), torch.finfo(dtype).tiny
        values = [-inf, inf, float("nan"), 0.0, -0.0, top, -top, tiny, 1.0]
        values = values[:vocab_size]
        ids = list(range(len(values)))
        fields = [
            {"repetition_penalty": 1.5},
            {"repetition_penalty": 0.5},
            {"frequency_penalty": -2.0},
            {"frequency_penalty": 2.0, "presence_penalty": -2.0},
            {"logit_bias": dict.fromkeys(ids, -3.5)},
            {"logit_bias": dict.fromkeys(ids, 3.5), "repetition_penalty": 2.0},
            {"allowed_token_ids": ids[:1]},
        ]
        requests = {s: EditRequest(SamplingParams(**a), [], list(ids)) for s, a in enumerate(fields)}  # type: ignore[arg-type]
        logits = subject.logits(trial.generator(str(dtype)), len(fields), vocab_size, dtype)
        logits[:, : len(values)] = torch.tensor(values, dtype=dtype, device=subject.device)
        engine = subject.engine(requests, len(fields), vocab_size)
        subject.check_edits(trial, str(dtype), engine, range(len(fields)), logits)
    return f"9 values in {len(subject.dtypes)} dtypes"


@properties.required("process any slots")
def any_slots(subject: ProcessSubject, trial: Trial) -> str:
    """Rows may be any of the slots in any order; a slot that is used again knows nothing of its last request."""
    vocab_size, num_slots, dtype = subject.vocab_size(_VOCAB_SIZE), 9, subject.dtypes[0]
    rng = trial.generator("requests")
    engine = subject.engine({}, num_slots, vocab_size)
    steps = 12
    for step in range(steps):
        for slot in rng.permutation(num_slots)[:4].tolist():
            if slot in engine.requests:
                engine.remove(slot)
            elif rng.random() < 0.9:
                engine.add({slot: random_edits(rng, vocab_size)})
        live_slots = rng.permutation(sorted(engine.requests)).tolist()
        order = live_slots[: int(rng.integers(0, len(live_slots) + 1))]
        logits = subject.logits(rng, len(order), vocab_size, dtype)
        if order:
            allowed = rng.random((len(order), vocab_size)) < 0.9 if step % 2 else None
            subject.check_edits(trial, f"step {step}", engine, order, logits, allowed=allowed)
            engine.append({slot: int(rng.integers(0, vocab_size)) for slot in order})
    return f"{steps} steps of {num_slots} slots"


@properties.required("process unassigned rows")
def unassigned_rows(subject: ProcessSubject, trial: Trial) -> str:
    """A slot that there is not, or that is empty, asks for nothing; a bitmask holds in every row."""
    vocab_size = subject.vocab_size(_VOCAB_SIZE)
    rng = trial.generator("logits")
    engine = subject.engine({1: EditRequest(_ALL_EDITS, [1, 5], [3, 5])}, 3, vocab_size)
    for kind in (torch.int64, torch.int32):
        row_index = torch.tensor([-1, 0, 3, 2**31 - 1, -(2**31)], dtype=kind, device=subject.device)
        for has_zero_bits in (False, True)[: 1 + subject.has_bitmask]:
            logits = subject.logits(rng, 5, vocab_size, subject.dtypes[0])
            expected = logits.cpu().clone()
            words = None
            if subject.has_bitmask:
                shape, word = (5, -(-vocab_size // 32)), -2 if has_zero_bits else -1
                words = torch.full(shape, word, dtype=torch.int32, device=subject.device)
            subject.make(subject.new_call("process", logits, engine.slots, row_index, words))
            if has_zero_bits:
                expected.view(5, vocab_size)[:, ::32] = float("-inf")
            num_unequal = int((logits.cpu() != expected).any(1).sum())
            trial.require(
                not num_unequal, f"5 rows of nobody need their bitmask alone, found {num_unequal} others"
            )
    return "5 rows"


@properties.required("process inputs unmodified")
def inputs_unmodified(subject: ProcessSubject, trial: Trial) -> str:
    """Slots, row_index and bitmask keep every bit."""
    vocab_size, rows = subject.vocab_size(_VOCAB_SIZE), 4
    rng = trial.generator("requests")
    engine = subject.engine({slot: random_edits(rng, vocab_size) for slot in range(rows)}, rows, vocab_size)
    logits = subject.logits(rng, rows, vocab_size, subject.dtypes[0])
    row_index = torch.arange(rows, device=subject.device).flip(0)
    words = rng.integers(-(2**31), 2**31, (rows, -(-vocab_size // 32)))
    bitmask = torch.from_numpy(words.astype(np.int32)).to(subject.device)
    with require_unmodified(trial, row_index=row_index, bitmask=bitmask, tables=engine.slots.tables):
        subject.make(
            subject.new_call(
                "process", logits, engine.slots, row_index, bitmask if subject.has_bitmask else None
            )
        )
    return f"{rows} rows"
