"""Checks edits of a CPU processor whose threads share the rows of a call."""

from __future__ import annotations

from typing import Final

import torch

from tokendraw import RequestSlots
from tokendraw_testing.kit.inputs import bits
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.threads import (
    FEW_CALLS,
    LEAST_ROWS,
    MANY_CALLS,
    RepeatedCall,
    require_cpu_threads,
    require_thread_free,
    thread_words,
)
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.process_logits.formulas import whole_request
from tokendraw_testing.process_logits.processing import Processing, packed

properties = Properties("process_logits")

_VOCAB_SIZE: Final = 2100


@properties.required("process threads")
def threads(subject: Processing, trial: Trial) -> str:
    """Large batches are edited alike, bit by bit, with several threads, and by two objects at once."""
    require_cpu_threads(subject, trial)
    rng, vocab_size = trial.generator("requests"), subject.vocab_size(_VOCAB_SIZE)
    requests = {slot: whole_request(rng, vocab_size) for slot in range(LEAST_ROWS)}
    order = rng.permutation(LEAST_ROWS).tolist()
    engines = []
    for _ in range(2):  # the slots of each object are its engine's own
        outputs = {slot: list(request.output) for slot, request in requests.items()}
        engines.append(subject.engine(requests, LEAST_ROWS, vocab_size))
        assert {slot: request.output for slot, request in requests.items()} == outputs
    row_index = torch.tensor(order, dtype=torch.int64)
    rows = torch.arange(LEAST_ROWS)
    for turn, dtype in enumerate(subject.dtypes):
        given = subject.logits(rng, LEAST_ROWS, vocab_size, dtype)
        allowed = rng.random((LEAST_ROWS, vocab_size)) < 0.9
        bitmask = torch.from_numpy(packed(allowed))
        subject.edited(trial, str(dtype), engines[0], order, given.clone(), allowed=allowed)

        repeated = [
            _repeated(subject, given[part], engine.slots, row_index[part], bitmask[part])
            for engine, part in zip(engines, (rows, rows.flip(0)), strict=True)
        ]
        what = f"{LEAST_ROWS} rows of {vocab_size} ids in {dtype}"
        require_thread_free(subject, trial, what, repeated, FEW_CALLS if turn else MANY_CALLS)
    return f"{LEAST_ROWS} rows in {len(subject.dtypes)} dtypes, {thread_words()}"


def _repeated(
    subject: Processing,
    logits: torch.Tensor,
    slots: RequestSlots,
    row_index: torch.Tensor,
    bitmask: torch.Tensor,
) -> RepeatedCall:
    return RepeatedCall(
        lambda: subject.new_call("process", logits.clone(), slots, row_index, bitmask), _difference
    )


def _difference(alone: torch.Tensor, found: torch.Tensor) -> str | None:
    if torch.equal(bits(alone), bits(found)):
        return None
    apart = (bits(alone) != bits(found)).view(len(alone), -1).any(1).nonzero().flatten().tolist()
    return f"row {apart[0]} needs the bits of one thread, found others in {len(apart)} rows"
