"""Scores on a CUDA device: calls without waiting, and graphs with changing inputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from tokendraw import SamplingMetadata, SamplingParams, ScoreOutput
from tokendraw_testing.kit.device import capture, require_no_wait
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.rows.requests import combinations
from tokendraw_testing.score.subject import ScoreSubject

properties = Properties("score")

_ROWS, _SIZE = 24, 32_000


def _call(
    subject: ScoreSubject, trial: Trial, logits: torch.Tensor, ids: torch.Tensor
) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """Return a score without the checks of the kit, because the checks wait."""
    requests = combinations(subject.capabilities, _SIZE) or [SamplingParams()]
    params = [requests[i % len(requests)] for i in range(_ROWS)]
    metadata = SamplingMetadata.from_params(params, device=subject.device, positions=range(_ROWS))
    scorer = subject.built()

    @torch.no_grad()
    def work() -> tuple[torch.Tensor, torch.Tensor]:
        scored: ScoreOutput = scorer.score(logits, ids, metadata)
        return scored.logprobs.logprobs, scored.entropy

    return work


def _inputs(subject: ScoreSubject, trial: Trial) -> tuple[torch.Tensor, torch.Tensor]:
    rng = trial.generator("rows")
    rows = np.stack([gaussian(rng, _SIZE) for _ in range(_ROWS)])
    dtype = getattr(torch, subject.capabilities.dtypes[0])
    ids = torch.from_numpy(rng.integers(0, _SIZE, _ROWS))
    return torch.from_numpy(rows).to(subject.device, dtype), ids.to(subject.device)


@properties.advertised(
    "score sync-free", lambda c: c.sync_free, Refusal({"sync_free": True}), needs_cuda=True
)
def sync_free(subject: ScoreSubject, trial: Trial) -> str:
    """No score waits for the device: by torch's check, and by a stopwatch behind a sleeping device."""
    require_no_wait(trial, "a score", _call(subject, trial, *_inputs(subject, trial)))
    return "one batch of every request"


@properties.advertised(
    "score graph capture", lambda c: c.graph_safe, Refusal({"graph_safe": True}), needs_cuda=True
)
def graph_capture(subject: ScoreSubject, trial: Trial) -> str:
    """A captured score follows logits and tokens that change in place."""
    logits, ids = _inputs(subject, trial)
    first_logits, first_ids = logits.clone(), ids.clone()
    work = _call(subject, trial, logits, ids)
    replay, outputs = capture(work)
    for step in (1, 2):
        logits.copy_(first_logits.roll(step, 0))
        ids.copy_(first_ids.roll(step, 0))
        expected = [each.cpu() for each in work()]
        replay()
        trial.require(
            all(torch.equal(found.cpu(), each) for found, each in zip(outputs, expected, strict=True)),
            "a replay needs the scores of a fresh call, found others",
        )
    return "2 replays"
