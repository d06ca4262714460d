"""The call: bring parameters into range, make clean probabilities, and draw by one or two operators of aiter.

============================  =========================================================================================
rows                          operators
============================  =========================================================================================
no filter, top-p              ``top_p_sampling_from_probs``
top-k, both in order "joint"  ``top_k_top_p_sampling_from_probs``, which is joint: p counts the unfiltered mass
both in order "top_k_first"   ``top_k_renorm_probs``, then ``top_p_sampling_from_probs``
both orders in one batch      the same two, with the p of joint rows restated for what top-k left
============================  =========================================================================================

The operators keep a token if fewer than k tokens lie above it and weigh less than p together: all ties stay, a k of V
and a p above the sum of a row are off. For a row without mass, releases before 0.1.17 read out of bounds (pull request
3658), so every row gets some. The seed comes from torch's generator of the device, taken on the host.
"""

from __future__ import annotations

import importlib
from functools import partial

import torch
from torch import Tensor

from tokendraw import BatchFacts, Need, SamplerOutput, SamplingMetadata
from tokendraw.probabilities import MAX_ELEMENTS, OFF_TOP_P, Filters, relative, sample_in_parts, top_p_of_kept


class AiterSampler:
    """AMD's aiter kernels. Made by ``tokendraw.load_sampler("aiter")``.

    :param device: where it draws.
    :param max_elements: logits in one launch; more rows are drawn in parts.
    """

    def __init__(self, device: torch.device, need: Need, *, max_elements: int = MAX_ELEMENTS) -> None:
        importlib.import_module("aiter.ops.sampling")  # registers the operators
        self._ops = torch.ops.aiter
        self._max_elements = max_elements

    @torch.no_grad()
    def sample(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Draw a token in each row; see :class:`tokendraw.plugin.SamplerBackend`."""
        vocab_size = logits.shape[1]
        draw = partial(self._draw, _largest_top_k(metadata.facts, vocab_size))
        wanted = Filters.of(metadata, vocab_size)
        return sample_in_parts(logits, wanted, draw, max_elements=self._max_elements)

    def _draw(self, largest_top_k: int, logits: Tensor, filters: Filters) -> tuple[Tensor, Tensor]:
        y, valid = relative(logits)
        if filters.temperature is not None:
            y.div_(filters.temperature.unsqueeze(-1))
        probs = torch.softmax(y, -1)
        top_k, top_p = filters.top_k, filters.top_p
        if top_k is None:
            return self._nucleus(probs, top_p), valid
        if top_p is None or (filters.joint is not None and not filters.any_top_k_first):
            tokens: Tensor = self._ops.top_k_top_p_sampling_from_probs(
                probs, None, top_k, largest_top_k, top_p, OFF_TOP_P
            )
            return tokens.long(), valid
        # The operator sizes its scratch by the number, and writes to it by the tensor (pull request 5191).
        kept_probabilities = self._ops.top_k_renorm_probs(probs, top_k, largest_top_k)
        if filters.joint is not None:
            top_p = top_p_of_kept(top_p, filters.joint, probs.amax(-1) / kept_probabilities.amax(-1))
        return self._nucleus(kept_probabilities, top_p), valid

    def _nucleus(self, probs: Tensor, top_p: Tensor | None) -> Tensor:
        tokens: Tensor = self._ops.top_p_sampling_from_probs(probs, None, top_p, OFF_TOP_P)
        return tokens.long()


def _largest_top_k(facts: BatchFacts, vocab_size: int) -> int:
    """Return an upper bound of the largest k in :attr:`Filters.top_k`, where a row without top-k has V."""
    if facts.all_top_k and not facts.any_greedy and facts.max_top_k is not None:
        return min(facts.max_top_k, vocab_size)
    return vocab_size
