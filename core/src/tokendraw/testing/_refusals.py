"""What a sampler does not advertise has to be refused, in words, before it is called."""

from __future__ import annotations

from dataclasses import replace
from typing import Never

import torch

from tokendraw._candidate import Choice
from tokendraw._errors import SamplerUnavailableError
from tokendraw._metadata import SamplingMetadata
from tokendraw._resolution import decide
from tokendraw._sampler import Sampler
from tokendraw.testing._property import Ask
from tokendraw.testing._subject import Subject
from tokendraw.testing._trial import Violation


class _Tripwire:
    """Stands where the sampler would: to reach it is the failure."""

    def sample(self, logits: object, metadata: object, *, inplace: bool = False) -> Never:
        raise Violation(
            "a request beyond the capabilities needs to be refused, found it handed to the sampler"
        )


def refused(subject: Subject, ask: Ask) -> str:
    """The words in which the core refuses what ``ask`` is about.

    :raises Violation: it does not refuse.
    """
    capabilities = subject.capabilities
    orders = ask.need.filter_orders
    if not set(orders) & set(capabilities.filter_orders) and ask.params is None:
        orders = capabilities.filter_orders
    need = replace(ask.need, filter_orders=orders)
    choice = Choice(sampler=subject.name)
    try:
        resolution = decide([subject.candidate], subject.host, need, choice)
    except SamplerUnavailableError as error:
        return str(error)
    if ask.params is None:
        raise Violation(f"{need} needs to be refused, found it granted")
    modes = tuple(mode for mode in capabilities.logprobs_modes if mode == need.logprobs_mode)
    sampler = Sampler(
        name=subject.name,
        backend=_Tripwire(),
        resolution=resolution,
        device=subject.device,
        capabilities=replace(capabilities, logprobs_modes=modes),
    )
    metadata = SamplingMetadata.from_params([ask.params], device=subject.device, positions=[0])
    try:
        sampler.sample(torch.zeros(1, 4, device=subject.device), metadata)
    except SamplerUnavailableError as error:
        return str(error)
    raise AssertionError("unreachable: the tripwire raises")
