"""Calls of samplers and of providers around a test's backend, and how two answers are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

import tokendraw
from fake_candidates import EVERYTHING, LAPTOP
from tokendraw import LogprobsTensors, Need, SamplerOutput, SamplingMetadata, SamplingParams, operations
from tokendraw.calls.negotiator import Negotiator
from tokendraw.calls.routing import LoadedBackend, Selection
from tokendraw.operations.row_methods import Sampler
from tokendraw.plugin import Capabilities, VerifyCapabilities
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


def assert_same_rows(left: SamplerOutput, right: SamplerOutput, rows: Any = slice(None)) -> None:
    """Every output tensor holds the same bits in ``rows``."""
    pairs = {
        "token_ids": (left.token_ids, right.token_ids),
        "valid": (left.valid, right.valid),
        "log_kept_mass": (left.log_kept_mass, right.log_kept_mass),
    }
    if left.logprobs is not None and right.logprobs is not None:
        for name in ("token_ids", "logprobs", "ranks", "given_token_ids", "given_logprobs"):
            pairs[f"logprobs.{name}"] = (getattr(left.logprobs, name), getattr(right.logprobs, name))
    for name, (one, other) in pairs.items():
        assert (one is None) == (other is None), name
        if one is not None and other is not None:
            assert torch.equal(one[rows], other[rows]), name


# Selections of a test's backends, without a negotiation.


def loaded(
    name: str, backend: Any, capabilities: Any = None, *, operation: str = "sample", need: Any = None
) -> LoadedBackend:
    """Build a loaded backend; without capabilities it serves every call."""
    if capabilities is None:
        return LoadedBackend(name, backend)
    record = operations.find_operation(operation)
    return LoadedBackend.of(record, name, backend, capabilities, record.need() if need is None else need)


def selection_of(
    backend: LoadedBackend,
    companion: LoadedBackend | None = None,
    *,
    operation: str = "sample",
    need: Any = None,
) -> Selection:
    """Build a selection of a backend and a companion, without decisions."""
    resolution = Resolution(
        operation=operation,
        host=LAPTOP,
        need=operations.find_operation(operation).need() if need is None else need,
        choice=Choice(),
        chosen=backend.name,
        companion=None if companion is None else companion.name,
        decisions=(),
    )
    return Selection(resolution=resolution, backend=backend, companions=(companion,) if companion else ())


def selected(provider: Any, operation: str | None = None) -> Selection:
    """Return the selection of a provider's operation, by default the first."""
    record = provider._operations[0] if operation is None else operations.find_operation(operation)
    return provider._negotiator.select(record)


def select(
    provider: Any, backend: LoadedBackend | None = None, *, operation: str | None = None, **changes: Any
) -> None:
    """Replace the selected backend of a provider or other fields of the selection."""
    if backend is not None:
        changes["backend"] = backend
    selection = selected(provider, operation)
    provider._negotiator.selections[selection.resolution.operation] = replace(selection, **changes)


def substitute(provider: Any, backend: Any, name: str | None = None) -> None:
    """Replace the object of a provider's selected backend, and keep the capabilities."""
    loaded = selected(provider).backend
    select(provider, replace(loaded, object=backend, name=name or loaded.name))


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
    selection = selection_of(
        loaded("acme", chosen or NativeSampler(CPU, need), capabilities, need=need),
        loaded("native", companion or NativeSampler(CPU, need), companion_capabilities, need=need),
        need=need,
    )
    return Sampler(Negotiator(CPU, need, selected=[selection]))


def _verifier_capabilities(capabilities: Capabilities) -> VerifyCapabilities:
    """Convert the capabilities of a sampler into those of a verifier without modes and kinds of drafts."""
    if isinstance(capabilities, VerifyCapabilities):
        return capabilities
    return VerifyCapabilities.of(capabilities)


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
    other = None
    if companion_capabilities is not None:
        capabilities_of_other = _verifier_capabilities(companion_capabilities)
        other = loaded("native", companion or native, capabilities_of_other, operation="verify")
    verification = selection_of(
        loaded("acme", chosen or native, _verifier_capabilities(capabilities), operation="verify"),
        other,
        operation="verify",
    )
    sampling = selection_of(loaded("acme", native, EVERYTHING))
    return Sampler(Negotiator(CPU, Need(), debug=debug, selected=[sampling, verification]))


# Providers of any operation.


def provider_of(
    operation: str, backend: Any, capabilities: Any, companion: Any = None, companion_capabilities: Any = None
) -> Any:
    """Build the provider of ``load(operation, "acme")`` around ``backend``, with an optional companion "beta"."""
    record = operations.find_operation(operation)
    selection = selection_of(
        loaded("acme", backend, capabilities, operation=operation),
        None if companion is None else loaded("beta", companion, companion_capabilities, operation=operation),
        operation=operation,
    )
    return record.provider()(Negotiator(CPU, record.need(), selected=[selection]))


# Mistakes of callers.


def recording(need: Need | None = None, **settings: Any) -> tuple[Sampler, Recorded]:
    """Return a sampler ``acme`` and the recording backend."""
    backend, need = Recorded(3), need or Need()
    selection = selection_of(loaded("acme", backend), need=need)
    return Sampler(Negotiator(CPU, need, selected=[selection], **settings)), backend


def refused(message: str, error: type[ValueError], call: Callable[[], object]) -> None:
    """Require that ``call`` raises ``error`` with exactly ``message``."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole message is compared below)
        call()
    assert type(caught.value) is error
    assert str(caught.value) == message
