"""Sampling on a CUDA device: calls without waiting, and graphs with changing inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch

from tokendraw import SamplerOutput, SamplingMetadata, SamplingParams
from tokendraw_testing.kit.device import capture, require_new_draws, require_no_wait
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.rows.requests import combinations, describe, scalar_filters
from tokendraw_testing.rows.subjects import SampleSubject

properties = Properties("sample")

_ROWS, _SIZE = 64, 32_000


def _sampling_call(
    subject: SampleSubject, logits: torch.Tensor, metadata: SamplingMetadata
) -> Callable[[], SamplerOutput]:
    """Return a call without the checks of the kit, because the checks wait."""
    backend = subject.built()
    return lambda: backend.sample(logits, metadata)


def _batches(subject: SampleSubject, trial: Trial) -> Iterator[tuple[str, torch.Tensor, SamplingMetadata]]:
    """Make a batch of every kind served by the subject, on the device."""
    rng = trial.generator("rows")
    logits = torch.from_numpy(np.stack([gaussian(rng, _SIZE) for _ in range(_ROWS)])).to(subject.device)
    positions = torch.arange(_ROWS, device=subject.device)
    counter = subject.capabilities.seeding == "counter"
    requests = combinations(subject.capabilities, _SIZE)
    kinds = {describe(p): [p] * _ROWS for p in requests[:: max(1, len(requests) // 8)]}
    if not scalar_filters(subject.capabilities):
        kinds["all kinds mixed"] = [requests[i % len(requests)] for i in range(_ROWS)]
    if subject.capabilities.logprobs_modes:
        kinds["five logprobs"] = [SamplingParams(logprobs=5)] * _ROWS
    for label, rows in kinds.items():
        params = [replace(p, seed=i) if counter and i % 2 else p for i, p in enumerate(rows)]
        yield label, logits, SamplingMetadata.from_params(params, device=subject.device, positions=positions)


@properties.advertised("sync-free", lambda c: c.sync_free, Refusal({"sync_free": True}), needs_cuda=True)
def sync_free(subject: SampleSubject, trial: Trial) -> str:
    """No call waits for the device: by torch's own check, and by a stopwatch behind a sleeping device."""
    num_batches = 0
    for label, logits, metadata in _batches(subject, trial):
        require_no_wait(trial, f"{label}: a call", _sampling_call(subject, logits, metadata))
        num_batches += 1
    return f"{num_batches} kinds of batches, 2 methods"


@properties.advertised(
    "graph capture", lambda c: c.graph_safe, Refusal({"graph_safe": True}), needs_cuda=True
)
def graph_capture(subject: SampleSubject, trial: Trial) -> str:
    """A captured call follows logits and positions that change in place, and draws anew at each replay."""
    num_batches = 0
    for label, batch_logits, metadata in _batches(subject, trial):
        logits = batch_logits.clone()
        work = _sampling_call(subject, logits, metadata)
        replay, output = capture(work)
        is_seeded = torch.zeros(_ROWS, dtype=torch.bool)
        if subject.capabilities.seeding == "counter":
            is_seeded[1::2] = True
        for step in (1, 2):
            logits.copy_(batch_logits.roll(step, 0))
            assert metadata.positions is not None
            metadata.positions.copy_(torch.arange(_ROWS) + 100 * step)
            expected = work().token_ids.cpu()
            replay()
            tokens = output.token_ids.cpu()
            trial.require(
                ((tokens >= 0) & (tokens < _SIZE)).all(), f"{label}: ids need to lie in [0, {_SIZE})"
            )
            trial.require(
                (tokens == expected)[is_seeded].all(),
                f"{label}: a replay needs the tokens of a fresh call, found others",
            )
        num_batches += 1
    flat = torch.zeros(_ROWS, _SIZE, device=subject.device)
    plain_metadata = SamplingMetadata.from_params([SamplingParams()] * _ROWS, device=subject.device)
    replay, output = capture(_sampling_call(subject, flat, plain_metadata))
    require_new_draws(trial, replay, output.token_ids, "tokens")
    return f"{num_batches} kinds of batches"
