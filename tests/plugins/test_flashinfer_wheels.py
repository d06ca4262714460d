"""native packs bit for bit as real releases of FlashInfer do: as their scale functions, and as their kernels' text."""

import ast
import contextlib
import ctypes
import functools
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import Tensor

import tokendraw
from tokendraw_flashinfer.packing import FORMATS
from tokendraw_flashinfer.upstream import layout_by_number

# Real releases of FlashInfer, of which nothing is imported: the few files that pack weights for SM90, out of a wheel.


MODULES = ("__init__", "core", "prepare")
"""Modules of ``flashinfer.fused_moe`` that may hold the functions."""
KERNELS = "moe_gemm_mixed_utils"
PACK_SCALES = "interleave_moe_scales_for_sm90_mixed_gemm"
PACK_WEIGHTS = "interleave_moe_weights_for_sm90_mixed_gemm"
SOURCES = "FLASHINFER_SOURCES"
"""Variable that names a folder where they were unpacked before, for a machine without a network."""

_KERNEL_FOLDER = "flashinfer/data/csrc/nv_internal/tensorrt_llm/kernels/cutlass_kernels/moe_gemm"
_FILES = [f"flashinfer/fused_moe/{name}.py" for name in MODULES]
_FILES += [f"{_KERNEL_FOLDER}/{KERNELS}.{suffix}" for suffix in ("cu", "h")]

_HOST_RUNTIME = """\
#pragma once
#include <cstdint>
#define __global__
#define __device__
#define __forceinline__ inline
struct dim3 { int x, y; dim3(int x, int y = 1) : x(x), y(y) {} };
using cudaStream_t = void*;
inline dim3 blockIdx(0, 0), threadIdx(0, 0), gridDim(1), blockDim(1);
template <class Kernel, class... Arguments>
void launch(int blocks, dim3 block, Kernel kernel, Arguments... arguments) {
  gridDim = dim3(blocks);
  blockDim = block;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
    for (threadIdx.y = 0; threadIdx.y < block.y; ++threadIdx.y)
      for (threadIdx.x = 0; threadIdx.x < block.x; ++threadIdx.x) kernel(arguments...);
}
"""
_LAUNCH = re.compile(r"(\w+)<<<(\w+), (\w+), 0, stream>>>\(")
_EXPORT = """
extern "C" void pack_{format}(uint8_t* from, uint8_t* to, int rows, int cols, cudaStream_t stream) {{
  tensorrt_llm::kernels::cutlass_kernels::interleave_{format}_weights_for_sm90_mixed_gemm(from, to, rows, cols, stream);
}}
"""


class NotFetchedError(Exception):
    """A wheel cannot be had here; the message says why."""


def unpacked() -> tuple[str, ...]:
    """Return the versions in the folder that is named for them, if one is."""
    folder = os.environ.get(SOURCES)
    return tuple(sorted(path.name for path in Path(folder).iterdir())) if folder else ()


def fetch(version: str, cache: Path) -> Path:
    """Return the folder of the files of a version, which are kept in ``cache``; the wheel itself is not.

    :raises NotFetchedError: pip says why it has no such wheel.
    """
    folder = Path(os.environ.get(SOURCES) or cache) / version
    if folder.is_dir():
        return folder
    with TemporaryDirectory(dir=cache) as temporary:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        options = ["--no-deps", "--only-binary=:all:", "--retries=1", "--timeout=5", f"--dest={temporary}"]
        pip = subprocess.run(
            [*command, *options, f"flashinfer-python=={version}"], capture_output=True, text=True, check=False
        )
        if pip.returncode:
            raise NotFetchedError(pip.stderr.strip().splitlines()[-1])
        (wheel,) = Path(temporary).glob("*.whl")
        unpacked = Path(temporary) / version
        unpacked.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            for name in set(_FILES) & set(archive.namelist()):
                (unpacked / Path(name).name).write_bytes(archive.read(name))
        with contextlib.suppress(OSError):  # another process was quicker
            unpacked.replace(folder)
    return folder


def offers(folder: Path) -> bool:
    """Whether the version exports the functions."""
    names = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse((folder / "__init__.py").read_bytes()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return {PACK_SCALES, PACK_WEIGHTS} <= names


def scale_function(folder: Path) -> Callable[[Tensor], Tensor]:
    """Return the scale function of a version, made of its own text alone."""
    (definition,) = [
        node
        for name in MODULES[1:]
        if (folder / f"{name}.py").exists()
        for node in ast.parse((folder / f"{name}.py").read_bytes()).body
        if isinstance(node, ast.FunctionDef) and node.name == PACK_SCALES
    ]
    definition.decorator_list.clear()  # it logs and traces
    module = ast.Module([definition], type_ignores=[])
    namespace = {"torch": torch}
    exec(compile(module, f"flashinfer of {folder.name}", "exec"), namespace)
    return namespace[PACK_SCALES]


class Kernels:
    """The kernels of a version, compiled for the host or for a GPU of compute capability 9.0."""

    def __init__(self, folder: Path, build: Path, *, cuda: bool) -> None:
        text = (folder / f"{KERNELS}.cu").read_text(encoding="utf-8")
        self.formats = tuple(
            re.findall(r"^void interleave_(\w+?)_weights_for_sm90_mixed_gemm", text, re.MULTILINE)
        )
        if not cuda:
            (build / "cuda_runtime.h").write_text(_HOST_RUNTIME, encoding="utf-8")
            text = _LAUNCH.sub(r"launch(\2, \3, \1, ", text)
        source = build / f"{KERNELS}.cu"
        source.write_text(
            text + "".join(_EXPORT.format(format=name) for name in self.formats), encoding="utf-8"
        )
        library = build / "kernels.so"
        compiler = (
            ["nvcc", "-O3", "-std=c++17", "-arch=sm_90a", "-shared", "-Xcompiler=-fPIC"]
            if cuda
            else [os.environ.get("CXX", "c++"), "-O2", "-std=c++17", "-shared", "-fPIC", "-x", "c++"]
        )
        command = [*compiler, f"-I{build}", f"-I{folder}", str(source), "-o", str(library)]
        subprocess.run(command, check=True, timeout=300)
        self._library = ctypes.CDLL(str(library))

    def pack(self, weights: Tensor, format: str) -> Tensor:
        """Pack weights [E, N, K / 2] uint8 expert by expert, as FlashInfer's binding does."""
        packed = torch.full_like(weights, 0xA5)
        stream = torch.cuda.current_stream(weights.device).cuda_stream if weights.is_cuda else None
        function = getattr(self._library, f"pack_{format}")
        for source, target in zip(weights, packed, strict=True):
            rows, columns = source.shape
            pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (source, target))
            function(*pointers, rows, 2 * columns, ctypes.c_void_p(stream))
        return packed


# The tests.

RELEASES = unpacked() or ("0.6.9", "0.6.10", "0.6.18")
"""One without the functions, and the smallest wheel of each layout."""
BOTH = [(0, 64, 128), (1, 64, 128), (3, 128, 384), (2, 192, 1024), (2, 5760, 2944), (2, 2880, 3072)]
"""Experts, rows and columns that both layouts allow. The last two are GPT-OSS's, whose 2880 columns are padded."""
SCALES = {"v1": [*BOTH, (2, 48, 256)], "v2": BOTH}
WEIGHTS = {"v1": [*BOTH, (1, 16, 64), (2, 48, 192), (2, 5760, 2880), (2, 2880, 2880)], "v2": BOTH}


def of(shapes):
    """A case for each release with packing, and each shape of its layout."""
    return [
        pytest.param(release, layout, shape, id=f"{release}-{layout}-{'x'.join(map(str, shape))}")
        for release in RELEASES
        if (layout := layout_by_number(release))
        for shape in shapes[layout]
    ]


@pytest.fixture(scope="session")
def source(pytestconfig, tmp_path_factory):
    """Returns the folder of a release's files."""
    kept = getattr(pytestconfig, "cache", None)  # not there under `-p no:cacheprovider`
    cache = kept.mkdir("flashinfer_wheels") if kept else tmp_path_factory.mktemp("flashinfer_wheels")

    @functools.cache
    def fetched(release):
        try:
            return fetch(release, cache)
        except NotFetchedError as error:
            return error

    def folder(release):
        found = fetched(release)
        if isinstance(found, NotFetchedError):
            pytest.skip(f"FlashInfer {release} cannot be fetched: {found}")
        return found

    return folder


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def kernels(request, source, tmp_path_factory):
    """Returns the kernels of a release, compiled once for a kind of device, and the kind."""
    compiler = "nvcc" if request.param == "cuda" else os.environ.get("CXX", "c++")
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}, found none")
    compiled = {}

    def of_release(release):
        if release not in compiled:
            build = tmp_path_factory.mktemp("kernels")
            compiled[release] = Kernels(source(release), build, cuda=request.param == "cuda")
        return compiled[release], request.param

    return of_release


def random_bytes(*shape):
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(sum(shape)))


def native(device):
    return tokendraw.load("pack_sm90_w4", "native", device=device)


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_a_release_has_the_functions_promised_by_its_number(source, release):
    assert offers(source(release)) is (layout_by_number(release) is not None)


@pytest.mark.slow
@pytest.mark.parametrize(("release", "layout", "shape"), of(SCALES))
def test_scales_are_packed_as_by_a_release(source, release, layout, shape):
    experts, rows, columns = shape
    scales = random_bytes(experts, rows, columns // 32)
    needed = scale_function(source(release))(scales)
    packed = native("cpu").pack_scales(scales, layout=layout)
    assert packed.shape == needed.shape
    assert torch.equal(packed, needed)


@pytest.mark.slow
@pytest.mark.parametrize(("release", "layout", "shape"), of(WEIGHTS))
def test_weights_are_packed_as_by_the_kernels_of_a_release(kernels, release, layout, shape):
    built, device = kernels(release)
    assert sorted(built.formats) == sorted(FORMATS[layout])
    experts, rows, columns = shape
    weights, packer = random_bytes(experts, rows, columns // 2).to(device), native(device)
    for name in built.formats:
        packed = packer.pack_weights(weights, format=name, layout=layout)
        assert torch.equal(packed, built.pack(weights, name)), name
        assert torch.equal(packer.unpack_weights(packed, format=name, layout=layout), weights), name
