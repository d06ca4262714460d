"""The sampler that SGLang calls: SGLang's own, which has tokendraw draw where a batch is to be drawn from.

The batches that it leaves to SGLang, and all after a call that failed, take the way that they take without the adapter.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from sglang.srt.layers import sampler as engine
from sglang.srt.runtime_context import get_exec
from torch import Tensor

import tokendraw
from tokendraw_sglang._messages import gone_on, log, spoken
from tokendraw_sglang._metadata import Batches
from tokendraw_sglang._own_backend import own_backend
from tokendraw_sglang._warmup import warm_up


def load() -> tuple[TokendrawSampler, str]:
    """Load the best sampler for the device, and make SGLang's sampler of it.

    :returns: the sampler, and the name and version of the plugin that draws.
    :raises SamplerUnavailableError: there is no plugin that can draw here, or not the one that was asked for.
    """
    draws = tokendraw.load_sampler(need=tokendraw.Need(filter_orders=("joint",)))
    versions = {found.name: found.version for found in tokendraw.discover()}
    return TokendrawSampler(draws), f"{draws.name} {versions[draws.name]}"


class TokendrawSampler(engine.Sampler):  # type: ignore[misc]
    """SGLang's sampler with tokendraw's draws."""

    def __init__(self, draws: tokendraw.Sampler) -> None:
        super().__init__()
        self._draws: tokendraw.Sampler | None = draws
        """None: a call has failed, and SGLang draws."""
        self._batches = Batches()
        self._is_warm = False
        self._preprocessed: Tensor | None = None
        """Logits that SGLang's processors have run on already."""

    def forward(
        self,
        logits_output: Any,
        sampling_info: Any,
        return_logprob: bool,
        top_logprobs_nums: list[int],
        token_ids_logprobs: list[Any],
        positions: Tensor,
        **more: Any,
    ) -> Tensor:
        """Draw a token a row, and fill in the log-probabilities that SGLang asks for, as its own sampler does.

        :param logits_output: with ``next_token_logits`` [B, V], which may be overwritten.
        :param sampling_info: a ``SamplingBatchInfo`` of B rows.
        :param positions: [B] integer: length of each sequence less one.
        :param more: what else SGLang may pass, as ``logprob_logits`` of a watermark; with it the batch is SGLang's.
        :returns: [B] int32; int64 from SGLang where all rows are greedy.
        """
        logits = logits_output.next_token_logits
        rest = (return_logprob, top_logprobs_nums, token_ids_logprobs, positions)
        self._warm_up(logits)
        if self._draws is None or self._is_left(sampling_info, more):
            return self._by_engine(logits_output, sampling_info, *rest, **more)
        logits = self._preprocess_logits(logits, sampling_info)
        try:
            token_ids = self._draw(logits, sampling_info, positions)
        except Exception as error:
            self._give_up(error)
            with self._as_preprocessed(logits):
                return self._by_engine(logits_output, sampling_info, *rest, **more)
        if return_logprob:
            self.output_logprob_processor.compute_logprobs(
                _logprobs(logits, sampling_info), top_logprobs_nums, token_ids_logprobs, token_ids
            ).write_output_to(logits_output)
        self._sync_token_ids_across_tp(token_ids, sampling_info)
        return token_ids

    def _is_left(self, info: Any, more: dict[str, Any]) -> bool:
        """Return whether a batch is SGLang's: what it asks for beside the tokens depends on how SGLang draws them."""
        return (
            info.is_all_greedy
            or info.sampling_mask_batch_indices is not None
            or any(value is not None for value in more.values())
        )

    def _draw(self, logits: Tensor, info: Any, positions: Tensor) -> Tensor:
        assert self._draws is not None
        output = self._draws.sample(logits, self._batches.metadata(info, positions))
        # As SGLang's own draws are, so that a rank that fails can still be synchronised with the others.
        return output.token_ids.to(torch.int32)

    def _by_engine(self, logits_output: Any, info: Any, *rest: Any, **more: Any) -> Tensor:
        """Draw as SGLang does without the adapter, which leaves ``sampling_seed`` empty."""
        info = info if info.sampling_seed is None else dataclasses.replace(info, sampling_seed=None)
        with get_exec().kernel.override(sampling_backend=own_backend()):
            token_ids: Tensor = super().forward(logits_output, info, *rest, **more)
        return token_ids

    def _preprocess_logits(self, logits: Tensor, sampling_info: Any) -> Tensor:
        if logits is self._preprocessed:
            return logits
        processed: Tensor = super()._preprocess_logits(logits, sampling_info)
        return processed

    @contextlib.contextmanager
    def _as_preprocessed(self, logits: Tensor) -> Iterator[None]:
        self._preprocessed = logits
        try:
            yield
        finally:
            self._preprocessed = None

    def _warm_up(self, logits: Tensor) -> None:
        """Compile on the first batch, which is that of SGLang's own warm-up request unless the server skips it."""
        if self._draws is None or self._is_warm:
            return
        self._is_warm = True
        try:
            warm_up(self._draws, logits)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        assert self._draws is not None
        log.warning("%s", gone_on(f"{self._draws.name!r} raised {spoken(error)}", own_backend()))
        self._draws = None


def _logprobs(logits: Tensor, info: Any) -> Tensor:
    """Return log-probabilities [B, V] after temperature and before filters; in SGLang's other mode before both."""
    if not engine.SGLANG_RETURN_ORIGINAL_LOGPROB:
        logits.div_(info.temperatures)
    return torch.log_softmax(logits, dim=-1)
