"""Stands in for the output of SGLang's forward pass, which the sampler reads and completes."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class LogitsProcessorOutput:
    next_token_logits: torch.Tensor
    next_token_logprobs: torch.Tensor | None = None
    next_token_top_logprobs_val: list | None = None
    next_token_top_logprobs_idx: list | None = None
    next_token_token_ids_logprobs_val: list | None = None
    next_token_token_ids_logprobs_idx: list | None = None
    sampling_mask_output: Any = None
