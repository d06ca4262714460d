"""Stands in for SGLang's selection of log-probabilities: of drawn tokens, of the best, of tokens by id."""

import os
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class LogprobResult:
    token_logprobs: torch.Tensor | None = None
    top_logprobs_val: list[Any] | None = None
    top_logprobs_idx: list[Any] | None = None
    token_ids_logprobs_val: list[Any] | None = None
    token_ids_logprobs_idx: list[Any] | None = None

    def write_output_to(self, logits_output):
        for name in ("logprobs", "top_logprobs_val", "top_logprobs_idx"):
            if (values := getattr(self, name if "top" in name else "token_logprobs")) is not None:
                setattr(logits_output, f"next_token_{name}", values)
        if self.token_ids_logprobs_val is not None:
            logits_output.next_token_token_ids_logprobs_val = self.token_ids_logprobs_val
            logits_output.next_token_token_ids_logprobs_idx = self.token_ids_logprobs_idx


class OutputLogprobProcessor:
    def compute_logprobs(self, logprobs, top_logprobs_nums, token_ids_logprobs, batch_next_token_ids):
        logprobs.clamp_(min=torch.finfo(logprobs.dtype).min)
        result = LogprobResult(token_logprobs=logprobs[torch.arange(len(logprobs)), batch_next_token_ids])
        if any(n > 0 for n in top_logprobs_nums):
            top = [row.topk(n) for row, n in zip(logprobs, top_logprobs_nums, strict=True)]
            result.top_logprobs_val, result.top_logprobs_idx = map(list, zip(*top, strict=True))
        if any(ids is not None for ids in token_ids_logprobs):
            result.token_ids_logprobs_idx = [ids or [] for ids in token_ids_logprobs]
            result.token_ids_logprobs_val = [
                row[ids] for row, ids in zip(logprobs, result.token_ids_logprobs_idx, strict=True)
            ]
        return result


def compute_spec_logprobs(batch, logits_output, predict, *, accept_index=None, chain_stride=None):
    info, rows = batch.sampling_info, accept_index.long().view(-1)
    logits = logits_output.next_token_logits[rows]
    if not (info.is_all_greedy or os.environ.get("SGLANG_RETURN_ORIGINAL_LOGPROB") == "true"):
        logits = logits / info.temperatures.repeat_interleave(accept_index.shape[1], 0)
    requests, depth = accept_index.shape
    wanted = (batch.top_logprobs_nums or [0] * requests, batch.token_ids_logprobs or [None] * requests)
    lists = [[entry for entry in entries for _ in range(depth)] for entries in wanted]
    result = OutputLogprobProcessor().compute_logprobs(logits.log_softmax(-1), *lists, predict[rows].long())
    result.write_output_to(logits_output)
    logits_output.next_token_logprobs = result.token_logprobs.view(requests, depth)
