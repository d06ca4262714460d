"""Stands in for the drafts that SGLang's target model verifies."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class EagleVerifyInput:
    draft_token: torch.Tensor
    custom_mask: Any
    positions: torch.Tensor
    retrieve_index: torch.Tensor
    retrieve_next_token: torch.Tensor
    retrieve_next_sibling: torch.Tensor
    retrieve_cum_len: Any
    spec_steps: int
    topk: int
    draft_token_num: int
    capture_hidden_mode: Any
    seq_lens_sum: Any
    seq_lens_cpu: Any
    draft_probs: torch.Tensor | None = None

    @property
    def max_tree_depth(self):
        return self.spec_steps + 1

    @property
    def tree_topk(self):
        return self.topk
