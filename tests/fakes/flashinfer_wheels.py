"""Real releases of FlashInfer, of which nothing is imported: the few files that pack weights for SM90, out of a wheel.

The scale function is plain torch, and its text runs by itself. The kernels stand in one CUDA file that includes nothing
but the CUDA runtime: nvcc makes a library of it, and with a page of C++ in place of that runtime every host compiler
does, whose threads are then the turns of four loops.
"""

import ast
import contextlib
import ctypes
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

MODULES = ("__init__", "core", "prepare")
"""Modules of ``flashinfer.fused_moe`` that may hold the functions."""
KERNELS = "moe_gemm_mixed_utils"
SCALES = "interleave_moe_scales_for_sm90_mixed_gemm"
WEIGHTS = "interleave_moe_weights_for_sm90_mixed_gemm"
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
    return {SCALES, WEIGHTS} <= names


def scale_function(folder: Path) -> Callable[[Tensor], Tensor]:
    """Return the scale function of a version, made of its own text alone."""
    (definition,) = [
        node
        for name in MODULES[1:]
        if (folder / f"{name}.py").exists()
        for node in ast.parse((folder / f"{name}.py").read_bytes()).body
        if isinstance(node, ast.FunctionDef) and node.name == SCALES
    ]
    definition.decorator_list.clear()  # it logs and traces
    module = ast.Module([definition], type_ignores=[])
    namespace = {"torch": torch}
    exec(compile(module, f"flashinfer of {folder.name}", "exec"), namespace)
    return namespace[SCALES]


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
