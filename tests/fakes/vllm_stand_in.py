"""vLLM on disk, as far as the adapter looks at it: its two samplers with the signatures of 0.33.0, drawing token 0.

Greedy rows get their argmax. What the samplers do before they draw is done here too, plainly: temperature and min-p,
and of the edits a bias of one token, so that a test sees what the adapter leaves to vLLM. vLLM itself is run by
``make test-engines``.
"""

import sys

import torch

import tokendraw
from calling import CPU, drafting, substitute
from tokendraw_vllm import _engine, _parts, _replacement, v2

MODULES = {
    # Without groups, as one process alone, until a test sets some.
    "vllm.distributed.parallel_state": """
    tp = pcp = None

    def model_parallel_is_initialized():
        return tp is not None

    def get_tp_group():
        return tp

    def get_pcp_group():
        return pcp
""",
    "vllm.envs": "VLLM_BATCH_INVARIANT = False",
    "vllm.config": "current = None\ndef get_current_vllm_config_or_none(): return current",
    "vllm.config.model": "PROCESSED_LOGPROBS_MODES = ('processed_logits', 'processed_logprobs')",
    "vllm.sampling_params": "from vllm_engine import Parameters as SamplingParams",
    "vllm.v1.sample.ops.topk_topp_sampler": """
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

    def apply_top_k_top_p(logits, k, p, **_):
        ordered, ids = logits.sort(1, descending=True)
        probs, rank = ordered.softmax(1), torch.arange(logits.shape[1])
        if k is not None:
            ordered[rank >= k[:, None]] = -float("inf")
            probs = ordered.softmax(1)
        if p is not None:
            ordered[probs.cumsum(1) - probs >= p[:, None]] = -float("inf")
        return torch.empty_like(logits).scatter_(1, ids, ordered)
""",
    "vllm.v1.engine.input_processor": """
    class InputProcessor:
        def __init__(self, vllm_config):
            self.vllm_config = vllm_config
            self.speculative_config = vllm_config.speculative_config

        def _validate_params(self, params, supported_tasks):
            if params.temperature < 0:
                raise ValueError("temperature must be non-negative")
            if self.speculative_config and (params.min_p or params.logit_bias):
                raise ValueError("The min_p and logit_bias sampling parameters are not yet supported")
            return False  # whether the request is watermarked
""",
    "vllm.v1.worker.gpu.buffer_utils": """
    import torch

    class StagedWriteTensor:
        def __init__(self, size):
            self.gpu = torch.zeros(size, dtype=torch.int32)
            self._staged_write_indices, self._staged_write_contents, self._starts = [], [], []

        def stage_write(self, index, start, x):
            self._staged_write_indices.append(index)
            self._staged_write_contents.extend(x)
            self._starts.append((start, len(x)))

        def apply_write(self):
            contents = torch.tensor(self._staged_write_contents)
            parts = contents.split([count for _, count in self._starts])
            for index, (start, count), part in zip(self._staged_write_indices, self._starts, parts, strict=True):
                self.gpu[index, start : start + count] = part
            self._staged_write_indices, self._staged_write_contents, self._starts = [], [], []
""",
    "vllm.v1.worker.gpu.model_states.interface": """
    class ModelState:
        def __init__(self, vllm_config, device):
            self.vllm_config, self.device = vllm_config, device

        def custom_sampler(self, sampler):
            return None
""",
    "vllm.v1.worker.gpu.states": """
    import torch
    from vllm.v1.worker.gpu.sample.states import Column

    from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor

    class RequestState:
        def __init__(
            self, max_num_reqs, max_model_len, max_num_batched_tokens, num_speculative_steps, vocab_size, device
        ):
            self.max_model_len, self.free_indices = max_model_len, list(range(max_num_reqs))
            self.all_token_ids, self.device = StagedWriteTensor((max_num_reqs, max_model_len)), device
            self.prompt_len, self.prefill_len = (Column(max_num_reqs, torch.int32) for _ in range(2))
            self.total_len = self.num_computed_tokens = Column(max_num_reqs, torch.int32)
            self.req_id_to_index, self.index_to_req_id, self.last_sampled_tokens = {}, {}, None

        def add_request(self, req_id, prompt_len, all_token_ids, num_computed_tokens, max_tokens):
            slot = self.req_id_to_index[req_id] = self.free_indices.pop()
            self.index_to_req_id[slot], self.total_len.gpu[slot] = req_id, len(all_token_ids)
            self.prompt_len.np[slot], self.prefill_len.np[slot] = prompt_len, len(all_token_ids)
            self.all_token_ids.stage_write(slot, 0, all_token_ids)

        def apply_staged_writes(self):
            self.all_token_ids.apply_write()

        def remove_request(self, req_id):
            slot = self.req_id_to_index.pop(req_id)
            del self.index_to_req_id[slot]
            self.free_indices.append(slot)
""",
    "vllm.v1.worker.gpu.input_batch": """
    def post_update(
        slots, num_computed_tokens, last_sampled_tokens, counts, sampled, num_sampled, num_rejected, query_start,
        all_token_ids, total_len,
    ):
        for slot, row, count in zip(slots.tolist(), sampled, num_sampled.tolist(), strict=True):
            start = int(total_len[slot])
            all_token_ids[slot, start : start + count] = row[:count]
            total_len[slot] += count
""",
    "vllm.v1.worker.gpu.sample.states": """
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
""",
    # vLLM's processors by module: a stand-in notes whether a request asks for edits, and edits nothing.
    "vllm.v1.worker.gpu.sample.penalties": """
    import numpy as np

    class PenaltiesState:
        def add_request(self, req_idx, sampling_params):
            s = sampling_params
            return (s.repetition_penalty, s.frequency_penalty, s.presence_penalty) != (1.0, 0.0, 0.0)
""",
    "vllm.v1.worker.gpu.sample.logit_bias": """
    class LogitBiasState:
        def add_request(self, req_idx, sampling_params):
            s = sampling_params
            return bool(s.logit_bias or s.allowed_token_ids or (s.min_tokens and s.all_stop_token_ids))
""",
    "vllm.v1.worker.gpu.sample.bad_words": """
    class BadWordsState:
        def add_request(self, req_idx, sampling_params):
            return bool(sampling_params.bad_words_token_ids)
""",
    "vllm.v1.outputs": """
    from typing import Any, NamedTuple

    class LogprobsTensors(NamedTuple):
        logprob_token_ids: Any
        logprobs: Any
        selected_token_ranks: Any
        cu_num_generated_tokens: Any = None
        cu_num_generated_tokens_tensor: Any = None
""",
    # The ids, log-probabilities and ranks of vLLM's stand-in are 0, and the bounds are its name.
    "vllm.v1.worker.gpu.sample.logprob": """
    import torch
    from vllm.v1.outputs import LogprobsTensors

    def compute_topk_scores(
        logits, num_logprobs, sampled_token_ids, cu_num_logits=None, logprob_token_ids_state=None,
        expanded_idx_mapping=None, max_per_req_token_ids=0, logits_mode=False,
    ):
        ids = torch.zeros(len(logits), 1 + max(num_logprobs, max_per_req_token_ids), dtype=torch.int64)
        return LogprobsTensors(ids, ids.float(), ids[:, 0], "vLLM's")
""",
    "vllm.v1.worker.gpu.sample.prompt_logprob": "from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores",
    "vllm.v1.worker.gpu.sample.sampler": """
    from types import SimpleNamespace

    import numpy as np
    import torch
    from vllm.v1.worker.gpu.sample.bad_words import BadWordsState
    from vllm.v1.worker.gpu.sample.logit_bias import LogitBiasState
    from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores
    from vllm.v1.worker.gpu.sample.penalties import PenaltiesState
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
    from vllm.v1.worker.gpu.sample.states import SamplingStates

    class Sampler:
        def __init__(
            self, vllm_config, max_num_reqs, vocab_size, device, req_states, logprobs_mode="raw_logprobs",
            num_speculative_tokens=1, use_fp64_gumbel=False, return_sampling_mask=False,
        ):
            self.logprobs_mode, self.use_fp64_gumbel = logprobs_mode, use_fp64_gumbel
            self.return_sampling_mask, self.req_states = return_sampling_mask, req_states
            self.sampling_states = SamplingStates(max_num_reqs, vocab_size)
            self.needs_logits_processing = np.zeros(max_num_reqs, dtype=bool)
            self.logits_processors = [LogitBiasState(), PenaltiesState(), BadWordsState()]
            self.num_speculative_tokens = num_speculative_tokens
            self.penalties_state = SimpleNamespace(output_bin_counts=None)
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

        def apply_staged_writes(self):
            self.sampling_states.apply_staged_writes()

        def __call__(self, logits, rows):
            before = logits.clone()
            ids, self.processed = self.sample(
                logits, rows.expanded_idx_mapping, rows.idx_mapping, rows.idx_mapping_np, rows.positions,
                rows.input_ids, rows.expanded_local_pos, rows.seq_lens_cpu_upper_bound.numpy(),
                self.get_logprobs_dims(rows.idx_mapping_np) is not None,
            )
            assert torch.equal(logits, before), "the logits were modified"
            assert ids.dtype == torch.int64
            return SimpleNamespace(sampled_token_ids=ids[:, None], num_sampled=torch.ones_like(ids))

        def get_logprobs_dims(self, idx_mapping_np, include_token_ids=True):
            return (1, 0) if self.sampling_states.has_logprobs[idx_mapping_np].any() else None

        def sample(
            self, logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, input_ids, expanded_local_pos,
            seq_lens_upper_bound_np, return_logprobs=False,
        ):
            logits = self.apply_sampling_params(
                logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, input_ids, expanded_local_pos,
                seq_lens_upper_bound_np, skip_top_k_top_p=True,
            )
            return self._sample_random(
                logits, expanded_idx_mapping, idx_mapping_np, pos, None, None, False, False
            )

        def apply_sampling_params(
            self, logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, input_ids, expanded_local_pos,
            seq_lens_upper_bound_np, skip_top_k_top_p=False,
        ):
            slots, states = expanded_idx_mapping.long(), self.sampling_states
            if self.needs_logits_processing[idx_mapping_np].any():
                logits = logits.float() + self.bias[slots]
                states.apply_temperature(logits, expanded_idx_mapping, idx_mapping_np)
                states.apply_min_p(logits, expanded_idx_mapping, idx_mapping_np)
                if not skip_top_k_top_p:
                    logits = apply_top_k_top_p(logits, states.top_k.gpu[slots], states.top_p.gpu[slots])
            return logits

        def _sample_random(
            self, processed_logits, expanded_idx_mapping, idx_mapping_np, pos, top_k, top_p, has_topp_only_rows,
            use_fused_sampler,
        ):
            greedy = self.sampling_states.temperature.gpu[expanded_idx_mapping.long()] == 0.0
            return torch.where(greedy, processed_logits.argmax(1), 0), processed_logits

    class Watermarking(Sampler):
        watermarking = SimpleNamespace(np=np.zeros(8, dtype=bool))

        def _sample_random(self, *arguments):
            if self.watermarking.np.any():
                return torch.full((len(arguments[0]),), 1), arguments[0]
            return super()._sample_random(*arguments)
""",
    # Rejects every draft, and draws token 0.
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler": """
    from types import SimpleNamespace

    import torch
    from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores

    class RejectionSampler:
        def __init__(self, sampler, spec_config, device, *, watermark_key=None):
            self.sampler, self.watermark_key = sampler, watermark_key
            self.num_speculative_steps = spec_config.num_speculative_tokens
            self.use_block_verification = spec_config.rejection_sample_method == "block"

        def __call__(self, logits, rows, draft_logits=None):
            before = logits.clone()
            self.sampler.processed, sampled, num_sampled = self._verify(
                logits, draft_logits, rows.input_ids, rows.positions, rows.cu_num_logits, rows.idx_mapping,
                rows.idx_mapping_np, rows.expanded_idx_mapping, rows.expanded_local_pos,
                rows.seq_lens_cpu_upper_bound.numpy(), rows.input_ids,
            )
            assert torch.equal(logits, before), "the logits were modified"
            assert (sampled.dtype, num_sampled.dtype) == (torch.int64, torch.int32)
            return SimpleNamespace(sampled_token_ids=sampled, num_sampled=num_sampled)

        def _verify(
            self, logits, draft_logits, draft_sampled, pos, cu_num_logits, idx_mapping, idx_mapping_np,
            expanded_idx_mapping, expanded_local_pos, seq_lens_upper_bound_np, verify_draft_sampled,
        ):
            requests = len(idx_mapping)
            sampled = torch.zeros(requests, self.num_speculative_steps + 1, dtype=torch.int64)
            return logits, sampled, torch.ones(requests, dtype=torch.int32)
""",
    # Draws token 0, and keeps no logits.
    "vllm.v1.worker.gpu.spec_decode.speculator": """
    import torch

    def gumbel_sample(
        logits, expanded_idx_mapping, temperature, seed, pos, apply_temperature, is_drafting, logits_cache=None,
        logits_cache_col=None, use_fp64=False, logits_cache_source=None,
    ):
        return torch.zeros(len(logits), dtype=torch.int64)
""",
}
"""Modules as ``fake_dist`` takes them."""


def forget() -> None:
    """Remove vLLM from the process, and forget written log lines."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]
    _parts._say.cache_clear()
    _engine.misfits.cache_clear()
    _parts._reasons_of_losses.clear()
    v2.logprobs.scorers.clear()


def v1_sampler(**options):
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    return TopKTopPSampler(**options)


def keep_logits(rows):
    """What the kernel of this name does, by torch: for a CPU, where no kernel runs."""
    slots, valid = rows.slots.long(), rows.slots >= 0
    steps = rows.steps.expand(slots.shape)
    rows.cache[slots[valid], steps[valid], : rows.logits.shape[1]] = rows.logits[valid]
    return slots.clamp(min=0), rows.positions + (steps << 32)


def draft(engine, logits, slots, positions, step, cache, **options) -> list[int]:
    """Draw a draft in each row as vLLM's speculators do, from the parameters of an engine's requests.

    :param slots: -1 for padding.
    :param options: by names of vLLM's ``gumbel_sample``.
    """
    from vllm.v1.worker.gpu.spec_decode import speculator

    states = engine.sampler.sampling_states
    given = torch.tensor(slots), states.temperature.gpu, states.seeds.gpu, torch.tensor(positions)
    named = {"apply_temperature": True, "is_drafting": True, "logits_cache": cache, "use_fp64": False}
    ids = speculator.gumbel_sample(
        logits, *given, **named | {"logits_cache_col": torch.tensor(step)} | options
    )
    assert ids.dtype == torch.int64
    return ids.tolist()


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
