"""The text of the fused kernels, compiled for a CPU, packs as torch's own functions do."""

import ctypes
import shutil
import subprocess

import pytest
import torch

from cuda_batches import WAYS, random_bytes
from tokendraw_native.sm90_w4 import eager, fused
from tokendraw_native.sm90_w4.packer import NativePacker
from tokendraw_native.sm90_w4.words import WORDS

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
LOOP = """
extern "C" void loop(const long long *a, const long long *b, const long long *c, long long *out, long long n) {{
  for (long long i = 0; i < n; ++i) out[i] = {name}<long long>(0, a[i], b[i], c[i]);
}}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Make a kernel of the text of a function: element by element, over tensors as they broadcast."""
    folder = tmp_path_factory.mktemp("kernels")

    def kernel(code):
        name = code.partition("(")[0].split()[-1]
        source, library = folder / f"{name}.cpp", folder / f"{name}.so"
        source.write_text(code + LOOP.format(name=name))
        subprocess.run(
            ["c++", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", source, "-o", library], check=True
        )
        loop = ctypes.CDLL(str(library)).loop

        def run(*tensors):
            given = [tensor.contiguous() for tensor in torch.broadcast_tensors(*tensors)]
            out = torch.empty_like(given[0])
            pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (*given[1:], out)]
            loop(*pointers, ctypes.c_longlong(out.numel()))
            return out

        return run

    return kernel


@pytest.mark.parametrize(("format", "layout"), WAYS)
@pytest.mark.fast_first
def test_its_words_are_those_of_torch(compiled, monkeypatch, format, layout):
    monkeypatch.setattr(fused, "_kernel", compiled)
    words, weights = WORDS[format, layout], random_bytes((2, 128, 192))
    packed = fused.pack(weights, words)
    assert torch.equal(packed, eager.pack(weights, words))
    assert torch.equal(fused.unpack(packed, words), weights)


def test_a_kernel_that_cannot_be_compiled_leaves_the_work_to_torch(monkeypatch):
    def no_compiler(code):
        raise RuntimeError("nvrtc: error: failed to open libnvrtc")

    weights = random_bytes((1, 64, 64))
    monkeypatch.setattr(fused, "_kernel", no_compiler)
    monkeypatch.setattr(fused, "_is_gpu", lambda device: True)
    packer = NativePacker(torch.device("cpu"))
    found = packer.pack_weights(weights, format="fp4", layout="v2")
    assert torch.equal(found, eager.pack(weights, WORDS["fp4", "v2"]))


def test_a_kernel_that_packs_wrongly_is_not_used(compiled, monkeypatch):
    monkeypatch.setattr(fused, "_is_gpu", lambda device: True)
    monkeypatch.setattr(fused, "_kernel", compiled)
    assert fused.is_supported(torch.device("cpu"))
    monkeypatch.setattr(fused, "_kernel", lambda code: lambda *given: compiled(code)(*given) + 1)
    assert not fused.is_supported(torch.device("cpu"))
