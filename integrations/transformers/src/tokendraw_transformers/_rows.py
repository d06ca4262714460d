"""The rows of a batch and the sampler that draws for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tokendraw import InvalidParameterError, Need, Sampler, SamplerOutput, SamplingMetadata, SamplingParams
from tokendraw_transformers._loading import load_sampler


class BatchDrawer:
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
        self._params = params
        self._on_cpu = self._metadata(torch.device("cpu"))  # refuses bad values here and now
        self._sampler = sampler
        self._logprobs_mode = logprobs_mode
        self._loaded_by_device: dict[torch.device, tuple[Sampler, SamplingMetadata, Tensor]] = {}

    def draw(self, scores: Tensor, positions: Tensor) -> SamplerOutput:
        """Draw a token in each row.

        :param scores: [B, V] floating point.
        :param positions: [B] integer, on the device of the scores.
        """
        if scores.device not in self._loaded_by_device:
            self._loaded_by_device[scores.device] = self._load(scores.device)
        sampler, metadata, positions_in_metadata = self._loaded_by_device[scores.device]
        positions_in_metadata.copy_(positions)
        return sampler.sample(scores, metadata)

    def _load(self, device: torch.device) -> tuple[Sampler, SamplingMetadata, Tensor]:
        """Make the sampler, the metadata, and its tensor [B] for the positions of each step."""
        metadata = self._on_cpu if device.type == "cpu" else self._metadata(device)
        assert metadata.positions is not None
        orders = tuple(sorted({params.filter_order for params in self._params}))
        sampler = load_sampler(self._sampler, device, Need(filter_orders=orders), self._logprobs_mode)
        return sampler, metadata, metadata.positions

    def _metadata(self, device: torch.device) -> SamplingMetadata:
        return SamplingMetadata.from_params(self._params, device=device, positions=[0] * len(self._params))
