"""Stands in for SGLang's sampler: argmax, or a draw by a sort with its backend ``pytorch`` or ``flashinfer``."""

import torch
from sglang.srt.layers.logprob_processor import OutputLogprobProcessor
from sglang.srt.runtime_context import get_exec
from torch import nn

SGLANG_RETURN_ORIGINAL_LOGPROB = False
_FACTORIES = {}


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
        shown = logits if logprob_logits is None else logprob_logits
        if sampling_info.is_all_greedy:
            token_ids = logits.argmax(-1)
        else:
            shown = shown if SGLANG_RETURN_ORIGINAL_LOGPROB else shown / sampling_info.temperatures
            token_ids = self._drawn_by_sorting(
                torch.softmax(logits / sampling_info.temperatures, -1), sampling_info
            )
        if return_logprob:
            self.output_logprob_processor.compute_logprobs(
                shown.log_softmax(-1), top_logprobs_nums, token_ids_logprobs, token_ids
            ).write_output_to(logits_output)
        self._sync_token_ids_across_tp(token_ids, sampling_info)
        if sampling_info.sampling_mask_batch_indices is not None:
            logits_output.sampling_mask_output = token_ids[sampling_info.sampling_mask_batch_indices]
        return token_ids

    def _drawn_by_sorting(self, probs, info):
        backend = get_exec().kernel.sampling_backend
        if backend not in ("pytorch", "flashinfer"):
            raise ValueError(f"Invalid sampling backend: {backend}")
        if backend == "flashinfer":
            assert info.sampling_seed is None
        probs, order = probs.sort(dim=-1, descending=True)
        places, before = torch.arange(probs.shape[1]), probs.cumsum(-1) - probs
        dropped = (places >= info.top_ks[:, None]) | (before > info.top_ps[:, None])
        dropped |= probs < probs[:, :1] * info.min_ps[:, None]
        if info.sampling_seed is not None:
            torch.manual_seed(int(info.sampling_seed[0]))
        drawn = torch.multinomial(probs.masked_fill(dropped, 0.0), 1)
        return order.gather(1, drawn).view(-1).to(torch.int32)

    def _sync_token_ids_across_tp(self, batch_next_token_ids, sampling_info):
        assert batch_next_token_ids.dim() == 1


def register_sampler_backend(backend, factory):
    _FACTORIES[backend] = factory


def create_sampler(backend=None):
    backend = backend or get_exec().kernel.sampling_backend
    return _FACTORIES[backend]() if backend in _FACTORIES else Sampler()
