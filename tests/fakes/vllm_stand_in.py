"""vLLM on disk, as far as the adapter looks at it: its two samplers with the signatures of 0.33.0, drawing token 0.

Greedy rows get their argmax. What the samplers do before they draw is done here too, plainly: temperature and min-p,
and of the edits a bias of one token, so that a test sees what the adapter leaves to vLLM. vLLM itself is run by
``make test-engines``.
"""

import sys
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import torch

import tokendraw
from calling import CPU, drafting, substitute
from tokendraw_vllm import _log, _replacement, _v2_logprobs

V1 = """
    import torch

    class TopKTopPSampler(torch.nn.Module):
        def __init__(self, logprobs_mode="raw_logprobs", use_fp64_gumbel=False):
            super().__init__()
            self.logprobs_mode, self.use_fp64_gumbel = logprobs_mode, use_fp64_gumbel

        def forward_native(self, logits, generators, k, p):
            for generator in generators.values():
                torch.randint(0, 9, (), generator=generator)
            return torch.zeros(len(logits), dtype=torch.int64), None

        forward = forward_native
"""
STATES = """
    import numpy as np
    import torch

    class Column:
        def __init__(self, size, dtype):
            self.cpu = torch.zeros(size, dtype=dtype)
            self.np, self.gpu = self.cpu.numpy(), torch.zeros(size, dtype=dtype)

    class SamplingStates:
        def __init__(self, max_num_reqs, vocab_size):
            self.max_num_reqs, self.vocab_size = max_num_reqs, vocab_size
            self.temperature = Column(max_num_reqs, torch.float32)
            self.top_k = Column(max_num_reqs, torch.int32)
            self.top_p = Column(max_num_reqs, torch.float32)
            self.min_p = Column(max_num_reqs, torch.float32)
            self.seeds = Column(max_num_reqs, torch.int64)
            self.seeds_set = np.zeros(max_num_reqs, dtype=bool)
            self.has_logprobs = np.zeros(max_num_reqs, dtype=bool)

        def add_request(self, req_idx, sampling_params):
            s = sampling_params
            self.temperature.np[req_idx], self.top_p.np[req_idx] = s.temperature, s.top_p
            self.top_k.np[req_idx], self.min_p.np[req_idx] = s.top_k or self.vocab_size, s.min_p
            self.seeds_set[req_idx], self.has_logprobs[req_idx] = s.seed is not None, s.logprobs is not None
            self.seeds.np[req_idx] = 12345 + req_idx if s.seed is None else s.seed
            plain = s.temperature in (0.0, 1.0) and s.top_k == 0 and s.top_p == 1.0 and s.min_p == 0.0
            return not plain

        def apply_staged_writes(self):
            for name in ("temperature", "top_k", "top_p", "min_p", "seeds"):
                column = getattr(self, name)
                column.gpu = column.cpu.clone()

        def apply_temperature(self, logits, expanded_idx_mapping, idx_mapping_np):
            temperature = self.temperature.gpu[expanded_idx_mapping.long()]
            if not np.isin(self.temperature.np[idx_mapping_np], (0.0, 1.0)).all():
                logits /= torch.where(temperature == 0.0, 1.0, temperature)[:, None]

        def apply_min_p(self, logits, expanded_idx_mapping, idx_mapping_np):
            if self.min_p.np[idx_mapping_np].any():
                floor = self.min_p.gpu[expanded_idx_mapping.long()].log()[:, None]
                logits.masked_fill_(logits < logits.max(1, keepdim=True).values + floor, -float("inf"))

        def any_explicit_seed(self, requests):
            return bool(self.seeds_set[requests].any())
"""
REQUESTS = """
    import torch
    from vllm.v1.worker.gpu.sample.states import Column

    class RequestState:
        # has the request "3" in slot 3
        def __init__(
            self, max_num_reqs, max_model_len, max_num_batched_tokens, num_speculative_steps, vocab_size, device
        ):
            self.max_model_len = max_model_len
            self.all_token_ids = Column((max_num_reqs, max_model_len), torch.int32)
            self.total_len = Column(max_num_reqs, torch.int32)
            self.req_id_to_index, self.index_to_req_id = {}, {}

        def add_request(self, req_id, prompt_len, all_token_ids, num_computed_tokens, max_tokens):
            self.req_id_to_index[req_id], self.index_to_req_id[int(req_id)] = int(req_id), req_id
"""
EDITS = {
    "penalties": """
    import numpy as np

    class PenaltiesState:
        def add_request(self, req_idx, sampling_params):
            s = sampling_params
            return (s.repetition_penalty, s.frequency_penalty, s.presence_penalty) != (1.0, 0.0, 0.0)
""",
    "logit_bias": """
    class LogitBiasState:
        def add_request(self, req_idx, sampling_params):
            s = sampling_params
            return bool(s.logit_bias or s.allowed_token_ids or (s.min_tokens and s.all_stop_token_ids))
""",
    "bad_words": """
    class BadWordsState:
        def add_request(self, req_idx, sampling_params):
            return bool(sampling_params.bad_words_token_ids)
""",
}
"""vLLM's processors by module: a stand-in notes whether a request asks for edits, and edits nothing."""
INPUTS = """
    class InputProcessor:
        def __init__(self, vllm_config):
            self.vllm_config = vllm_config

        def _validate_params(self, params, supported_tasks):
            if params.temperature < 0:
                raise ValueError("temperature must be non-negative")
            return False  # whether the request is watermarked
"""
OUTPUTS = """
    from typing import Any, NamedTuple

    class LogprobsTensors(NamedTuple):
        logprob_token_ids: Any
        logprobs: Any
        selected_token_ranks: Any
        cu_num_generated_tokens: Any = None
        cu_num_generated_tokens_tensor: Any = None
"""
LOGPROBS = """
    import torch
    from vllm.v1.outputs import LogprobsTensors

    def compute_topk_scores(
        logits, num_logprobs, sampled_token_ids, cu_num_logits=None, logprob_token_ids_state=None,
        expanded_idx_mapping=None, max_per_req_token_ids=0, logits_mode=False,
    ):
        ids = torch.zeros(len(logits), 1 + max(num_logprobs, max_per_req_token_ids), dtype=torch.int64)
        return LogprobsTensors(ids, ids.float(), ids[:, 0], "vLLM's")
"""
"""The ids, log-probabilities and ranks of vLLM's stand-in are 0, and the bounds are its name."""
PROMPTS = "from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores"
V2 = """
    import numpy as np
    import torch
    from vllm.v1.worker.gpu.sample.bad_words import BadWordsState
    from vllm.v1.worker.gpu.sample.logit_bias import LogitBiasState
    from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores
    from vllm.v1.worker.gpu.sample.penalties import PenaltiesState
    from vllm.v1.worker.gpu.sample.states import SamplingStates

    class Sampler:
        def __init__(
            self, vllm_config, max_num_reqs, vocab_size, device, req_states, logprobs_mode="raw_logprobs",
            num_speculative_tokens=1, use_fp64_gumbel=False, return_sampling_mask=False,
        ):
            self.logprobs_mode, self.use_fp64_gumbel = logprobs_mode, use_fp64_gumbel
            self.return_sampling_mask = return_sampling_mask
            self.sampling_states = SamplingStates(max_num_reqs, vocab_size)
            self.needs_logits_processing = np.zeros(max_num_reqs, dtype=bool)
            self.logits_processors = [LogitBiasState(), PenaltiesState(), BadWordsState()]
            self.num_speculative_tokens = num_speculative_tokens
            self.bias = torch.zeros(max_num_reqs, vocab_size)

        def add_request(self, req_idx, sampling_params):
            needs = self.sampling_states.add_request(req_idx, sampling_params)
            for processor in self.logits_processors:
                needs |= processor.add_request(req_idx, sampling_params)
            self.bias[req_idx] = 0.0
            if sampling_params.biased is not None:
                self.bias[req_idx, sampling_params.biased] = 1000.0
                needs = True
            self.needs_logits_processing[req_idx] = needs

        def get_logprobs_dims(self, idx_mapping_np, include_token_ids=True):
            return (1, 0) if self.sampling_states.has_logprobs[idx_mapping_np].any() else None

        def sample(
            self, logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, input_ids, expanded_local_pos,
            seq_lens_upper_bound_np, return_logprobs=False,
        ):
            if self.needs_logits_processing[idx_mapping_np].any():
                logits = logits.float() + self.bias[expanded_idx_mapping.long()]
                self.sampling_states.apply_temperature(logits, expanded_idx_mapping, idx_mapping_np)
                self.sampling_states.apply_min_p(logits, expanded_idx_mapping, idx_mapping_np)
            return self._sample_random(
                logits, expanded_idx_mapping, idx_mapping_np, pos, None, None, False, False
            )

        def _sample_random(
            self, processed_logits, expanded_idx_mapping, idx_mapping_np, pos, top_k, top_p, has_topp_only_rows,
            use_fused_sampler,
        ):
            greedy = self.sampling_states.temperature.gpu[expanded_idx_mapping.long()] == 0.0
            return torch.where(greedy, processed_logits.argmax(1), 0), processed_logits

    class Watermarking(Sampler):
        def _sample_random(self, *arguments):
            if self.watermarks:
                return torch.full((len(arguments[0]),), 1), arguments[0]
            return super()._sample_random(*arguments)
"""
REJECTION = """
    import torch
    from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores

    class RejectionSampler:
        def __init__(self, sampler, spec_config, device, *, watermark_key=None):
            self.sampler, self.watermark_key = sampler, watermark_key
            self.num_speculative_steps = spec_config.num_speculative_tokens
            method = spec_config.rejection_sample_method
            self.use_block_verification = method == "block"
            self.synthetic_conditional_rates = torch.ones(1) if method == "synthetic" else None
            self.fly_window_size = 2 if method == "fly" else 0

        def _verify(
            self, logits, draft_logits, draft_sampled, pos, cu_num_logits, idx_mapping, idx_mapping_np,
            expanded_idx_mapping, expanded_local_pos, seq_lens_upper_bound_np, verify_draft_sampled,
        ):
            requests = len(idx_mapping)
            sampled = torch.zeros(requests, self.num_speculative_steps + 1, dtype=torch.int64)
            return logits, sampled, torch.ones(requests, dtype=torch.int32)
"""
"""Rejects every draft, and draws token 0."""
SPECULATOR = """
    import torch

    def gumbel_sample(
        logits, expanded_idx_mapping, temperature, seed, pos, apply_temperature, is_drafting, logits_cache=None,
        logits_cache_col=None, use_fp64=False, logits_cache_source=None,
    ):
        return torch.zeros(len(logits), dtype=torch.int64)
"""
"""Draws token 0, and keeps no logits."""
PARALLEL = """
    tp = pcp = None

    def model_parallel_is_initialized():
        return tp is not None

    def get_tp_group():
        return tp

    def get_pcp_group():
        return pcp
"""
"""Without groups, as one process alone, until a test sets some."""
MODULES = {
    "vllm.distributed.parallel_state": PARALLEL,
    "vllm.envs": "VLLM_BATCH_INVARIANT = False",
    "vllm.config": "current = None\ndef get_current_vllm_config_or_none(): return current",
    "vllm.config.model": "PROCESSED_LOGPROBS_MODES = ('processed_logits', 'processed_logprobs')",
    "vllm.v1.sample.ops.topk_topp_sampler": V1,
    "vllm.v1.engine.input_processor": INPUTS,
    "vllm.v1.worker.gpu.states": REQUESTS,
    "vllm.v1.worker.gpu.sample.states": STATES,
    **{f"vllm.v1.worker.gpu.sample.{name}": source for name, source in EDITS.items()},
    "vllm.v1.outputs": OUTPUTS,
    "vllm.v1.worker.gpu.sample.logprob": LOGPROBS,
    "vllm.v1.worker.gpu.sample.prompt_logprob": PROMPTS,
    "vllm.v1.worker.gpu.sample.sampler": V2,
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler": REJECTION,
    "vllm.v1.worker.gpu.spec_decode.speculator": SPECULATOR,
}
"""Modules as ``fake_dist`` takes them."""


def forget() -> None:
    """Remove vLLM from the process, and forget written log lines."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]
    _log._say.cache_clear()
    _log._reasons_of_losses.clear()
    _v2_logprobs._scorers.clear()


DEFAULTS = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "seed": None,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "logit_bias": None,
    "allowed_token_ids": None,
    "bad_words_token_ids": None,
    "structured_outputs": None,
    "min_tokens": 0,
    "all_stop_token_ids": set(),
    "logprobs": None,
    "extra_args": None,
    "biased": None,
}
"""What a request of vLLM says by default, and a token that an edit of vLLM's own makes certain."""


def request(**fields):
    """Parameters of a request by vLLM's names, as far as the stand-in knows them."""
    return SimpleNamespace(**DEFAULTS | fields)


def v1_sampler(**options):
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    return TopKTopPSampler(**options)


class V2Engine:
    """A V2 sampler with its requests: ``draw`` draws rows, ``step`` the next tokens of requests.

    ``processed`` are the logits that vLLM reads after a step.
    """

    def __init__(
        self, vocab_size: int, *, kind: str = "Sampler", slots: int = 8, config=None, **options
    ) -> None:
        from vllm.v1.worker.gpu.sample import sampler
        from vllm.v1.worker.gpu.states import RequestState

        device = torch.device("cpu")
        self.states = RequestState(slots, 128, slots, 0, vocab_size, device)
        self.sampler = getattr(sampler, kind)(config, slots, vocab_size, device, self.states, **options)
        self.tokens: dict[int, list[int]] = {}

    def add(
        self, slot: int, parameters: SimpleNamespace, prompt: Sequence[int] = (1,), output: Sequence[int] = ()
    ) -> None:
        self.tokens[slot] = [*prompt, *output]
        self._count(slot)
        self.states.add_request(str(slot), len(prompt), [*self.tokens[slot]], 0, 100)
        self.sampler.add_request(slot, parameters)
        self.sampler.sampling_states.apply_staged_writes()

    def remove(self, slot: int) -> None:
        del self.tokens[slot], self.states.req_id_to_index[str(slot)], self.states.index_to_req_id[slot]

    def step(
        self, logits: torch.Tensor, slots: list[int], prefilled: dict[int, int] | None = None
    ) -> list[int]:
        """Draw the next token of requests.

        :param prefilled: by slot, the number of tokens that the model has seen of a prompt that it has not seen whole.
        """
        seen = [(prefilled or {}).get(slot, len(self.tokens[slot])) for slot in slots]
        fed = [self.tokens[slot][length - 1] for slot, length in zip(slots, seen, strict=True)]
        ids = self.draw(logits, slots, [length - 1 for length in seen], fed, np.array(seen, dtype=np.int32))
        for slot, length, token in zip(slots, seen, ids, strict=True):
            if length == len(self.tokens[slot]):
                self.tokens[slot].append(token)
                self._count(slot)
        return ids

    def _count(self, slot: int) -> None:
        tokens = self.tokens[slot]
        self.states.all_token_ids.gpu[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        self.states.total_len.gpu[slot] = len(tokens)

    def draw(
        self,
        logits: torch.Tensor,
        slots: list[int],
        positions: list[int],
        fed: Sequence[int] = (),
        lengths: np.ndarray | None = None,
    ) -> list[int]:
        mapping = torch.tensor(slots)
        before = logits.clone()
        given = (
            mapping,
            mapping,
            np.array(slots),
            torch.tensor(positions),
            torch.tensor(fed, dtype=torch.int32),
        )
        needs_logprobs = self.sampler.get_logprobs_dims(np.array(slots)) is not None
        ids, self.processed = self.sampler.sample(
            logits, *given, torch.zeros(len(slots), dtype=torch.int32), lengths, needs_logprobs
        )
        assert torch.equal(logits, before), "the logits were modified"
        assert ids.dtype == torch.int64
        return ids.tolist()


def keep_logits(rows):
    """What the kernel of this name does, by torch: for a CPU, where no kernel runs."""
    slots, valid = rows.slots.long(), rows.slots >= 0
    steps = rows.steps.expand(slots.shape)
    rows.cache[slots[valid], steps[valid], : rows.logits.shape[1]] = rows.logits[valid]
    return slots.clamp(min=0), rows.positions + (steps << 32)


class DraftingEngine(V2Engine):
    """A V2 sampler with a rejection sampler: ``verify`` is a step with drafts."""

    def __init__(
        self,
        vocab_size: int,
        most: int,
        *,
        method: str = "standard",
        drawn: bool = False,
        dtype: torch.dtype = torch.float32,
        **options,
    ) -> None:
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

        speculative = SimpleNamespace(
            num_speculative_tokens=most,
            rejection_sample_method=method,
            draft_sample_method="probabilistic" if drawn else "greedy",
        )
        config = SimpleNamespace(speculative_config=speculative, model_config=SimpleNamespace(dtype=dtype))
        super().__init__(vocab_size, config=config, num_speculative_tokens=most + 1, **options)
        self.rejection_sampler = RejectionSampler(self.sampler, speculative, CPU)

    def draft(
        self,
        logits: torch.Tensor,
        slots: list[int],
        positions: list[int],
        step: int,
        cache: torch.Tensor,
        **options,
    ) -> list[int]:
        """Draw a draft in each row as vLLM's speculators do, from the parameters of the requests.

        :param slots: -1 for padding.
        :param options: by names of vLLM's ``gumbel_sample``.
        """
        from vllm.v1.worker.gpu.spec_decode import speculator

        states = self.sampler.sampling_states
        given = torch.tensor(slots), states.temperature.gpu, states.seeds.gpu, torch.tensor(positions)
        named = {"apply_temperature": True, "is_drafting": True, "logits_cache": cache, "use_fp64": False}
        ids = speculator.gumbel_sample(
            logits, *given, **{**named, "logits_cache_col": torch.tensor(step)} | options
        )
        assert ids.dtype == torch.int64
        return ids.tolist()

    def verify(
        self,
        logits: torch.Tensor,
        slots: list[int],
        drafts: list[list[int]],
        *,
        positions: list[int] | None = None,
        draft_logits: torch.Tensor | None = None,
    ) -> list[list[int]]:
        """Verify drafts of requests, which emit up to K + 1 tokens each; ``processed`` are the logits that vLLM reads.

        :param logits: rows of request after request, a row for each draft and one more.
        :param positions: of the first row of each request; None: its last token, and what it emits is appended.
        """
        counts = torch.tensor([len(each) + 1 for each in drafts])
        first = positions or [len(self.tokens[slot]) - 1 for slot in slots]
        request = torch.arange(len(slots)).repeat_interleave(counts)
        offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
        step = torch.arange(len(logits)) - offsets[request]
        fed = [[self.tokens[slot][-1], *each] for slot, each in zip(slots, drafts, strict=True)]
        ids = torch.tensor([token for each in fed for token in each], dtype=torch.int32)
        mapping, before = torch.tensor(slots), logits.clone()
        self.processed, sampled, num_sampled = self.rejection_sampler._verify(
            logits,
            draft_logits,
            ids,
            torch.tensor(first)[request] + step,
            offsets,
            mapping,
            np.array(slots),
            mapping[request],
            step.to(torch.int32),
            np.array(first, dtype=np.int32) + 1,
            ids,
        )
        assert torch.equal(logits, before), "the logits were modified"
        assert (sampled.dtype, num_sampled.dtype) == (torch.int64, torch.int32)
        emitted = [row[:count] for row, count in zip(sampled.tolist(), num_sampled.tolist(), strict=True)]
        if positions is None:
            for slot, tokens in zip(slots, emitted, strict=True):
                self.tokens[slot] += tokens
                self._count(slot)
        return emitted


# Kernels of triton-gumbel under the V2 sampler, which compile and launch nothing.


MODEL_DTYPE = torch.bfloat16
KERNEL_REQUESTS = (
    {},
    {"temperature": 0.7},
    {"top_k": 20},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.05, "seed": 3},
    {"temperature": 0.0},
)
"""Parameters of requests: each parameter alone, all, and none."""


def draw_through_kernels(patch):
    """Have the adapter load triton-gumbel for an H200, with the kernels of :mod:`triton_stand_ins`.

    Both are imported here: a test may turn Triton's interpreter off first.
    """
    from tokendraw_triton_gumbel import plugin
    from triton_stand_ins import sampler_for

    backend = sampler_for("sm_90")
    backend._current_index = lambda: -1

    def load_sampler(sampler, *, device, need):
        assert sampler is None
        operations = plugin.tokendraw_describe().operations
        sampler = drafting(operations["verify"], backend, companion_capabilities=None)
        substitute(sampler, backend, "triton-gumbel")
        return sampler

    patch.setenv("TOKENDRAW_SAMPLER", "triton-gumbel")
    patch.setattr(tokendraw, "load_sampler", load_sampler)
    patch.setattr(_replacement, "_plugin_of", lambda name: ("0.1.0", plugin.tokendraw_describe()))
    return CPU


def model_logits(rows, vocab_size, padding=64):
    """Logits as vLLM's models return them: rows of a multiple of 64 elements, cut to the vocabulary."""
    width = -(-vocab_size // padding) * padding
    return torch.zeros(rows, width, dtype=MODEL_DTYPE)[:, :vocab_size]


def batches(max_rows, editing):
    """Requests of a batch: those of each kind, and of every kind beside one another.

    :param editing: parameters of a request that edits its logits.
    """
    for rows in (1, 3, max_rows):
        kinds = [(request,) for request in KERNEL_REQUESTS] + [KERNEL_REQUESTS]
        for kind in kinds:
            requests = [kind[i % len(kind)] for i in range(rows)]
            yield requests
            yield [{**requests[0], **editing}, *requests[1:]]
