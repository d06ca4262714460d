"""The rows of a batch, the sampler that draws for them, and what a trainer asks of each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw import (
    InvalidParameterError,
    KeptIds,
    Need,
    Sampler,
    SamplerOutput,
    SamplingMetadata,
    SamplingParams,
    kept_ids,
)
from tokendraw_transformers._loading import load_sampler


class StepDetails(NamedTuple):
    """What a trainer asks of a step."""

    kept: KeptIds | None
    """The kept ids of each row."""
    entropy: Tensor | None
    """[B] float32, in nats."""


class BatchDrawer:
    """The sampling parameters of a batch. The sampler and the tensors are made at the first draw, on its device."""

    def __init__(
        self,
        params: Sequence[SamplingParams],
        sampler: str | Sampler | None,
        logprobs_mode: str | None = None,
        *,
        max_kept: int | None = None,
        has_entropy: bool = False,
    ) -> None:
        """Check the parameters.

        :param max_kept: how many of the kept ids :meth:`details` lists; None: none.
        :param has_entropy: whether it has entropies.
        """
        if isinstance(sampler, Sampler) and logprobs_mode is not None:
            raise InvalidParameterError(
                f"'logprobs_mode' needs a sampler that is yet to be loaded, found {sampler!r}. Pass logprobs_mode to "
                "tokendraw.load_sampler."
            )
        self._params = params
        self._on_cpu = self._metadata(torch.device("cpu"))  # refuses bad values here and now
        self._sampler = sampler
        self._logprobs_mode = logprobs_mode
        self._max_kept = None if max_kept is None else _checked_max_kept(max_kept)
        self._has_entropy = has_entropy
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

    def details(self, scores: Tensor, output: SamplerOutput) -> StepDetails | None:
        """Look again at the rows of the last draw; None if nothing was asked for.

        :raises InvalidParameterError: kept ids are asked of a sampler that was loaded without thresholds.
        """
        kept = entropy = None
        if self._max_kept is not None:
            if output.threshold is None:
                raise InvalidParameterError(
                    f"'kept_ids' needs a sampler with thresholds, found {self._sampler!r}. Load it with "
                    "tokendraw.Need(threshold=True), or pass its name."
                )
            kept = kept_ids(scores, output.threshold, self._max_kept, output.ceiling)
        if self._has_entropy:
            sampler, metadata, _ = self._loaded_by_device[scores.device]
            entropy = sampler.score(scores, output.token_ids, metadata).entropy
        return None if kept is None and entropy is None else StepDetails(kept, entropy)

    def _load(self, device: torch.device) -> tuple[Sampler, SamplingMetadata, Tensor]:
        """Make the sampler, the metadata, and its tensor [B] for the positions of each step."""
        metadata = self._on_cpu if device.type == "cpu" else self._metadata(device)
        assert metadata.positions is not None
        orders = tuple(sorted({params.filter_order for params in self._params}))
        need = Need(filter_orders=orders, threshold=self._max_kept is not None)
        sampler = load_sampler(self._sampler, device, need, self._logprobs_mode)
        return sampler, metadata, metadata.positions

    def _metadata(self, device: torch.device) -> SamplingMetadata:
        return SamplingMetadata.from_params(self._params, device=device, positions=[0] * len(self._params))


def _checked_max_kept(value: int) -> int:
    """Check the argument ``kept_ids`` of ``generate``."""
    if type(value) is not int or value < 1:
        raise InvalidParameterError(f"'kept_ids' needs an integer >= 1 or None, found {value!r}.")
    return value
