"""The rows of a batch and the sampler that draws for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tokendraw import InvalidParameterError, Need, Sampler, SamplerOutput, SamplingMetadata, SamplingParams
from tokendraw_transformers._loading import loaded


class Rows:
    """The sampling parameters of a batch. The sampler and the tensors are made at the first draw, on its device."""

    def __init__(
        self,
        params: Sequence[SamplingParams],
        sampler: str | Sampler | None,
        logprobs_mode: str | None = None,
    ) -> None:
        if isinstance(sampler, Sampler) and logprobs_mode is not None:
            raise InvalidParameterError(
                f"'logprobs_mode' needs a sampler that is yet to be loaded, found {sampler!r}. Pass logprobs_mode to "
                "tokendraw.load_sampler."
            )
        SamplingMetadata.from_params(params, positions=[0] * len(params))  # refuses bad values here and now
        self._params = params
        self._sampler = sampler
        self._logprobs_mode = logprobs_mode
        self._ready: dict[torch.device, tuple[Sampler, SamplingMetadata]] = {}

    def draw(self, scores: Tensor, positions: Tensor) -> SamplerOutput:
        """Draw one token a row.

        :param scores: [B, V] floating point.
        :param positions: [B] int64, on the device of the scores.
        """
        if scores.device not in self._ready:
            self._ready[scores.device] = self._load(scores.device, positions)
        sampler, metadata = self._ready[scores.device]
        return sampler.sample(scores, metadata.with_positions(positions))

    def _load(self, device: torch.device, positions: Tensor) -> tuple[Sampler, SamplingMetadata]:
        metadata = SamplingMetadata.from_params(self._params, device=device, positions=positions)
        orders = tuple(sorted({params.filter_order for params in self._params}))
        need = Need(filter_orders=orders)
        return loaded(self._sampler, device, need, self._logprobs_mode), metadata
