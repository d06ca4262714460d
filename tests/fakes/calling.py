"""Calls of samplers and of providers around a test's backend, and values read off the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

import tokendraw
from fake_candidates import EVERYTHING, LAPTOP
from tokendraw import LogprobsTensors, Need, SamplerOutput, SamplingMetadata, SamplingParams, operations
from tokendraw.calls.calls import Calls
from tokendraw.calls.routing import BuiltProvider, Serving
from tokendraw.calls.session import Session
from tokendraw.plugin import Capabilities, Host
from tokendraw.providers.provider import Provider
from tokendraw.providers.sampler import Sampler
from tokendraw.resolution import Choice, Resolution
from tokendraw_native.sampler import NativeSampler


def call(
    sampler: tokendraw.Sampler,
    logits: Any,
    params: SamplingParams | Sequence[SamplingParams],
    positions: Any = None,
    row_index: Any = None,
) -> SamplerOutput:
    """Sample ``logits`` (an array or a tensor) on the sampler's device; a single SamplingParams serves every row."""
    logits = torch.as_tensor(logits)
    if isinstance(params, SamplingParams):
        params = [params] * len(logits)
    if positions is None and any(p.seed is not None for p in params):
        positions = torch.arange(len(logits))
    metadata = SamplingMetadata.from_params(
        params, device=sampler.device, positions=positions, row_index=row_index
    )
    return sampler.sample(logits.to(sampler.device), metadata)


def tokens(output: SamplerOutput) -> list[int]:
    """The drawn ids."""
    return output.token_ids.tolist()


def uniform_tokens(sampler: tokendraw.Sampler, seeds: Any, positions: Any, size: int = 1000) -> list[int]:
    """Tokens of flat rows: a fingerprint of the noise."""
    params = [SamplingParams(seed=seed) for seed in seeds]
    return tokens(call(sampler, torch.zeros(len(seeds), size), params, positions))


def shown_values(output: SamplerOutput) -> np.ndarray:
    """Return the value of every token under the logprobs mode, from a call with ``logprobs=-1``: [B, V]."""
    assert output.logprobs is not None
    ids, shown = output.logprobs.token_ids[:, 1:].cpu().numpy(), output.logprobs.logprobs[:, 1:].cpu().numpy()
    values = np.full(ids.shape, np.nan, np.float32)
    np.put_along_axis(values, ids, shown, axis=1)
    assert not np.isnan(values).any(), "logprobs=-1 has to show every token once, and no NaN"
    return values


def kept_sets(sampler: tokendraw.Sampler, logits: Any, params: Any) -> np.ndarray:
    """[B, V] bool, read off the ``processed_logprobs`` of all V tokens."""
    return np.isfinite(shown_values(call(sampler, logits, params)))


def assert_same_rows(left: SamplerOutput, right: SamplerOutput, rows: Any = slice(None)) -> None:
    """Every output tensor holds the same bits in ``rows``."""
    pairs = {
        "token_ids": (left.token_ids, right.token_ids),
        "valid": (left.valid, right.valid),
        "log_kept_mass": (left.log_kept_mass, right.log_kept_mass),
    }
    if left.logprobs is not None and right.logprobs is not None:
        for name in ("token_ids", "logprobs", "ranks"):
            pairs[f"logprobs.{name}"] = (getattr(left.logprobs, name), getattr(right.logprobs, name))
    for name, (one, other) in pairs.items():
        assert (one is None) == (other is None), name
        if one is not None and other is not None:
            assert torch.equal(one[rows], other[rows]), name


# A pair of samplers, and a sampler that keeps its arguments.


CPU = torch.device("cpu")


@dataclass
class Recorded:
    """A sampler that keeps the arguments, and draws a constant token or the tokens of ``backend``."""

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
    """Return a constant token for all rows, with logprobs of 0 on request."""
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
    """Pair a sampler ``acme`` of limited ``capabilities`` with ``native``; the default backend of each is native."""
    need = Need(logprobs_mode=mode, logprob_ranks=ranks)  # type: ignore[arg-type]
    serving = Serving(
        resolution=Resolution(
            operation="sample",
            host=LAPTOP,
            need=need,
            choice=Choice(),
            chosen="acme",
            companion="native",
            decisions=(),
        ),
        chosen=BuiltProvider("acme", chosen or NativeSampler(CPU, need)),
        companion=BuiltProvider("native", companion or NativeSampler(CPU, need)),
        capabilities=capabilities,
        companion_capabilities=companion_capabilities,
    )
    return Sampler(Session(CPU, need), serving)


def drafting(
    capabilities: Capabilities,
    chosen: Any = None,
    companion: Any = None,
    *,
    companion_capabilities: Capabilities | None = EVERYTHING,
    debug: bool = False,
) -> Sampler:
    """Pair the verifiers of a sampler likewise; a companion without capabilities is left out."""
    native = NativeSampler(CPU, Need())
    resolution = Resolution(
        operation="verify",
        host=LAPTOP,
        need=Need(),
        choice=Choice(),
        chosen="acme",
        companion="native" if companion_capabilities else None,
        decisions=(),
    )
    sampling = Serving(
        resolution=replace(resolution, operation="sample"),
        chosen=BuiltProvider("acme", native),
        capabilities=EVERYTHING,
    )
    verifying = Serving(
        resolution=resolution,
        chosen=BuiltProvider("acme", chosen or native),
        companion=BuiltProvider("native", companion or native) if companion_capabilities else None,
        capabilities=capabilities,
        companion_capabilities=companion_capabilities,
    )
    return Sampler(Session(CPU, Need(), debug=debug), sampling, verifying)


# Providers of any operation.


def provider_of(
    operation: str, backend: Any, capabilities: Any, companion: Any = None, companion_capabilities: Any = None
) -> Any:
    """Build the provider of ``load(operation, "acme")`` around ``backend``, with an optional companion "beta"."""
    record = operations.get(operation)
    resolution = Resolution(
        operation=operation,
        host=LAPTOP,
        need=record.need(),
        choice=Choice(),
        chosen="acme",
        companion=None if companion is None else "beta",
        decisions=(),
    )
    serving = Serving(
        resolution=resolution,
        chosen=BuiltProvider("acme", backend),
        companion=None if companion is None else BuiltProvider("beta", companion),
        capabilities=capabilities,
        companion_capabilities=companion_capabilities,
    )
    session = Session(CPU, record.need())
    return Provider(session, record, Calls(session, record, serving))


# Mistakes of callers.


def recording(need: Need | None = None, **settings: Any) -> tuple[Sampler, Recorded]:
    """Return a sampler ``acme`` and the recording backend."""
    backend = Recorded(3)
    resolution = Resolution(
        operation="sample",
        host=Host(),
        need=need or Need(),
        choice=Choice(),
        chosen="acme",
        companion=None,
        decisions=(),
    )
    serving = Serving(resolution=resolution, chosen=BuiltProvider("acme", backend))
    return Sampler(Session(CPU, resolution.need, **settings), serving), backend


def refused(message: str, error: type[ValueError], call: Callable[[], object]) -> None:
    """Require that ``call`` raises ``error`` with exactly ``message``."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole message is compared below)
        call()
    assert type(caught.value) is error
    assert str(caught.value) == message
