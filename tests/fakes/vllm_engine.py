"""vLLM's V2 sampler with requests, from vLLM's sources or their stand-in, whichever this process imports."""

import types
from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


class Parameters:
    """A request's parameters, with what vLLM's record of them says by default."""

    def __init__(self, **given: Any) -> None:
        self.temperature, self.top_k, self.top_p, self.min_p = 1.0, 0, 1.0, 0.0
        self.seed, self.logprobs, self.logprob_token_ids, self.prompt_logprobs = None, None, None, None
        self.repetition_penalty, self.frequency_penalty, self.presence_penalty = 1.0, 0.0, 0.0
        self.min_tokens, self.max_tokens, self.all_stop_token_ids, self.stop_token_ids = 0, 100, set(), []
        self.logit_bias, self.allowed_token_ids, self.bad_words_token_ids = None, None, None
        self.thinking_token_budget, self.watermarking, self.extra_args = None, False, None
        self.structured_outputs = None
        self.biased = None  # a token that an edit of the stand-in makes certain
        vars(self).update(given)


class Engine:
    """A V2 sampler of vLLM's class, with its states, and requests that grow.

    ``step`` and ``draw`` draw rows, ``decode`` the next token of requests, and ``edited`` only edits.
    """

    def __init__(
        self,
        vocab_size: int,
        slots: int = 8,
        *,
        kind: str = "Sampler",
        dtype: torch.dtype = torch.float32,
        speculative: Any = None,
        watermarks: Any = None,
        config: Any = None,
        **options: Any,
    ) -> None:
        from vllm.v1.worker.gpu.model_states.interface import ModelState
        from vllm.v1.worker.gpu.sample import sampler
        from vllm.v1.worker.gpu.states import RequestState

        self.states = RequestState(
            max_num_reqs=slots,
            max_model_len=128,
            max_num_batched_tokens=slots,
            num_speculative_steps=0,
            vocab_size=vocab_size,
            device=DEVICE,
        )
        if config is None:
            named = {"speculative_config": speculative, "watermark_config": watermarks}
            config = MagicMock(reasoning_config=None, **named)
            config.model_config.max_model_len, config.model_config.dtype = 128, dtype
        make = getattr(sampler, kind)
        made = make(config, slots, vocab_size, DEVICE, self.states, **options)
        state = types.SimpleNamespace(vllm_config=config, device=DEVICE)
        self.sampler, self.rejection_sampler = ModelState.custom_sampler(state, made) or (made, None)
        self.tokens: dict[int, list[int]] = {}

    def leave_to_vllm(self) -> None:
        """Have vLLM draw and score, as without the adapter; for the engines of the process, until another is made."""
        from tokendraw_vllm.v2 import logprobs

        self.sampler._tokendraw.can_draw()
        self.sampler._tokendraw._replacement = None
        logprobs.scorers.clear()

    def start(
        self, slot: int, prompt: Sequence[int] = (4, 9, 9, 2), output: Sequence[int] = (), **parameters: Any
    ) -> None:
        """Add a request with its tokens to a slot, in the place of an earlier request, if any."""
        states = self.states
        if slot in self.tokens:
            self.stop(slot)
        states.free_indices.remove(slot)
        states.free_indices.append(slot)  # the next one to be taken
        self.tokens[slot] = [*prompt, *output]
        states.add_request(str(slot), len(prompt), [*self.tokens[slot]], 0, 100)
        self.sampler.add_request(slot, Parameters(**parameters))
        states.apply_staged_writes()
        self.sampler.apply_staged_writes()

    def stop(self, slot: int) -> None:
        self.states.remove_request(str(slot))
        del self.tokens[slot]

    def batch(
        self, slots: Sequence[int], positions: Sequence[int], fed: Sequence[Sequence[int]] | None = None
    ) -> types.SimpleNamespace:
        """The rows of a step, as far as the sampler reads them: request after request.

        :param positions: those of the first row of each request.
        :param fed: the tokens of its rows; None: a row each, of token 0.
        """
        fed = [[0]] * len(slots) if fed is None else fed
        counts = [len(each) for each in fed]
        request = np.repeat(np.arange(len(slots)), counts)
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        steps = np.arange(offsets[-1]) - offsets[request]
        first = np.array(positions, dtype=np.int64)

        def uploaded(values: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.tensor(np.asarray(values), dtype=dtype, device=DEVICE)

        return types.SimpleNamespace(
            num_reqs=len(slots),
            idx_mapping=uploaded(slots, torch.int64),
            idx_mapping_np=np.array(slots),
            expanded_idx_mapping=uploaded(np.array(slots)[request], torch.int64),
            expanded_local_pos=uploaded(steps),
            cu_num_logits=uploaded(offsets),
            cu_num_logits_np=offsets,
            positions=uploaded(first[request] + steps, torch.int64),
            input_ids=uploaded([token for each in fed for token in each]),
            logits_indices=uploaded(np.arange(offsets[-1]), torch.int64),
            seq_lens=uploaded(first + counts),
            seq_lens_cpu_upper_bound=torch.tensor(first + counts, dtype=torch.int32),
        )

    def step(self, logits: torch.Tensor, slots: Sequence[int], positions: Sequence[int]) -> Any:
        """Draw rows at given positions, whatever tokens the requests have."""
        return self.sampler(logits, self.batch(slots, positions))

    def draw(self, logits: torch.Tensor, slots: Sequence[int], positions: Sequence[int]) -> list[int]:
        """The tokens of the rows."""
        tokens: list[int] = self.step(logits, slots, positions).sampled_token_ids.flatten().tolist()
        return tokens

    def rows(self, slots: Sequence[int], drafts: Sequence[Sequence[int]] | None = None) -> Any:
        """The batch of the next tokens of requests, or of a verification of their drafts."""
        fed = [
            [self.tokens[slot][-1], *each]
            for slot, each in zip(slots, drafts or [[]] * len(slots), strict=True)
        ]
        return self.batch(slots, [len(self.tokens[slot]) - 1 for slot in slots], fed)

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

    def edited(self, logits: torch.Tensor, batch: Any) -> torch.Tensor:
        """The logits of a batch as vLLM's own kernels edit, divide and filter them: [rows, V] float32."""
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

    def __init__(
        self, vocab_size: int, most: int, *, method: str = "standard", drawn: bool = False, **options: Any
    ) -> None:
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

        speculative = types.SimpleNamespace(
            num_speculative_tokens=most,
            enable_adaptive_verification=False,
            rejection_sample_method=method,
            draft_sample_method="probabilistic" if drawn else "greedy",
            fly_entropy_threshold=0.3,
            fly_entropy_top_k=3,
        )
        super().__init__(vocab_size, speculative=speculative, num_speculative_tokens=most + 1, **options)
        if self.rejection_sampler is None:
            self.rejection_sampler = RejectionSampler(self.sampler, speculative, DEVICE)

    def verify(
        self,
        logits: torch.Tensor,
        slots: Sequence[int],
        drafts: Sequence[Sequence[int]],
        draft_logits: torch.Tensor | None = None,
    ) -> list[list[int]]:
        """Verify drafts, and have vLLM count the rest."""
        batch = self.rows(slots, drafts)
        return self._count(batch, self.rejection_sampler(logits, batch, draft_logits))
