"""Stands in for SGLang's selection of log-probabilities: of drawn tokens, of the best, of tokens by id."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class LogprobResult:
    token_logprobs: torch.Tensor
    top: list[Any]
    by_id: list[Any]

    def write_output_to(self, logits_output):
        logits_output.next_token_logprobs = self.token_logprobs
        logits_output.next_token_top_logprobs_val = [values for values, _ in self.top]
        logits_output.next_token_top_logprobs_idx = [ids for _, ids in self.top]
        logits_output.next_token_token_ids_logprobs_val = self.by_id


class OutputLogprobProcessor:
    def compute_logprobs(self, logprobs, top_logprobs_nums, token_ids_logprobs, batch_next_token_ids):
        logprobs.clamp_(min=torch.finfo(logprobs.dtype).min)
        rows = torch.arange(len(logprobs))
        return LogprobResult(
            token_logprobs=logprobs[rows, batch_next_token_ids],
            top=[tuple(row.topk(n)) for row, n in zip(logprobs, top_logprobs_nums, strict=True)],
            by_id=[row[ids or []] for row, ids in zip(logprobs, token_ids_logprobs, strict=True)],
        )
