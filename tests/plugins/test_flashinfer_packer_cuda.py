"""FlashInfer's packing functions on a CUDA device of compute capability 9.0 with FlashInfer.

Their module is a whole GEMM of more than 150 files. What packs is one of these, and a function of another: a module is
made of them alone, in a minute, and FlashInfer's own functions load it in the place of theirs.
"""

from types import SimpleNamespace

import pytest
import torch

import tokendraw
from tokendraw.sm90_w4 import layout_of_flashinfer
from tokendraw_flashinfer import kernels
from tokendraw_flashinfer.packing import WEIGHTS, Packing
from tokendraw_testing import sync_is_an_error

pytestmark = pytest.mark.gpu

SHAPES = [(1, 64, 128), (3, 128, 384), (2, 5760, 2944), (4, 2880, 3072)]


@pytest.fixture(scope="module")
def device():
    pytest.importorskip("flashinfer", reason="FlashInfer is not installed")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs compute capability 9.0")
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(scope="module")
def small_module(device, tmp_path_factory):
    """FlashInfer's functions load a module of two files in the place of ``fused_moe_90``."""
    from flashinfer.fused_moe import core
    from flashinfer.jit import env
    from flashinfer.jit.core import gen_jit_spec, sm90a_nvcc_flags

    folder = env.FLASHINFER_CSRC_DIR
    whole = (folder / "fused_moe/cutlass_backend/flashinfer_cutlass_fused_moe_binding.cu").read_text()
    function = whole[whole.index(f"void {WEIGHTS}(") :].replace(
        "TVM_FFI_DLL_EXPORT_TYPED_FUNC(init, init);", ""
    )
    packing = folder / "nv_internal/tensorrt_llm/kernels/cutlass_kernels/moe_gemm/moe_gemm_mixed_utils"
    binding = tmp_path_factory.mktemp("binding") / "binding.cu"
    binding.write_text(f'#include "{folder}/tvm_ffi_utils.h"\n#include "{packing}.h"\n{function}')
    spec = gen_jit_spec(
        "packing_alone", [packing.with_suffix(".cu"), binding], extra_cuda_cflags=list(sm90a_nvcc_flags)
    )
    built = spec.build_and_load()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            core,
            "get_cutlass_fused_moe_module",
            lambda backend: SimpleNamespace(**{WEIGHTS: getattr(built, WEIGHTS)}),
        )
        patch.setattr(kernels, "find", lambda *arguments: kernels.Kernels("made of two files"))
        yield


@pytest.fixture(scope="module")
def packer(small_module, device):
    return tokendraw.load("pack_sm90_w4", device=device)


@pytest.fixture(scope="module")
def native(device):
    return tokendraw.load("pack_sm90_w4", "native", device=device)


@pytest.fixture(scope="module")
def packing():
    return Packing.installed()


def random_bytes(*shape, device):
    generator = torch.Generator(device).manual_seed(sum(shape))
    return torch.randint(256, shape, dtype=torch.uint8, device=device, generator=generator)


def test_the_source_agrees_with_the_function(packing, packer):
    assert packing.is_read
    assert packing.layout == layout_of_flashinfer()
    assert (packer.name, packer.resolution.companion) == ("flashinfer", "native")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packing_equals_native_bit_for_bit(packer, native, packing, device, shape):
    experts, rows, columns = shape
    weights = random_bytes(experts, rows, columns // 2, device=device)
    for name in packing.formats:
        packed = packer.pack_weights(weights, format=name, layout=packing.layout)
        assert torch.equal(packed, native.pack_weights(weights, format=name, layout=packing.layout)), name
    scales = random_bytes(experts, rows, columns // 32, device=device)
    packed = packer.pack_scales(scales, layout="upstream")
    assert torch.equal(packed, native.pack_scales(scales, layout=packing.layout))


def test_the_other_layout_goes_to_native(packer, native, packing, device):
    other = "v1" if packing.layout == "v2" else "v2"
    weights = random_bytes(2, 128, 128, device=device)
    packed = packer.pack_weights(weights, format="fp4", layout=other)
    assert torch.equal(packed, native.pack_weights(weights, format="fp4", layout=other))
    assert torch.equal(packer.unpack_weights(packed, format="fp4", layout=other), weights)


def test_weights_at_an_odd_address_are_packed_too(packer, native, packing, device):
    odd = random_bytes(64 * 64 + 1, device=device)[1:].view(1, 64, 64)
    packed = packer.pack_weights(odd, format="int4", layout=packing.layout)
    assert torch.equal(packed, native.pack_weights(odd.clone(), format="int4", layout=packing.layout))


def test_packing_runs_on_the_current_stream_without_waiting(packer, native, packing, device):
    weights = random_bytes(2, 512, 512, device=device)
    needed = native.pack_weights(weights, format="fp4", layout=packing.layout)
    late, stream = torch.zeros_like(weights), torch.cuda.Stream(device)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream), sync_is_an_error():
        torch.cuda._sleep(100_000_000)
        late.copy_(weights)
        packed = packer.pack_weights(late, format="fp4", layout=packing.layout)
    assert not stream.query()
    stream.synchronize()
    assert torch.equal(packed, needed)
