"""Captures calls in CUDA graphs, and replays verifications after their inputs were changed in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from drafting import MODES, DraftCell, Speculation, differ, speculation, with_placeholders
from torch import Tensor

from tokendraw import Drafts, Sampler, SamplingMetadata, VerifyOutput
from tokendraw.plugin import VerifyMode
from tokendraw_testing import sync_is_an_error

TITLES = ("filters", "replays", "requests that differ", "waits for the device")
_FILTERS = ("mixed", "none", "top-k and top-p")
_CHANGES = 3
_Output = TypeVar("_Output")


@dataclass(frozen=True)
class _CapturedInputs:
    """A verification with inputs at fixed addresses."""

    target: Tensor
    drafts: Drafts
    metadata: SamplingMetadata
    mode: VerifyMode

    def tensors(self) -> list[Tensor]:
        """Return the tensors to change between replays."""
        drafts, metadata = self.drafts, self.metadata
        found = (
            self.target,
            drafts.draft_token_ids,
            drafts.cu_num_logits,
            drafts.draft_logits,
            drafts.draft_probs,
            metadata.seed,
            metadata.positions,
        )
        return [tensor for tensor in found if tensor is not None]


def captured(call: Callable[[], _Output]) -> tuple[torch.cuda.CUDAGraph, _Output]:
    """Capture a call in a CUDA graph; return the graph and the output of replays."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()
    return graph, output


def replayed(
    sampler: Sampler, kind: str, generator: torch.Generator, *, requests: int = 64, vocab_size: int = 32_000
) -> tuple[list[list[str]], bool]:
    """Return a line for each of some filters, under ``TITLES``, and whether replays equal eager calls without waits."""
    lines, holds = [], True
    for filters in _FILTERS:
        try:
            wrong, waits = _tried(
                sampler, kind, DraftCell(vocab_size, requests, filters, "gaussian", "bfloat16"), generator
            )
            line, good = (
                ["", "", waits] if waits else [str(_CHANGES), str(wrong), "no"],
                not wrong and not waits,
            )
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            line, good = ["", f"{type(error).__name__}: {reason}", ""], False
        lines.append([filters, *line])
        holds = holds and good
    return lines, holds


def _tried(sampler: Sampler, kind: str, cell: DraftCell, generator: torch.Generator) -> tuple[int, str]:
    """Count requests of all replays that differ from eager calls; return the reason of a wait for the device, or ""."""
    rng = np.random.default_rng(10)
    counts = [place % 5 for place in range(cell.requests)]
    held = _call(sampler, speculation(cell, counts, rng, generator), kind, generator)
    held = replace(held, drafts=replace(held.drafts, num_drafts=None))  # they change with the rest

    def verify() -> VerifyOutput:
        return sampler.verify(held.target, held.drafts, held.metadata, mode=held.mode)

    verify()
    try:
        with sync_is_an_error():
            for _ in range(_CHANGES):
                verify()
    except RuntimeError as error:
        return 0, " ".join(str(error).split())[:200]
    graph, output = captured(verify)
    wrong = 0
    for _ in range(_CHANGES):
        made = speculation(cell, rng.permutation(counts).tolist(), rng, generator)
        other = _call(sampler, made, kind, generator)
        for mine, theirs in zip(held.tensors(), other.tensors(), strict=True):
            mine.copy_(theirs)
        eager = sampler.verify(other.target, other.drafts, held.metadata, mode=other.mode)
        for tensor in (output.token_ids, output.num_accepted):
            tensor.fill_(-2)
        output.valid.fill_(False)
        graph.replay()
        wrong += int(differ(output, eager).sum())
    return wrong, ""


def _call(sampler: Sampler, made: Speculation, kind: str, generator: torch.Generator) -> _CapturedInputs:
    ids = with_placeholders(made.proposed(sampler, kind), generator)
    return _CapturedInputs(made.target, made.drafts(ids, kind), made.metadata, MODES[kind])
