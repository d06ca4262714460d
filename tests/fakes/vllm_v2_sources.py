"""vLLM's V2 sampler from the sources of a wheel, on any machine with torch and triton, without vLLM's binaries.

Real are the sampler, its states, processors and kernels, and the rows of a batch. Stubbed is what they import from the
rest of vLLM: its variables, configuration, platform, log, the request's record of parameters, and the cache of
compiled kernels' warm-up. On a CPU the kernels run in Triton's interpreter: set ``TRITON_INTERPRET=1`` first.
"""

import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import textwrap
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

import vllm_stand_in
from vllm_engine import DEVICE, ON_GPU, DraftingEngine, Parameters

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


FROM_STAND_IN = (
    "vllm.config",
    "vllm.config.model",
    "vllm.distributed.parallel_state",
    "vllm.v1.worker.gpu.model_states.interface",
)


def _of_platform(name: str) -> Any:
    if name.startswith(("is_", "supports_", "has_")):
        return lambda *_, **__: False
    raise AttributeError(name)


def _of_envs(name: str) -> Any:
    """vLLM's variables: all off, but for limits."""
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

    is_cuda = device.type == "cuda"
    processors = torch.cuda.get_device_properties(0).multi_processor_count if is_cuda else 4
    asked = {
        "device_type": device.type,
        "simple_compile_backend": "eager",
        "is_cuda": lambda: is_cuda,
        "is_cuda_alike": lambda: is_cuda,
        "num_compute_units": lambda _=0: processors,
        "get_device_capability": lambda *_: MagicMock(major=9, minor=0, as_version_str=lambda: "9.0"),
    }
    contents: dict[str, dict[str, Any]] = {
        "vllm.platforms": {
            "current_platform": _mock("platform", asked, _of_platform),
            "vllm_version_matches_substr": lambda _: False,
        },
        "vllm.sampling_params": {"SamplingParams": Parameters, "MAX_LOGPROB_TOKEN_IDS": 128},
        "vllm.triton_utils": {
            # its filters need more than the interpreter has, and have another way
            "HAS_TRITON": is_cuda,
            "triton": triton,
            "tl": triton.language,
        },
        "vllm.utils.platform_utils": {
            "is_uva_available": lambda: False,
            "num_compute_units": asked["num_compute_units"],
        },
        "vllm.utils.torch_utils": {
            "PIN_MEMORY": False,
            "async_tensor_h2d": host_to_device,
            "get_accelerator_view_from_cpu_tensor": None,
        },
    }
    for name in FROM_STAND_IN:
        contents[name] = {}
        exec(textwrap.dedent(vllm_stand_in.MODULES[name]), contents[name])
    envs = {"vllm.envs": _mock("vllm.envs", {}, _of_envs)}
    return envs | {name: _mock(name, attributes) for name, attributes in contents.items()}


def _mock(name: str, attributes: dict[str, Any], other: Any = lambda _: MagicMock()) -> types.ModuleType:
    """A module with some attributes, and others by their names."""
    module = types.ModuleType(name)
    vars(module).update({"__getattr__": other} | attributes)
    return module


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
        return _mock(spec.name, {})

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def sources() -> Path | None:
    """Return the folder that holds ``vllm``: of the variable ``VLLM_SOURCES``, else of the installation."""
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
        from tokendraw_vllm import v2

        v2.install()
        yield
    sys.meta_path[:] = before
    vllm_stand_in.forget()


def main() -> None:
    """Print which parts serve the installed vLLM: by their seams, then by the proofs, as if it were untested."""
    import logging

    import tokendraw_vllm
    from tokendraw_vllm import _engine, _parts, _v1

    logging.basicConfig(format="%(message)s")
    logging.getLogger("vllm.tokendraw").setLevel("INFO")
    _engine.TESTED = ()
    for part in _engine.SEAMS:
        reason = _engine.misfits().get(part, "stands on a part that is left alone")
        print(
            f"vLLM {_engine.version()}, {part}: {'whole' if _engine.is_whole(part) else reason}", flush=True
        )
    is_served = _engine.is_whole(_parts.SAMPLER)
    tokendraw_vllm.register()
    _v1.MIN_REFERENCE_VOCABULARY = 0
    vllm_stand_in.v1_sampler()(torch.randn(2, 50_000), {}, torch.tensor([5, 5]), None)
    if is_served:
        importlib.import_module("triton_on_cpu")
        vllm_stand_in.forget()
        with vllm_with_tokendraw():
            for drawn in (False, True):
                engine = DraftingEngine(50, 3, method="block" if drawn else "standard", drawn=drawn)
                assert engine.sampler._tokendraw.can_draw()


if __name__ == "__main__":
    main()
