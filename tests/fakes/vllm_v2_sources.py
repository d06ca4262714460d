"""vLLM's V2 sampler from the sources of a wheel, on any machine with torch and triton, without vLLM's binaries.

Real are the sampler, its states, processors and kernels, and the rows of a batch. Stubbed is what they import from the
rest of vLLM: its variables, configuration, platform, log, the request's record of parameters, and the cache of
compiled kernels' warm-up. On a CPU the kernels run in Triton's interpreter: set ``TRITON_INTERPRET=1`` first.
"""

import contextlib
import importlib.machinery
import importlib.util
import logging
import os
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

import vllm_stand_in

REAL = (
    "vllm.model_executor.warmup.jit_warmup",
    "vllm.model_executor.warmup.jit_warmup_triton_helper",
    "vllm.utils.math_utils",
    "vllm.v1.outputs",
    "vllm.v1.sample.ops.topk_topp_sampler",
    "vllm.v1.sample.ops.topk_topp_triton",
    "vllm.v1.worker.gpu.buffer_utils",
    "vllm.v1.worker.gpu.input_batch",
    "vllm.v1.worker.gpu.metrics.logits",
    "vllm.v1.worker.gpu.sample",
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler",
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils",
    "vllm.v1.worker.gpu.states",
)
"""Modules, and packages with all that is in them, that are taken from the sources."""


class Log(logging.Logger):
    """vLLM's loggers have methods that say a sentence once."""

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_once"):
            return lambda *arguments, **named: None
        raise AttributeError(name)


class Platform:
    """What the sampler asks of a device."""

    def __init__(self, device: torch.device) -> None:
        self.device_type = device.type
        self.simple_compile_backend = "eager"

    def is_cuda(self) -> bool:
        return self.device_type == "cuda"

    is_cuda_alike = is_cuda

    def num_compute_units(self, device_id: int | None = 0) -> int:
        if self.device_type == "cuda":
            return torch.cuda.get_device_properties(device_id or 0).multi_processor_count
        return 4

    def get_device_capability(self, *_: Any) -> Any:
        return MagicMock(major=9, minor=0, as_version_str=lambda: "9.0")

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("is_", "supports_", "has_")):
            return lambda *arguments, **named: False
        raise AttributeError(name)


class Envs(types.ModuleType):
    """vLLM's variables: all off, but for limits."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("VLLM_"):
            return 8 if "_MAX_" in name else False
        raise AttributeError(name)


def host_to_device(
    values: Any, dtype: torch.dtype | None = None, device: Any = None, **_: Any
) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values), dtype=dtype).to(device)


def _stubs(device: torch.device) -> dict[str, types.ModuleType]:
    import triton
    import triton.language

    modes = Literal["raw_logits", "raw_logprobs", "processed_logits", "processed_logprobs"]
    platform = Platform(device)
    contents: dict[str, dict[str, Any]] = {
        "vllm.config": {
            "VllmConfig": object,
            "SpeculativeConfig": object,
            "get_current_vllm_config_or_none": lambda: None,
        },
        "vllm.config.model": {
            "PROCESSED_LOGPROBS_MODES": ("processed_logits", "processed_logprobs"),
            "LogprobsMode": modes,
        },
        "vllm.distributed": {
            "parallel_state": types.SimpleNamespace(
                __name__="vllm.distributed.parallel_state",
                model_parallel_is_initialized=lambda: False,
                get_pcp_group=lambda: None,
                get_tp_group=lambda: None,
            )
        },
        "vllm.exceptions": {"VLLMValidationError": ValueError},
        "vllm.logger": {"init_logger": Log},
        "vllm.platforms": {
            "current_platform": platform,
            "CpuArchEnum": MagicMock(),
            "vllm_version_matches_substr": lambda _: False,
        },
        "vllm.platforms.interface": {"DeviceCapability": object},
        "vllm.sampling_params": {"SamplingParams": Parameters, "MAX_LOGPROB_TOKEN_IDS": 128},
        "vllm.triton_utils": {
            "HAS_TRITON": device.type
            == "cuda",  # its filters need more than the interpreter has, and have another way
            "triton": triton,
            "tl": triton.language,
        },
        "vllm.utils": {"random_uuid": lambda: "0"},
        "vllm.utils.gpu_sync_debug": {"gpu_sync_allowed": lambda *_, **__: nullcontext()},
        "vllm.utils.platform_utils": {
            "is_uva_available": lambda: False,
            "num_compute_units": platform.num_compute_units,
        },
        "vllm.utils.torch_utils": {
            "PIN_MEMORY": False,
            "async_tensor_h2d": host_to_device,
            "get_accelerator_view_from_cpu_tensor": None,
        },
    }
    return {name: _module(types.ModuleType(name), attributes) for name, attributes in contents.items()} | {
        "vllm.envs": Envs("vllm.envs")
    }


def _module(module: types.ModuleType, attributes: dict[str, Any]) -> types.ModuleType:
    vars(module).update(attributes)
    return module


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
        vars(self).update(given)


class _Finder:
    """Finds the real modules in the sources, stubs elsewhere, and mocks for what nobody calls."""

    def __init__(self, sources: Path, device: torch.device) -> None:
        self.sources, self.stubs = sources, _stubs(device)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if name.partition(".")[0] != "vllm":
            return None
        if any(name == real or name.startswith(f"{real}.") for real in REAL):
            place = self.sources.joinpath(*name.split("."))
            is_package = place.is_dir()
            return importlib.util.spec_from_file_location(
                name,
                place / "__init__.py" if is_package else place.with_suffix(".py"),
                submodule_search_locations=[str(place)] if is_package else None,
            )
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        if spec.name in self.stubs:
            return self.stubs[spec.name]
        if any(real.startswith(f"{spec.name}.") for real in REAL):
            return types.ModuleType(spec.name)
        return _module(types.ModuleType(spec.name), {"__getattr__": lambda _: MagicMock()})

    def exec_module(self, module: types.ModuleType) -> None:
        pass


ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


def sources() -> Path | None:
    """Return the folder that holds ``vllm``: of the variable ``VLLM_SOURCES``, else that of the installed one."""
    if os.environ.get("VLLM_SOURCES"):
        return Path(os.environ["VLLM_SOURCES"])
    spec = importlib.util.find_spec("vllm")
    return None if spec is None or spec.origin is None else Path(spec.origin).parents[1]


@contextlib.contextmanager
def vllm_with_tokendraw() -> Iterator[None]:
    """Let this process import vLLM's V2 sampler, with tokendraw in it."""
    where, before = sources(), list(sys.meta_path)
    assert where is not None
    vllm_stand_in.forget()
    sys.meta_path.insert(0, _Finder(where, DEVICE))
    with pytest.MonkeyPatch.context() as patch:
        if not ON_GPU:
            patch.setenv("TOKENDRAW_SAMPLER", "native")
        from tokendraw_vllm import _v2

        _v2.install()
        yield
    sys.meta_path[:] = before
    vllm_stand_in.forget()


class Engine:
    """A V2 sampler of vLLM's own class, with its own states, and requests that grow.

    ``step`` draws rows, ``decode`` the next token of requests, and ``edited`` only edits.
    """

    def __init__(
        self,
        vocab_size: int,
        slots: int = 8,
        *,
        dtype: torch.dtype = torch.float32,
        speculative: Any = None,
        **options: Any,
    ) -> None:
        from vllm.v1.worker.gpu.sample.sampler import Sampler
        from vllm.v1.worker.gpu.states import RequestState

        self.states = RequestState(
            max_num_reqs=slots,
            max_model_len=128,
            max_num_batched_tokens=slots,
            num_speculative_steps=0,
            vocab_size=vocab_size,
            device=DEVICE,
        )
        config = MagicMock(reasoning_config=None, speculative_config=speculative)
        config.model_config.max_model_len, config.model_config.dtype = 128, dtype
        self.sampler = Sampler(config, slots, vocab_size, DEVICE, self.states, **options)
        assert self.sampler._tokendraw is not None
        self.tokens: dict[int, list[int]] = {}

    def leave_to_vllm(self) -> None:
        """Have vLLM draw and score, as without the adapter; for the engines of the process, until another is made."""
        from tokendraw_vllm import _v2_logprobs

        self.sampler._tokendraw.can_draw()
        self.sampler._tokendraw = None
        _v2_logprobs._scorers.clear()

    def start(
        self, slot: int, prompt: Sequence[int] = (4, 9, 9, 2), output: Sequence[int] = (), **parameters: Any
    ) -> None:
        """Add a request with its tokens to a slot, in the place of another if there is one."""
        states = self.states
        if slot in self.tokens:
            self.stop(slot)
        states.free_indices.remove(slot)
        states.free_indices.append(slot)  # the next one to be taken
        self.tokens[slot] = [*prompt, *output]
        states.add_request(str(slot), len(prompt), [*self.tokens[slot]], 0, 100)
        states.apply_staged_writes()
        self.sampler.add_request(slot, Parameters(**parameters))
        self.sampler.apply_staged_writes()

    def stop(self, slot: int) -> None:
        self.states.remove_request(str(slot))
        del self.tokens[slot]

    def batch(self, slots: Sequence[int], positions: Sequence[int]) -> types.SimpleNamespace:
        """The rows of a step, as far as the sampler reads them."""
        rows = len(slots)
        mapping = torch.tensor(slots, dtype=torch.int64, device=DEVICE)
        place = torch.arange(rows, device=DEVICE)
        lengths = torch.tensor(positions, dtype=torch.int32, device=DEVICE) + 1
        return types.SimpleNamespace(
            num_reqs=rows,
            expanded_idx_mapping=mapping,
            idx_mapping=mapping,
            idx_mapping_np=np.array(slots),
            cu_num_logits=torch.arange(rows + 1, dtype=torch.int32, device=DEVICE),
            cu_num_logits_np=np.arange(rows + 1, dtype=np.int32),
            expanded_local_pos=torch.zeros(rows, dtype=torch.int32, device=DEVICE),
            positions=torch.tensor(positions, dtype=torch.int64, device=DEVICE),
            logits_indices=place,
            input_ids=torch.zeros(rows, dtype=torch.int32, device=DEVICE),
            seq_lens=lengths,
            seq_lens_cpu_upper_bound=lengths.cpu(),
        )

    def step(self, logits: torch.Tensor, slots: Sequence[int], positions: Sequence[int]) -> Any:
        """Draw rows at given positions, whatever tokens the requests have."""
        return self.sampler(logits, self.batch(slots, positions))

    def rows(self, slots: Sequence[int]) -> Any:
        """The batch of the next tokens of requests."""
        batch = self.batch(slots, [len(self.tokens[slot]) - 1 for slot in slots])
        fed = [self.tokens[slot][-1] for slot in slots]
        batch.input_ids = torch.tensor(fed, dtype=torch.int32, device=DEVICE)
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

    def __init__(self, vocab_size: int, most: int, *, method: str = "standard", **options: Any) -> None:
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

        speculative = types.SimpleNamespace(
            num_speculative_tokens=most,
            enable_adaptive_verification=False,
            rejection_sample_method=method,
            draft_sample_method="probabilistic",
            fly_entropy_threshold=0.3,
            fly_entropy_top_k=3,
        )
        super().__init__(vocab_size, speculative=speculative, num_speculative_tokens=most + 1, **options)
        self.rejection_sampler = RejectionSampler(self.sampler, speculative, DEVICE)

    def drafted(self, slots: Sequence[int], drafts: Sequence[Sequence[int]]) -> Any:
        """The batch of a verification: rows of request after request."""
        counts = [len(each) + 1 for each in drafts]
        request = np.repeat(np.arange(len(slots)), counts)
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        steps = np.arange(offsets[-1]) - offsets[request]
        lengths = np.array([len(self.tokens[slot]) for slot in slots])
        fed = [[self.tokens[slot][-1], *each] for slot, each in zip(slots, drafts, strict=True)]

        def uploaded(values: Any, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(np.asarray(values), dtype=dtype, device=DEVICE)

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
