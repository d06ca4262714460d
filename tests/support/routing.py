"""Two samplers on a CPU of which one serves what the other cannot, and what each of them was given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from fake_candidates import EVERYTHING
from selections import loaded, selection_of
from tokendraw import LogprobsTensors, Need, SamplerOutput, SamplingMetadata
from tokendraw.calls.negotiator import Negotiator
from tokendraw.plugin import Capabilities, VerifyCapabilities
from tokendraw.providers.sampler import Sampler
from tokendraw_native.sampler import NativeSampler

CPU = torch.device("cpu")


@dataclass
class Recorded:
    """A sampler that keeps what it was given and draws one token for all rows, or whatever ``backend`` draws."""

    token: int
    backend: Any = None
    logits: list[torch.Tensor] = field(default_factory=list)
    metadata: list[SamplingMetadata] = field(default_factory=list)

    def sample(self, logits: torch.Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        self.logits.append(logits.clone())
        self.metadata.append(metadata)
        if self.backend is not None:
            return self.backend.sample(logits, metadata)
        return one_token(self.token, logits, metadata)


def one_token(token: int, logits: torch.Tensor, metadata: SamplingMetadata) -> SamplerOutput:
    """One token for all rows, with logprobs of 0 where they were asked for."""
    tokens, best = torch.full((len(logits),), token), metadata.facts.max_logprobs
    valid = torch.ones_like(tokens, dtype=torch.bool)
    if best is None:
        return SamplerOutput(tokens, valid)
    values = torch.zeros(len(logits), 1 + (logits.shape[1] if best < 0 else best))
    logprobs = LogprobsTensors(values.long(), values, torch.ones_like(tokens))
    return SamplerOutput(tokens, valid, logprobs, values[:, 0])


def pair(
    capabilities: Capabilities,
    chosen: Any = None,
    companion: Any = None,
    *,
    companion_capabilities: Capabilities = EVERYTHING,
    mode: str = "raw_logprobs",
    ranks: bool = True,
) -> Sampler:
    """A sampler ``acme`` that can do no more than ``capabilities``, beside ``native``; both are native unless given."""
    need = Need(logprobs_mode=mode, logprob_ranks=ranks)  # type: ignore[arg-type]
    selection = selection_of(
        loaded("acme", chosen or NativeSampler(CPU, need), capabilities, need=need),
        loaded("native", companion or NativeSampler(CPU, need), companion_capabilities, need=need),
        need=need,
    )
    return Sampler(Negotiator(CPU, need), selection)


def _verifying(capabilities: Capabilities) -> VerifyCapabilities:
    """The same capabilities as those of a verifier, which verifies nothing unless they say so."""
    return (
        capabilities if isinstance(capabilities, VerifyCapabilities) else VerifyCapabilities.of(capabilities)
    )


def drafting(
    capabilities: Capabilities,
    chosen: Any = None,
    companion: Any = None,
    *,
    companion_capabilities: Capabilities | None = EVERYTHING,
    debug: bool = False,
) -> Sampler:
    """A sampler whose drafts and verifications are such a pair's; no companion where that has no capabilities."""
    native = NativeSampler(CPU, Need())
    other = None
    if companion_capabilities is not None:
        other = loaded("native", companion or native, _verifying(companion_capabilities), operation="verify")
    sampling = selection_of(loaded("acme", native, EVERYTHING))
    verification = selection_of(
        loaded("acme", chosen or native, _verifying(capabilities), operation="verify"),
        other,
        operation="verify",
    )
    return Sampler(Negotiator(CPU, Need(), debug=debug), sampling, verification)
