"""Stands in for SGLang's sampler: argmax, or a draw without filters with its backend ``pytorch``."""

from collections import namedtuple

import torch
from sglang.srt.layers.logprob_processor import OutputLogprobProcessor
from sglang.srt.runtime_context import get_exec
from torch import nn

SGLANG_RETURN_ORIGINAL_LOGPROB = False
_FACTORIES = {}
_SamplingMaskCapture = namedtuple("_SamplingMaskCapture", "weights token_ids selected_weight batch_rows")


class Sampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.rl_on_policy_target = get_exec().deterministic.rl_on_policy_target
        self.output_logprob_processor = OutputLogprobProcessor()

    def _preprocess_logits(self, logits, sampling_info):
        return logits

    def forward(
        self,
        logits_output,
        sampling_info,
        return_logprob,
        top_logprobs_nums,
        token_ids_logprobs,
        positions,
        *,
        logprob_logits=None,
    ):
        logits = self._preprocess_logits(logits_output.next_token_logits, sampling_info)
        shown = logits
        if sampling_info.is_all_greedy:
            token_ids = logits.argmax(-1)
        else:
            shown = shown if SGLANG_RETURN_ORIGINAL_LOGPROB else shown / sampling_info.temperatures
            token_ids = self._drawn(torch.softmax(logits / sampling_info.temperatures, -1), sampling_info)
        if return_logprob:
            self.output_logprob_processor.compute_logprobs(
                shown.log_softmax(-1), top_logprobs_nums, token_ids_logprobs, token_ids
            ).write_output_to(logits_output)
        self._sync_token_ids_across_tp(token_ids, sampling_info)
        return token_ids

    def _drawn(self, probs, info):
        if get_exec().kernel.sampling_backend != "pytorch":
            raise ValueError(f"Invalid sampling backend: {get_exec().kernel.sampling_backend}")
        assert info.sampling_seed is None
        return torch.multinomial(probs, 1).view(-1).to(torch.int32)

    def _sync_token_ids_across_tp(self, batch_next_token_ids, sampling_info):
        assert batch_next_token_ids.dim() == 1

    def _build_sampling_mask_output(
        self, batch_next_token_ids, sampling_mask_capture, support_capture_indices
    ):
        raise NotImplementedError


def register_sampler_backend(backend, factory):
    _FACTORIES[backend] = factory


def create_sampler(backend=None):
    backend = backend or get_exec().kernel.sampling_backend
    return _FACTORIES[backend]() if backend in _FACTORIES else Sampler()
