"""Whole steps of vLLM's V2 sampler from its sources: requests with their tokens, counted by vLLM's own kernels."""

import types
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
        batch = self.rows(slots)
        return [token for (token,) in self._count(batch, self.sampler(logits, batch))]

    def _count(self, batch: Any, output: Any) -> list[list[int]]:
        """Have vLLM count the tokens of a step, and return those of each request."""
        from vllm.v1.worker.gpu.input_batch import post_update

        states, counts = self.states, output.num_sampled
        post_update(
            batch.idx_mapping,
            states.num_computed_tokens.gpu,
            states.last_sampled_tokens,
            self.sampler.penalties_state.output_bin_counts,
            output.sampled_token_ids,
            counts,
            counts * 0,
            None,
            states.all_token_ids.gpu,
            states.total_len.gpu,
        )
        rows = zip(output.sampled_token_ids.tolist(), counts.tolist(), strict=True)
        emitted = [row[:count] for row, count in rows]
        for slot, tokens in zip(batch.idx_mapping_np.tolist(), emitted, strict=True):
            self.tokens[slot] += tokens
        return emitted

    def edited(self, logits: torch.Tensor, slots: Sequence[int]) -> torch.Tensor:
        """The logits as vLLM's own kernels edit, divide and filter them: [rows, V] float32."""
        return self.edited_rows(logits, self.rows(slots))

    def edited_rows(self, logits: torch.Tensor, batch: Any) -> torch.Tensor:
        """The same for the rows of a batch."""
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


class DraftingEngine(Engine):
    """The same with drafts and vLLM's rejection sampler: ``verify`` is a step with drafts."""

    def __init__(self, vocab_size: int, slots: int, device: torch.device, most: int, **options: Any) -> None:
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

        speculative = types.SimpleNamespace(
            num_speculative_tokens=most,
            enable_adaptive_verification=False,
            rejection_sample_method="standard",
            draft_sample_method="probabilistic",
            fly_entropy_threshold=0.3,
            fly_entropy_top_k=3,
        )
        super().__init__(
            vocab_size, slots, device, speculative=speculative, num_speculative_tokens=most + 1, **options
        )
        self.rejection_sampler = RejectionSampler(self.sampler, speculative, device)

    def drafted(self, slots: Sequence[int], drafts: Sequence[Sequence[int]]) -> Any:
        """The batch of a verification: rows of request after request."""
        counts = [len(each) + 1 for each in drafts]
        request = np.repeat(np.arange(len(slots)), counts)
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        steps = np.arange(offsets[-1]) - offsets[request]
        lengths = np.array([len(self.tokens[slot]) for slot in slots])
        fed = [[self.tokens[slot][-1], *each] for slot, each in zip(slots, drafts, strict=True)]

        def uploaded(values: Any, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(np.asarray(values), dtype=dtype, device=self.device)

        return types.SimpleNamespace(
            num_reqs=len(slots),
            idx_mapping=uploaded(slots, torch.int64),
            idx_mapping_np=np.array(slots),
            expanded_idx_mapping=uploaded(np.array(slots)[request], torch.int64),
            expanded_local_pos=uploaded(steps, torch.int32),
            cu_num_logits=uploaded(offsets, torch.int32),
            cu_num_logits_np=offsets,
            positions=uploaded(lengths[request] - 1 + steps, torch.int64),
            input_ids=uploaded([token for each in fed for token in each], torch.int32),
            logits_indices=uploaded(np.arange(offsets[-1]), torch.int64),
            seq_lens=uploaded(lengths + np.array(counts) - 1, torch.int32),
            seq_lens_cpu_upper_bound=torch.tensor(lengths + np.array(counts) - 1, dtype=torch.int32),
        )

    def verify(
        self,
        logits: torch.Tensor,
        slots: Sequence[int],
        drafts: Sequence[Sequence[int]],
        draft_logits: torch.Tensor | None = None,
    ) -> list[list[int]]:
        """Verify drafts, and have vLLM count what they leave."""
        batch = self.drafted(slots, drafts)
        return self._count(batch, self.rejection_sampler(logits, batch, draft_logits))
