"""Filtered logits, which vLLM reads for log-probabilities of the modes ``processed_*`` and for sampling masks.

tokendraw draws and verifies without writing such logits. Where a batch needs them, they are written behind the draw or
the verification, from the thresholds of its rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendraw import PluginError, SamplerOutput, VerifyOutput, kept_mask

_INF = float("inf")


def may_need_processed(logprobs_mode: str, return_sampling_mask: bool) -> bool:
    """Return whether vLLM may read filtered logits at all."""
    from vllm.config.model import PROCESSED_LOGPROBS_MODES

    return bool(return_sampling_mask or logprobs_mode in PROCESSED_LOGPROBS_MODES)


def needs_processed(sampler: Any, return_logprobs: bool) -> bool:
    """Return whether vLLM reads the filtered logits of a batch.

    :param sampler: vLLM's ``Sampler``.
    :param return_logprobs: whether a request of the batch has log-probabilities.
    """
    mode = sampler.logprobs_mode if return_logprobs else ""
    return may_need_processed(mode, sampler.return_sampling_mask)


def drafts_need_processed(sampler: Any, requests: np.ndarray) -> bool:
    """Return whether vLLM reads the filtered logits of a batch with drafts.

    :param sampler: vLLM's ``Sampler``.
    :param requests: slots of the requests.
    """
    if not may_need_processed(sampler.logprobs_mode, sampler.return_sampling_mask):
        return False
    return needs_processed(sampler, sampler.get_logprobs_dims(requests) is not None)


def processed_logits(logits: Tensor, output: SamplerOutput | VerifyOutput, temperature: Tensor) -> Tensor:
    """Return logits [rows, V] float32 with -inf where a filter dropped the token, not divided by the temperature.

    :param logits: [rows, V], as the sampler got them. Not changed.
    :param output: of the draw or the verification, with thresholds.
    :param temperature: [rows] float32: a greedy row keeps all its logits, as in vLLM.
    """
    threshold, ceiling = output.threshold, output.ceiling
    if threshold is None:
        raise PluginError("filtered logits need the thresholds that the sampler was loaded for, found none")
    is_greedy = temperature == 0.0
    kept = kept_mask(
        logits,
        torch.where(is_greedy, -_INF, threshold),
        None if ceiling is None else torch.where(is_greedy, _INF, ceiling),
    )
    floats = torch.empty(logits.shape, dtype=torch.float32, device=logits.device).copy_(logits)
    return floats.masked_fill_(kept.logical_not_(), -_INF)
