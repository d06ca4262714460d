"""A machine for FlashInfer, made of files: without compilers and kernels, until a test puts them there."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_dists import FakeDists, fake_dists

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
    """A place for fake distributions, on a machine that has neither compilers nor anything compiled."""
    for name in _VARIABLES:
        patch.delenv(name, raising=False)
    patch.setenv("CUDA_HOME", str(folder / "cuda"))
    patch.setenv("PATH", str(folder / "bin"))
    patch.setenv("FLASHINFER_WORKSPACE_BASE", str(folder / "workspace"))
    with fake_dists(folder, patch) as dists:
        yield dists


def write(path: Path, text: str = "") -> None:
    """Write a file that can be run, and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def add_tools(dists: FakeDists, *names: str) -> None:
    """Install programs such as ``nvcc``, of CUDA 12.8."""
    for name in names:
        folder = dists.folder / ("cuda/bin" if name == "nvcc" else "bin")
        write(folder / name, "#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.61'\n")


def add_jit_cache(
    dists: FakeDists, version: str, name: str = "flashinfer-jit-cache", module: str = "sampling"
) -> Path:
    """Install a distribution of compiled kernels that holds a module."""
    folder = dists.add(name, version, modules={"flashinfer_jit_cache": ""})
    file = f"flashinfer_jit_cache/jit_cache/{module}/{module}.so"
    write(folder / file)
    (info,) = folder.glob("*.dist-info")
    write(info / "RECORD", f"{file},,\n")
    return folder
