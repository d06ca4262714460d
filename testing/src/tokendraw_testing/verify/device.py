"""Verifications on a CUDA device: calls without waiting, and graphs with changing inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from tokendraw import Drafts, SamplerOutput, SamplingMetadata, SamplingParams, VerifyOutput
from tokendraw.plugin import VerifyMode
from tokendraw_testing.kit.device import capture, require_new_draws, require_no_wait
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.verify.draft_batch import DraftBatch
from tokendraw_testing.verify.subject import VerifySubject, row_metadata

properties = Properties("verify")

_REQUESTS, _SIZE = 24, 32_000

_Arguments = tuple[torch.Tensor, Drafts, SamplingMetadata, VerifyMode]


def _batches(subject: VerifySubject, trial: Trial) -> Iterator[tuple[str, _Arguments]]:
    """Make a batch of every mode and kind of drafts, mixed from all served requests, on the device."""
    for mode, kind in subject.ways:
        label = f"{mode}, {kind}"
        batch = DraftBatch.of(subject, trial.generator(label), _REQUESTS, _SIZE)
        if subject.capabilities.logprobs_modes:
            batch.params[0] = replace(batch.params[0], logprobs=5)
        drafts = batch.drafts(subject, kind)
        yield label, (batch.logits(subject), drafts, batch.metadata(drafts), mode)


def _flat_arguments(subject: VerifySubject) -> _Arguments:
    """Make flat rows of requests without seeds: each emits a bonus or recovered token from many equal tokens."""
    mode, kind = subject.ways[0]
    draft_rows = torch.full(
        (_REQUESTS, _SIZE), 1.0 / _SIZE if kind == "probs" else 0.0, device=subject.device
    )
    drafts = subject.drafts([[i] for i in range(_REQUESTS)], _SIZE, kind, draft_rows)
    metadata = row_metadata(drafts, [SamplingParams()] * _REQUESTS, [0] * _REQUESTS)
    return torch.zeros(2 * _REQUESTS, _SIZE, device=subject.device), drafts, metadata, mode


def _verification(subject: VerifySubject, call: _Arguments) -> Callable[[], torch.Tensor]:
    """Return a verification without the checks of the kit, because the checks wait."""
    verifier = subject.built()
    logits, drafts, metadata, mode = call

    @torch.no_grad()
    def work() -> torch.Tensor:
        output: VerifyOutput = verifier.verify(logits, drafts, metadata, mode=mode)
        return output.token_ids

    return work


def _draft(subject: VerifySubject, call: _Arguments) -> Callable[[], torch.Tensor]:
    """Return a draft of as many rows, as a separate call: a device queues at most some 1000 launches."""
    verifier = subject.built()
    logits, _, metadata, _ = call

    @torch.no_grad()
    def work() -> torch.Tensor:
        output: SamplerOutput = verifier.sample(logits, metadata, draft=True)
        return output.token_ids

    return work


@properties.advertised(
    "verify sync-free", lambda c: c.sync_free, Refusal({"sync_free": True}), needs_cuda=True
)
def sync_free(subject: VerifySubject, trial: Trial) -> str:
    """No verification or draft waits for the device: by torch's check, and by a stopwatch behind a sleeping device."""
    num_batches = 0
    for label, call in _batches(subject, trial):
        require_no_wait(trial, f"{label}: a call", _verification(subject, call))
        require_no_wait(trial, f"{label}: a draft", _draft(subject, call))
        num_batches += 1
    return f"{num_batches} kinds of batches, 2 methods"


@properties.advertised(
    "verify graph capture", lambda c: c.graph_safe, Refusal({"graph_safe": True}), needs_cuda=True
)
def graph_capture(subject: VerifySubject, trial: Trial) -> str:
    """A captured verification follows inputs that change in place, and draws anew at each replay."""
    num_batches = 0
    for label, (batch_logits, drafts, metadata, mode) in _batches(subject, trial):
        logits, ids = batch_logits.clone(), drafts.draft_token_ids.clone()
        work = _verification(subject, (logits, drafts, metadata, mode))
        replay, output = capture(work)
        for step in (1, 2):
            logits.copy_(batch_logits.roll(step, 0))
            drafts.draft_token_ids.copy_(ids.roll(step, 0))
            assert metadata.positions is not None
            metadata.positions.add_(100)
            expected = work().cpu()
            replay()
            tokens = output.cpu()
            trial.require(
                ((tokens >= -1) & (tokens < _SIZE)).all(), f"{label}: ids need to lie in [-1, {_SIZE})"
            )
            trial.require(
                subject.capabilities.seeding != "counter" or torch.equal(tokens, expected),
                f"{label}: a replay needs the chains of a fresh call, found others",
            )
        num_batches += 1
    replay, output = capture(_verification(subject, _flat_arguments(subject)))
    require_new_draws(trial, replay, output, "chains")
    return f"{num_batches} kinds of batches"
