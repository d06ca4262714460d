"""Checks edits of a CPU processor whose threads share the rows of a call."""

from __future__ import annotations

from typing import Final

import torch

from tokendraw import RequestSlots
from tokendraw_testing.kit.inputs import bits
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.threads import (
    FIRST_REPEATS,
    LARGE_BATCH_ROWS,
    OTHER_REPEATS,
    RepeatedCall,
    require_cpu_threads,
    require_thread_free,
    thread_words,
)
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.process_logits.formulas import random_edits
from tokendraw_testing.process_logits.subject import ProcessSubject, pack_bitmask

properties = Properties("process_logits")

_VOCAB_SIZE: Final = 2100


@properties.required("process threads")
def threads(subject: ProcessSubject, trial: Trial) -> str:
    """Large batches are edited alike, bit by bit, with several threads, and in two at once."""
    require_cpu_threads(subject, trial)
    rng, vocab_size = trial.generator("requests"), subject.vocab_size(_VOCAB_SIZE)
    requests = {slot: random_edits(rng, vocab_size) for slot in range(LARGE_BATCH_ROWS)}
    order = rng.permutation(LARGE_BATCH_ROWS).tolist()
    engines = []
    for _ in range(2):  # the slots of each object are its engine's own
        outputs = {slot: list(request.output) for slot, request in requests.items()}
        engines.append(subject.engine(requests, LARGE_BATCH_ROWS, vocab_size))
        assert {slot: request.output for slot, request in requests.items()} == outputs
    row_index = torch.tensor(order, dtype=torch.int64)
    rows = torch.arange(LARGE_BATCH_ROWS)
    for turn, dtype in enumerate(subject.dtypes):
        logits = subject.logits(rng, LARGE_BATCH_ROWS, vocab_size, dtype)
        allowed = rng.random((LARGE_BATCH_ROWS, vocab_size)) < 0.9
        bitmask = torch.from_numpy(pack_bitmask(allowed))
        subject.check_edits(trial, str(dtype), engines[0], order, logits.clone(), allowed=allowed)

        calls = [
            _repeated_call(subject, logits[part], engine.slots, row_index[part], bitmask[part])
            for engine, part in zip(engines, (rows, rows.flip(0)), strict=True)
        ]
        what = f"{LARGE_BATCH_ROWS} rows of {vocab_size} ids in {dtype}"
        require_thread_free(subject, trial, what, calls, OTHER_REPEATS if turn else FIRST_REPEATS)
    return f"{LARGE_BATCH_ROWS} rows in {len(subject.dtypes)} dtypes, {thread_words()}"


def _repeated_call(
    subject: ProcessSubject,
    logits: torch.Tensor,
    slots: RequestSlots,
    row_index: torch.Tensor,
    bitmask: torch.Tensor,
) -> RepeatedCall:
    return RepeatedCall(
        lambda: subject.new_call("process", logits.clone(), slots, row_index, bitmask), _difference
    )


def _difference(reference: torch.Tensor, output: torch.Tensor) -> str | None:
    if torch.equal(bits(reference), bits(output)):
        return None
    rows = (bits(reference) != bits(output)).view(len(reference), -1).any(1).nonzero().flatten().tolist()
    return f"row {rows[0]} needs the bits of one thread, found others in {len(rows)} rows"
