"""FlashInfer on a CPU: the sampling functions of two versions in plain torch, with exact draws.

What a token has to be to be kept is computed as FlashInfer's kernels do, out-of-range parameters included; what is
drawn from the kept ones comes from an inverse distribution function in float64. The walk along drafts has the faults of
the kernel too. Calls are noted in :data:`CALLS`.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fake_dists import FakeDists, fake_dists
from tokendraw_engine_ops.backends import TorchPacker

# Functions that pack weights for SM90, in both layouts.


_V1 = """
import flashinfer_stand_in as stand_in

def interleave_moe_scales_for_sm90_mixed_gemm(scales, group_size=32):
    if scales.dim() != 3:
        raise ValueError("scales must be 3D")
    experts, rows, groups = scales.shape
    packed = scales.reshape(experts, rows, groups // 4, 4).permute(0, 2, 1, 3).contiguous()
    return packed.reshape(experts, groups // 4, rows * 4)


def interleave_moe_weights_for_sm90_mixed_gemm(
    weight,
    quant_type="fp4",
):
    numbers = {"fp4": 1, "int4": 0}
    if quant_type not in numbers:
        raise ValueError(f"quant_type must be one of {list(numbers)}")
    return stand_in.pack(weight, numbers[quant_type], "v1")

def other(): pass
"""
_V2 = (
    _V1.replace('{"fp4": 1, ', '{"fp4": 1, "fp4_fp8": 2, ')
    .replace('"v1"', '"v2"')
    .replace(
        "    packed = scales.reshape(experts, rows, groups // 4, 4).permute(0, 2, 1, 3).contiguous()\n"
        "    return packed.reshape(experts, groups // 4, rows * 4)",
        "    folded = scales.reshape(experts, rows // 64, 4, 16, groups // 4, 4).permute(0, 1, 4, 3, 2, 5)\n"
        "    return folded.contiguous().reshape(experts, rows // 64, groups // 4, 16, 16)",
    )
)
_EXPORTS = """
from .{module} import (
    interleave_moe_scales_for_sm90_mixed_gemm,
    interleave_moe_weights_for_sm90_mixed_gemm,
)
"""
MODULES = {
    "v1": {"flashinfer.fused_moe": _EXPORTS.format(module="core"), "flashinfer.fused_moe.core": _V1},
    "v2": {
        "flashinfer.fused_moe": _EXPORTS.format(module="prepare"),
        "flashinfer.fused_moe.core": "from .prepare import interleave_moe_scales_for_sm90_mixed_gemm\n",
        "flashinfer.fused_moe.prepare": _V2,
    },
    None: {
        "flashinfer.fused_moe": "from .core import cutlass_fused_moe\n",
        "flashinfer.fused_moe.core": "def cutlass_fused_moe(input):\n    raise AssertionError\n",
    },
}
"""Modules by layout, as ``fake_dist`` takes them beside ``flashinfer`` itself."""


def pack(weight: Tensor, quant_type: int, layout: str) -> Tensor:
    """Pack like the kernels, by the packer whose bytes were compared with those of releases of FlashInfer."""
    assert weight.is_contiguous()
    assert weight.data_ptr() % 2 == 0, "the kernels load two bytes at once"
    name = ("int4", "fp4", "fp4_fp8")[quant_type]
    return TorchPacker().pack_weights(weight, format=name, layout=layout)


# The kernels that draw.

IN_MEMORY = -1090519041
"""What the kernel for drafts returns as a token if there is nothing to recover one from."""

CALLS: list[tuple[str, dict[str, Any]]] = []
"""Names and arguments by name, since the list was last cleared."""

_NOISE = "deterministic=True, generator=None, check_nan=False, seed=None, offset=None"
_SAMPLING = f"""
import flashinfer_stand_in as stand_in

def get_seed_and_offset(increment, generator=None, device=None):
    raise AssertionError("the seed was taken on the host")

def softmax(logits, temperature=None, enable_pdl=None):
    return stand_in.softmax(**locals())

def sampling_from_logits(logits, indices=None, {_NOISE}):
    raise AssertionError("its noise ends 16 nats above the median")

def sampling_from_probs(probs, indices=None, {_NOISE}, return_valid=False):
    return stand_in.draw("sampling_from_probs", locals())

def top_p_sampling_from_probs(probs, top_p, indices=None, {_NOISE}, return_valid=False):
    return stand_in.draw("top_p_sampling_from_probs", locals())

def top_k_sampling_from_probs(probs, top_k, indices=None, {_NOISE}, return_valid=False):
    return stand_in.draw("top_k_sampling_from_probs", locals())

def min_p_sampling_from_probs(probs, min_p, indices=None, {_NOISE}, return_valid=False):
    return stand_in.draw("min_p_sampling_from_probs", locals())

def top_k_top_p_sampling_from_probs(
    probs, top_k, top_p, indices=None, filter_apply_order="top_k_first", {_NOISE}, return_valid=False
):
    assert filter_apply_order == "joint", "the other order is two calls"
    return stand_in.draw("top_k_top_p_sampling_from_probs", locals())

def top_p_renorm_probs(probs, top_p, is_deterministic=False):
    return stand_in.top_p_renorm_probs(probs, top_p)

def top_k_renorm_probs(probs, top_k{{deterministic}}):
    return stand_in.top_k_renorm_probs(probs, top_k)

def top_k_mask_logits(logits, top_k):
    return stand_in.top_k_mask_logits(logits, top_k)

def chain_speculative_sampling(
    draft_probs, draft_token_ids, target_probs, maybe_output_accepted_token_num=None,
    maybe_output_emitted_draft_token_num=None, {_NOISE.replace(", check_nan=False", "")},
):
    return stand_in.chain_speculative_sampling(locals())
"""
_CAKE = """
import flashinfer_stand_in as stand_in

def cake_sampling_route(probs, top_k, top_k_max=None):
    return "pipeline"

def top_k_top_p_sampling_from_probs(
    probs, top_k, top_p, *, top_k_max=None, generator=None, philox_seed=None, philox_offset=None,
    out=None, renorm_out=None, workspace=None, enable_pdl=True,
):
    return stand_in.fused(**locals())
"""
SOURCES = {
    "0.6.11.post2": {
        "flashinfer": "",
        "flashinfer.sampling": _SAMPLING.replace("{deterministic}", ""),
        **MODULES["v1"],
    },
    "0.7.2.post1": {
        "flashinfer": "",
        "flashinfer.sampling": _SAMPLING.replace("{deterministic}", ", is_deterministic=False"),
        "flashinfer.cake_sampling": _CAKE,
        **MODULES["v2"],
    },
}
"""Modules by version, as ``fake_dist`` takes them."""


def softmax(logits: Tensor, temperature: Any, enable_pdl: Any) -> Tensor:
    """As the kernel: the temperature is divided by before the maximum is known, so large logits overflow."""
    _note("softmax", "temperature", logits=logits, temperature=temperature)
    assert enable_pdl is None
    if temperature is not None:
        logits = logits * (1 / temperature.float()).unsqueeze(-1)
    return torch.softmax(logits.double(), -1).float()


def top_k_renorm_probs(probs: Tensor, top_k: Tensor) -> Tensor:
    """Keep probabilities at least as large as the k-th; none for k = 0, all for k >= V."""
    _note("top_k_renorm_probs", "top_k", probs=probs, top_k=top_k)
    kept = torch.where(count_above(probs) < top_k.unsqueeze(-1), probs.double(), 0.0)
    return (kept / kept.sum(-1, keepdim=True).clamp(min=1e-8)).float()


def top_p_renorm_probs(probs: Tensor, top_p: Tensor) -> Tensor:
    """Keep probabilities with less than p of the row's mass above, as the kernels for 2048 tokens or more do."""
    _note("top_p_renorm_probs", "top_p", probs=probs, top_p=top_p)
    assert len(probs) < 65536, "more are beyond a grid"
    assert ((top_p < 1) | (top_p > 1e6)).all(), "of a flat row, 2 keeps no more than 1 does"
    weights = probs.double()
    floor = top_p.unsqueeze(-1) * weights.sum(-1, keepdim=True)
    kept = torch.where(mass_above(weights) < floor, weights, 0.0)
    return (kept / kept.sum(-1, keepdim=True)).float()


def top_k_mask_logits(logits: Tensor, top_k: Tensor) -> Tensor:
    """Set logits below the k-th to -inf."""
    _note("top_k_mask_logits", "top_k", logits=logits, top_k=top_k)
    return logits.masked_fill(count_above(logits) >= top_k.unsqueeze(-1), -torch.inf)


def draw(name: str, arguments: dict[str, Any]) -> Any:
    """Run a function that draws from probabilities."""
    _note(name, "top_k", "top_p", "min_p", **arguments)
    probs, top_k, top_p, min_p = (arguments.get(key) for key in ("probs", "top_k", "top_p", "min_p"))
    assert not arguments["check_nan"], "that would wait for the device"
    assert arguments["indices"] is None
    weights = probs.double()
    kept = weights > 0  # NaN is not
    if top_k is not None:
        kept &= count_above(probs) < top_k.unsqueeze(-1)
    if top_p is not None:
        kept &= mass_above(weights) < top_p.unsqueeze(-1)
    if min_p is not None:
        assert (min_p > 0).all(), "0 admits tokens without mass"
        kept &= weights >= weights.amax(-1, keepdim=True) * min_p.unsqueeze(-1)
    if name == "sampling_from_probs":
        assert ((weights.nansum(-1) - 1).abs() < 1e-4).all(), "u is drawn up to 1"
    tokens, valid = pick(torch.where(kept, weights, 0.0), _generator(*_seed(arguments)))
    return (tokens, valid) if arguments["return_valid"] else tokens


def chain_speculative_sampling(arguments: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Verify like the kernel: u reaches 1, NaN and negative values are compared unchanged, and an empty residual gives
    whatever is in memory."""
    _note("chain_speculative_sampling", **arguments)
    draft, ids, target = (arguments[key] for key in ("draft_probs", "draft_token_ids", "target_probs"))
    requests, steps, size = draft.shape
    for rows in (draft, target):
        _check_rows(rows.view(-1, size))
    assert steps
    assert target.shape == (requests, steps + 1, size)
    assert ids.shape == (requests, steps)
    assert ids.dtype == torch.int32
    assert ((ids >= 0) & (ids < size)).all(), "others are read all the same"
    generator = _generator(*_seed(arguments))
    u = 1 - torch.rand(2, requests, steps, generator=generator)  # float32, in (0, 1]
    at = ids.long().unsqueeze(-1)
    accepted = u * draft.gather(-1, at).squeeze(-1) < target[:, :-1].gather(-1, at).squeeze(-1)
    emitted = accepted[0].long().cumprod(-1).sum(-1)
    every = torch.arange(requests)
    more = target[every, emitted].clone()
    rejected = emitted < steps
    more[rejected] -= draft[every, emitted.clamp(max=steps - 1)][rejected]
    more = torch.fmax(more, torch.zeros(()))  # 0 for NaN
    token, valid = pick(more.double(), generator)
    tokens = torch.full((requests, steps + 1), -1, dtype=torch.int32)
    tokens[:, :-1] = torch.where(torch.arange(steps) < emitted.unsqueeze(-1), ids, -1)
    tokens[every, emitted] = torch.where(valid, token, IN_MEMORY)
    counts = []
    for name, result in (
        (
            "maybe_output_accepted_token_num",
            emitted + ((torch.arange(steps) >= emitted[:, None]) & accepted[1]).sum(-1),
        ),
        ("maybe_output_emitted_draft_token_num", emitted),
    ):
        given = arguments[name]
        counts.append((torch.zeros(requests, dtype=torch.int32) if given is None else given).add_(result))
    return tokens, *counts


def fused(probs: Tensor, top_k: Tensor, top_p: Any, top_k_max: Any, **others: Any) -> Tensor:
    """Keep exactly k tokens, lower ids first, then the shortest prefix of mass p; seeded on the host."""
    _note("fused", "top_k", probs=probs, top_k=top_k, top_p=top_p, top_k_max=top_k_max)
    assert top_k_max is not None, "without it the device is waited for"
    assert 1 <= int(top_k.max()) <= top_k_max <= min(1024, probs.shape[-1] - 1)
    values, ids = torch.sort(probs.double(), dim=-1, descending=True, stable=True)
    values = torch.where(torch.arange(values.shape[-1]) < top_k.unsqueeze(-1), values, 0.0)
    before = (values.cumsum(-1) - values) / values.sum(-1, keepdim=True)
    nucleus = top_p.unsqueeze(-1) if isinstance(top_p, Tensor) else top_p
    weights = torch.where((before < nucleus) | (nucleus >= 1.0), values, 0.0)
    state = torch.empty(1, dtype=torch.int64).random_()  # of torch's generator
    picked, _ = pick(weights, _generator(state, torch.zeros(1, dtype=torch.int64)))
    return ids.gather(-1, picked.long().unsqueeze(-1)).squeeze(-1).int()


def _note(name: str, *parameters: str, **arguments: Any) -> None:
    """Note a call, and check the number of rows of its arguments."""
    CALLS.append((name, arguments))
    if parameters:
        rows = arguments["logits"] if "logits" in arguments else arguments["probs"]
        _check_rows(rows)
        for key in parameters:
            if arguments.get(key) is not None:
                _check_parameter(arguments[key], rows)


def _check_rows(rows: Tensor) -> None:
    if rows.dim() != 2 or not rows.is_contiguous() or rows.dtype != torch.float32:
        raise RuntimeError(f"needs contiguous float32 rows, found {rows.shape} {rows.stride()} {rows.dtype}")


def _check_parameter(parameter: Tensor, rows: Tensor) -> None:
    if parameter.dim() != 1 or len(parameter) != len(rows):
        raise ValueError(f"needs one value a row, found {list(parameter.shape)} for {len(rows)} rows")
    if not parameter.is_floating_point() and parameter.dtype != torch.int32:
        raise ValueError(f"needs int32, which it casts to, found {parameter.dtype}")


def _seed(arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    seed, offset = arguments["seed"], arguments["offset"]
    for tensor in (seed, offset):
        assert isinstance(tensor, Tensor), "a number would stay in a CUDA graph"
        assert tensor.dtype == torch.int64
        assert tensor.shape == (1,), "others are read at element 0 up to 0.7.1"
    return seed, offset


def _generator(seed: Tensor, offset: Tensor) -> torch.Generator:
    return torch.Generator().manual_seed((int(seed[0]) * 31 + int(offset[0])) % 2**63)


def pick(weights: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A token a row from weights [rows, V] float64; token 0, invalid, of a row without any."""
    cumulative = weights.cumsum(-1)
    mass = cumulative[:, -1:]
    valid = (mass > 0).squeeze(-1)
    target = torch.rand(len(weights), 1, dtype=torch.float64, generator=generator) * mass
    tokens = torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp(max=weights.shape[-1] - 1)
    return torch.where(valid, tokens, 0).int(), valid


def count_above(x: Tensor) -> Tensor:
    """Count the larger values of the row: [rows, V]."""
    ordered = x.sort(-1).values
    return x.shape[-1] - torch.searchsorted(ordered, x.contiguous(), right=True)


def mass_above(weights: Tensor) -> Tensor:
    """Sum the larger weights of the row: [rows, V]."""
    ordered = weights.sort(-1, descending=True).values
    before = torch.nn.functional.pad(ordered.cumsum(-1), (1, 0))
    return before.gather(-1, count_above(weights))


# A machine without compilers and kernels.


_VARIABLES = (
    "CUDA_PATH",
    "CXX",
    "FLASHINFER_NVCC",
    "FLASHINFER_DISABLE_JIT",
    "FLASHINFER_CUDA_ARCH_LIST",
    "FLASHINFER_DISABLE_VERSION_CHECK",
)


@contextlib.contextmanager
def bare_machine(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[FakeDists]:
    """Yield a folder for fake distributions on a machine without compilers and compiled kernels."""
    for name in _VARIABLES:
        patch.delenv(name, raising=False)
    patch.setenv("CUDA_HOME", str(folder / "cuda"))
    patch.setenv("PATH", str(folder / "bin"))
    patch.setenv("FLASHINFER_WORKSPACE_BASE", str(folder / "workspace"))
    with fake_dists(folder, patch) as dists:
        yield dists


def write(path: Path, text: str = "") -> None:
    """Write an executable file and the folders above."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def add_tools(dists: FakeDists, *names: str) -> None:
    """Install programs of CUDA 12.8, for example ``nvcc``."""
    for name in names:
        folder = dists.folder / ("cuda/bin" if name == "nvcc" else "bin")
        write(folder / name, "#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.61'\n")


def add_jit_cache(
    dists: FakeDists, version: str, name: str = "flashinfer-jit-cache", module: str = "sampling"
) -> Path:
    """Install a distribution of compiled kernels with a module."""
    folder = dists.add(name, version, modules={"flashinfer_jit_cache": ""})
    file = f"flashinfer_jit_cache/jit_cache/{module}/{module}.so"
    write(folder / file)
    (info,) = folder.glob("*.dist-info")
    write(info / "RECORD", f"{file},,\n")
    return folder
