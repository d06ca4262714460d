"""vLLM's V2 sampler from the sources of a wheel, on any machine with torch and triton, without vLLM's binaries.

Real are the sampler, its states, processors and kernels, and the rows of a batch. Stubbed is what they import from the
rest of vLLM: its variables, configuration, platform, log, the request's record of parameters, and the cache of
compiled kernels' warm-up. On a CPU the kernels run in Triton's interpreter: set ``TRITON_INTERPRET=1`` first.
"""

import importlib.machinery
import importlib.util
import logging
import sys
import types
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal
from unittest.mock import MagicMock

import numpy as np
import torch

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


def use(sources: Path, device: torch.device) -> None:
    """Let this process import vLLM's V2 sampler from ``sources``, the folder that holds ``vllm``."""
    sys.meta_path.insert(0, _Finder(sources, device))


class Engine:
    """A V2 sampler of vLLM's own class, with its own states; ``step`` is its ``__call__``."""

    def __init__(
        self,
        vocab_size: int,
        slots: int,
        device: torch.device,
        *,
        dtype: torch.dtype = torch.float32,
        speculative: Any = None,
        **options: Any,
    ) -> None:
        from vllm.v1.worker.gpu.sample.sampler import Sampler
        from vllm.v1.worker.gpu.states import RequestState

        self.device = device
        self.states = RequestState(
            max_num_reqs=slots,
            max_model_len=128,
            max_num_batched_tokens=slots,
            num_speculative_steps=0,
            vocab_size=vocab_size,
            device=device,
        )
        config = MagicMock(reasoning_config=None, speculative_config=speculative)
        config.model_config.max_model_len, config.model_config.dtype = 128, dtype
        self.sampler = Sampler(config, slots, vocab_size, device, self.states, **options)

    def leave_to_vllm(self) -> None:
        """Have vLLM draw and score, as without the adapter; for the engines of the process, until another is made."""
        from tokendraw_vllm import _v2_logprobs

        self.sampler._tokendraw.can_draw()
        self.sampler._tokendraw = None
        _v2_logprobs._scorers.clear()

    def add(self, slot: int, **parameters: Any) -> None:
        self.states.prompt_len.np[slot] = self.states.prefill_len.np[slot] = 4
        self.sampler.add_request(slot, Parameters(**parameters))
        self.states.prompt_len.copy_to_uva()
        self.states.prefill_len.copy_to_uva()
        self.states.all_token_ids.apply_write()
        self.states.total_len.apply_write()
        self.sampler.apply_staged_writes()

    def batch(self, slots: Sequence[int], positions: Sequence[int]) -> types.SimpleNamespace:
        """The rows of a step, as far as the sampler reads them."""
        rows, device = len(slots), self.device
        mapping = torch.tensor(slots, dtype=torch.int64, device=device)
        place = torch.arange(rows, device=device)
        lengths = torch.tensor(positions, dtype=torch.int32, device=device) + 1
        return types.SimpleNamespace(
            num_reqs=rows,
            expanded_idx_mapping=mapping,
            idx_mapping=mapping,
            idx_mapping_np=np.array(slots),
            cu_num_logits=torch.arange(rows + 1, dtype=torch.int32, device=device),
            cu_num_logits_np=np.arange(rows + 1, dtype=np.int32),
            expanded_local_pos=torch.zeros(rows, dtype=torch.int32, device=device),
            positions=torch.tensor(positions, dtype=torch.int64, device=device),
            logits_indices=place,
            input_ids=torch.zeros(rows, dtype=torch.int32, device=device),
            seq_lens=lengths,
            seq_lens_cpu_upper_bound=lengths.cpu(),
        )

    def step(self, logits: torch.Tensor, slots: Sequence[int], positions: Sequence[int]) -> Any:
        return self.sampler(logits, self.batch(slots, positions))
