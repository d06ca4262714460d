"""Edits on a CUDA device: calls without waiting, and graphs with changing requests."""

from __future__ import annotations

import torch

from tokendraw import SamplingParams
from tokendraw.plugin import EditFacts
from tokendraw_testing.kit.device import capture, require_no_wait
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.process_logits.formulas import random_edits
from tokendraw_testing.process_logits.subject import EditRequest, ProcessSubject

properties = Properties("process_logits")

_ROWS, _VOCAB_SIZE, _REPLAYS = 16, 2000, 5
_ALL_EDITS = SamplingParams(
    repetition_penalty=1.5,
    frequency_penalty=0.5,
    presence_penalty=0.5,
    logit_bias={3: 1.0},
    allowed_token_ids=[1, 2, 3],
    bad_words=[[1]],
    min_tokens=5,
    stop_token_ids=[2],
)


@properties.advertised(
    "process sync-free", lambda c: c.sync_free, Refusal({"sync_free": True}), needs_cuda=True
)
def sync_free(subject: ProcessSubject, trial: Trial) -> str:
    """No edit waits for the device: by torch's check, and by a stopwatch behind a sleeping device."""
    rng, vocab_size = trial.generator("requests"), subject.vocab_size(_VOCAB_SIZE)
    engine = subject.engine({s: random_edits(rng, vocab_size) for s in range(_ROWS)}, _ROWS, vocab_size)
    logits = subject.logits(rng, _ROWS, vocab_size, subject.dtypes[0])
    words = torch.full((_ROWS, -(-vocab_size // 32)), -1, dtype=torch.int32, device=subject.device)
    row_index, processor = torch.arange(_ROWS, device=subject.device), subject.built()
    calls = {"without a bitmask": lambda: processor.process(logits, engine.slots, row_index)}
    if subject.has_bitmask:
        calls["with one"] = lambda: processor.process(logits, engine.slots, row_index, words)
    if subject.capabilities.drafts:
        half, drafts = row_index[: _ROWS // 2], subject.drafts([[1]] * (_ROWS // 2))
        calls["with drafts"] = lambda: processor.process(logits, engine.slots, half, None, drafts)
    for what, work in calls.items():
        require_no_wait(trial, f"a call {what}", work)
    return f"{len(calls)} kinds of calls"


@properties.advertised(
    "process graph replay", lambda c: c.graph_safe, Refusal({"graph_safe": True}), needs_cuda=True
)
def graph_replay(subject: ProcessSubject, trial: Trial) -> str:
    """A graph captured with empty slots follows requests that come, grow and go, and logits that change."""
    rng, vocab_size = trial.generator("steps"), subject.vocab_size(_VOCAB_SIZE)
    engine = subject.engine({0: EditRequest(_ALL_EDITS, [1], [2])}, _ROWS, vocab_size)
    engine.slots.captured_edits = EditFacts.of(subject.capabilities.edits)
    logits = subject.logits(rng, _ROWS, vocab_size, subject.dtypes[0])
    row_index, processor = torch.arange(_ROWS, device=subject.device), subject.built()
    processor.process(logits, engine.slots, row_index)  # compiles: a capture is no place for that
    engine.remove(0)
    replay, _ = capture(lambda: processor.process(logits, engine.slots, row_index))
    engine.add({slot: random_edits(rng, vocab_size) for slot in range(_ROWS)})
    for step in range(_REPLAYS):
        logits.copy_(subject.logits(rng, _ROWS, vocab_size, subject.dtypes[0]))
        subject.check_edits(trial, f"replay {step + 1}", engine, range(_ROWS), logits, replay=replay)
        engine.append({slot: int(rng.integers(0, vocab_size)) for slot in range(_ROWS)})
        engine.remove(step)
        engine.add({step: random_edits(rng, vocab_size)})
    return f"{_REPLAYS} replays"
