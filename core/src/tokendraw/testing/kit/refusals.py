"""What a sampler does not advertise has to be refused, in words, before it is called."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Never

import torch

from tokendraw._exchange.capabilities import Capabilities
from tokendraw._exchange.metadata import SamplingMetadata
from tokendraw._exchange.params import SamplingParams
from tokendraw._loading.resolve import decide
from tokendraw._loading.sampler import Sampler
from tokendraw._messages.errors import SamplerUnavailableError
from tokendraw._resolution.candidate import Choice, Resolution
from tokendraw._serving.routing import Member, Serving
from tokendraw.operations.verify import calls
from tokendraw.operations.verify.capabilities import VerifyCapabilities
from tokendraw.operations.verify.drafts import Drafts
from tokendraw.testing.kit.property import Ask
from tokendraw.testing.kit.subject import Subject
from tokendraw.testing.kit.trial import Violation


class _Tripwire:
    """Stands where the sampler would: to reach it is the failure."""

    def sample(self, logits: object, metadata: object) -> Never:
        raise Violation(
            "a request beyond the capabilities needs to be refused, found it handed to the sampler"
        )

    def verify(self, target_logits: object, drafts: object, metadata: object, *, mode: str) -> Never:
        raise Violation(
            "a verification beyond the capabilities needs to be refused, found it handed to the sampler"
        )


def refused(subject: Subject, ask: Ask, operation: str = "sample") -> str:
    """The words in which the core refuses what ``ask`` is about.

    :raises Violation: it does not refuse.
    """
    capabilities: Any = subject.offered(operation)
    assert capabilities is not None
    orders = ask.need.filter_orders
    if not set(orders) & set(capabilities.filter_orders) and not ask.is_batch:
        orders = capabilities.filter_orders
    need = replace(ask.need, filter_orders=orders)
    choice = Choice(sampler=subject.name)
    try:
        resolution = decide([subject.candidate], subject.host, need, choice, operation=operation)
    except SamplerUnavailableError as error:
        return str(error)
    if not ask.is_batch:
        raise Violation(f"{need} needs to be refused, found it granted")
    modes = tuple(mode for mode in capabilities.logprobs_modes if mode == need.logprobs_mode)
    capabilities = replace(capabilities, logprobs_modes=modes)
    try:
        if operation == "sample":
            _sample(subject, ask, capabilities, resolution)
        else:
            _verify(subject, ask, capabilities, resolution)
    except SamplerUnavailableError as error:
        return str(error)
    raise AssertionError("unreachable: the tripwire raises")


def _sample(subject: Subject, ask: Ask, capabilities: Capabilities, resolution: Resolution) -> None:
    sampler = Sampler(
        name=subject.name,
        backend=_Tripwire(),
        resolution=resolution,
        device=subject.device,
        capabilities=capabilities,
    )
    params = ask.params or SamplingParams()
    metadata = SamplingMetadata.from_params([params], device=subject.device, positions=[0])
    sampler.sample(torch.zeros(1, 4, device=subject.device), metadata)


def _verify(subject: Subject, ask: Ask, capabilities: VerifyCapabilities, resolution: Resolution) -> None:
    """Two requests with a draft each, or one of them without; but for what is asked, as advertised."""
    counts = [1, 0] if ask.ragged else [1, 1]
    ids = torch.full((sum(counts),), -1 if ask.placeholder else 0, device=subject.device)
    kind = ask.kind or (*capabilities.draft_kinds, "chosen")[0]
    even = torch.full((len(ids), 4), 0.25, device=subject.device)
    drafts = Drafts.from_counts(
        ids,
        counts,
        draft_probs=even if kind == "probs" else None,
        draft_logits=even if kind == "logits" else None,
        any_placeholder=ask.placeholder,
    )
    rows = sum(counts) + len(counts)
    metadata = SamplingMetadata.from_params(
        [ask.params or SamplingParams()] * rows, device=subject.device, positions=list(range(rows))
    )
    mode = ask.mode or (*capabilities.verify_modes, "rejection")[0]
    serving = Serving(
        resolution=resolution, chosen=Member(subject.name, _Tripwire()), capabilities=capabilities
    )
    calls.verify(serving, torch.zeros(rows, 4, device=subject.device), drafts, metadata, mode)
