"""Whole steps of vLLM's V2 sampler from its sources: requests with their tokens, counted by vLLM's own kernels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import vllm_v2_sources


class Engine(vllm_v2_sources.Engine):
    """A V2 sampler with requests that grow; ``decode`` draws the next token of some, and ``edited`` only edits."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.tokens: dict[int, list[int]] = {}

    def start(self, slot: int, prompt: Sequence[int], output: Sequence[int] = (), **parameters: Any) -> None:
        """Add a request with its tokens to a slot."""
        states = self.states
        states.free_indices.remove(slot)
        states.free_indices.append(slot)  # the next one to be taken
        self.tokens[slot] = [*prompt, *output]
        states.add_request(str(slot), len(prompt), [*self.tokens[slot]], 0, 100)
        states.apply_staged_writes()
        self.sampler.add_request(slot, vllm_v2_sources.Parameters(**parameters))
        self.sampler.apply_staged_writes()

    def stop(self, slot: int) -> None:
        self.states.remove_request(str(slot))
        del self.tokens[slot]

    def rows(self, slots: Sequence[int]) -> Any:
        """The batch of the next tokens of requests."""
        batch = self.batch(slots, [len(self.tokens[slot]) - 1 for slot in slots])
        fed = [self.tokens[slot][-1] for slot in slots]
        batch.input_ids = torch.tensor(fed, dtype=torch.int32, device=self.device)
        return batch

    def decode(self, logits: torch.Tensor, slots: Sequence[int]) -> list[int]:
        """Draw a token for each request, and have vLLM count it."""
        from vllm.v1.worker.gpu.input_batch import post_update

        batch, states = self.rows(slots), self.states
        output = self.sampler(logits, batch)
        ones = torch.ones(len(slots), dtype=torch.int32, device=self.device)
        post_update(
            batch.idx_mapping,
            states.num_computed_tokens.gpu,
            states.last_sampled_tokens,
            self.sampler.penalties_state.output_bin_counts,
            output.sampled_token_ids,
            ones,
            ones * 0,
            None,
            states.all_token_ids.gpu,
            states.total_len.gpu,
        )
        ids: list[int] = output.sampled_token_ids.flatten().tolist()
        for slot, token in zip(slots, ids, strict=True):
            self.tokens[slot].append(token)
        return ids

    def edited(self, logits: torch.Tensor, slots: Sequence[int]) -> torch.Tensor:
        """The logits as vLLM's own kernels edit, divide and filter them: [rows, V] float32."""
        batch = self.rows(slots)
        edited: torch.Tensor = self.sampler.apply_sampling_params(
            logits,
            batch.expanded_idx_mapping,
            batch.idx_mapping,
            batch.idx_mapping_np,
            batch.positions,
            batch.input_ids,
            batch.expanded_local_pos,
            np.asarray(batch.seq_lens_cpu_upper_bound),
            skip_top_k_top_p=True,
        )
        return edited
