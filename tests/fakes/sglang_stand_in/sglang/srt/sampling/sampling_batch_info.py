"""Stands in for SGLang's parameters of a batch: columns on the device, and facts on the host."""

from dataclasses import dataclass, replace

import torch
from sglang.srt.sampling.sampling_params import TOP_K_ALL


@dataclass
class SamplingBatchInfo:
    temperatures: torch.Tensor
    top_ps: torch.Tensor
    top_ks: torch.Tensor
    min_ps: torch.Tensor
    is_all_greedy: bool
    is_any_greedy: bool
    need_top_p_sampling: bool
    need_top_k_sampling: bool
    need_min_p_sampling: bool
    max_top_k: int | None
    sampling_seed: torch.Tensor | None = None
    sampling_mask_batch_indices: torch.Tensor | None = None
    sampling_support_logprobs_capture_indices: torch.Tensor | None = None
    acc_additive_penalties: torch.Tensor | None = None
    acc_scaling_penalties: torch.Tensor | None = None
    logit_bias: torch.Tensor | None = None
    has_watermark_candidates: bool = False

    @classmethod
    def from_schedule_batch(cls, batch, vocab_size):
        params = [request.sampling_params for request in batch.reqs]
        limits = [p.top_k for p in params]
        return cls(
            temperatures=torch.tensor([p.temperature for p in params], device=batch.device).view(-1, 1),
            top_ps=torch.tensor([p.top_p for p in params], device=batch.device),
            top_ks=torch.tensor(limits, dtype=torch.int32, device=batch.device),
            min_ps=torch.tensor([p.min_p for p in params], device=batch.device),
            is_all_greedy=all(k <= 1 for k in limits),
            is_any_greedy=any(k <= 1 for k in limits),
            need_top_p_sampling=any(p.top_p != 1.0 for p in params),
            need_top_k_sampling=any(k != TOP_K_ALL for k in limits),
            need_min_p_sampling=any(p.min_p > 0 for p in params),
            max_top_k=max(limits) if limits and max(limits) < TOP_K_ALL else None,
        )

    def __len__(self):
        return len(self.temperatures)

    def filter_batch(self, keep_indices, keep_indices_device):
        raise NotImplementedError

    def merge_batch(self, other):
        raise NotImplementedError

    def copy_for_forward(self):
        return replace(self)
