"""Finds the file of a module of FlashInfer's kernels on this machine, or the reason for its absence.

FlashInfer loads a module, such as ``sampling``, from the first of these that it finds:

=================  ================================================================================================
in the package     ``flashinfer/data/aot/sampling/sampling.so``
in a jit-cache     ``.../jit_cache/sampling/sampling.so`` of a distribution ``flashinfer-jit-cache...`` of its version
compiled earlier   below ``$FLASHINFER_WORKSPACE_BASE/.cache/flashinfer``; ninja has to run to see that it is up to date
compiled now       by nvcc, ninja and a C++ compiler, ``sampling`` in one to three minutes
=================  ================================================================================================

Without any of them the first call of any entry point raises. It also raises where FlashInfer cannot name the target of
the compiler, and reports a device older than sm75. The search takes milliseconds and imports nothing.
(The distribution ``flashinfer-cubin`` holds no kernel that draws.)
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import importlib_metadata

from tokendraw.plugin import Host
from tokendraw_flashinfer.signatures import DISTRIBUTION, installed_version, package_folder

_JIT_CACHE = "flashinfer-jit-cache"
_H20_SMS = 78
_H20_MODULE = "fused_moe_90_h20_prebuilt_d"


@dataclass(frozen=True)
class Module:
    """A module of kernels."""

    name: str
    description: str
    """Names it in reasons."""
    no_compile_reason: str = ""
    """Why it is not compiled on demand; empty: it is."""

    @property
    def file(self) -> str:
        """Return the path of the module below each folder of the search."""
        return f"{self.name}/{self.name}.so"


SAMPLING = Module("sampling", "sampling module")


@dataclass(frozen=True)
class Kernels:
    """The module in use, or the reason for its absence."""

    source: str
    """The place of the module in words; empty without one."""
    reason: str | None = None
    """What is needed and what was found, if there is no module."""


def find(compute_capability: tuple[int, int] | None = None, module: Module = SAMPLING) -> Kernels:
    """Look for a module in FlashInfer's order.

    :param compute_capability: of the device, if known.
    """
    version = installed_version()
    if version is None:
        return Kernels("")
    if (package_folder() / "data" / "aot" / module.file).is_file():
        return Kernels(f"prebuilt, in {DISTRIBUTION} {version}")
    other_versions = []
    for name, distribution_version in _jit_caches(module):
        if (
            distribution_version == version
            or distribution_version.startswith(f"{version}+")
            or os.environ.get("FLASHINFER_DISABLE_VERSION_CHECK")
        ):
            return Kernels(f"prebuilt, in {name} {distribution_version}")
        other_versions.append(f"{name} {distribution_version}")
    without_ninja = [] if shutil.which("ninja") else ["ninja"]
    cached = _compiled_earlier(module, version, compute_capability)
    if cached is not None and not without_ninja and _cuda_home().is_dir() and not _jit_is_disabled():
        return Kernels(f"compiled earlier, in {cached}")
    missing = [] if _nvcc().is_file() else ["nvcc"]
    missing += [*([] if shutil.which(os.environ.get("CXX", "c++")) else ["C++ compiler"]), *without_ninja]
    if not missing and not _jit_is_disabled() and not module.no_compile_reason:
        return Kernels(f"compiled here when the sampler is built, by {_nvcc()}")
    found = "FLASHINFER_DISABLE_JIT set"
    if not _jit_is_disabled():
        found = " and ".join(f"no {tool}" for tool in missing)
    needed, advice = "prebuilt, or nvcc, ninja and a C++ compiler to build it", "install a CUDA toolkit"
    if module.no_compile_reason:
        found = f"one compiled earlier, but {found or 'no CUDA toolkit'}" if cached else "none"
        needed = f"prebuilt or compiled earlier, since {module.no_compile_reason}"
        advice = "call FlashInfer's GEMM once"
    other = f", and {' and '.join(other_versions)} of another version" if other_versions else ""
    advice = f"run `pip install {_JIT_CACHE}=={version}` from FlashInfer's index, or {advice}"
    return Kernels("", f"needs FlashInfer's {module.description} {needed}, found {found}{other}; {advice}")


def gemm_module(host: Host) -> Module:
    """Return the module of kernels that packs weights for SM90: the module of the whole mixed-input GEMM."""
    name, source = "fused_moe_90", package_folder() / "jit" / "fused_moe.py"
    if host.sm_count == _H20_SMS and source.is_file() and _H20_MODULE in source.read_text(encoding="utf-8"):
        name = _H20_MODULE
    reason = "more than 150 CUDA files take too long to compile"
    return Module(name, f"module {name}", no_compile_reason=reason)


def unnamed_target(host: Host) -> str | None:
    """Say why FlashInfer cannot name a device to its compiler; None if it can.

    FlashInfer decides by the version of nvcc, or without nvcc by torch's CUDA version.
    """
    capability = host.compute_capability
    if capability is None or capability[0] != 12 or os.environ.get("FLASHINFER_CUDA_ARCH_LIST"):
        return None
    required = _least_cuda(capability[1])
    version, source = _toolkit() or (host.cuda_version, "the driver")
    if version is None or version >= required:
        return None
    return (
        f"needs CUDA {_format_version(required)} or later for compute capability {_format_version(capability)}, "
        f"found {_format_version(version)} ({source}), which FlashInfer reports as a device below sm75; "
        "install a newer CUDA toolkit"
    )


def _least_cuda(minor: int) -> tuple[int, int]:
    """Read the least CUDA version for compute capability 12.x from the installed FlashInfer's source."""
    try:
        source = (package_folder() / "compilation_context.py").read_text(encoding="utf-8")
    except OSError:
        source = ""
    return (12, 8) if minor == 0 and 'is_cuda_version_at_least("12.8")' in source else (12, 9)


def _jit_caches(module: Module) -> Iterator[tuple[str, str]]:
    """Find name and version of every installed jit-cache with a module.

    Distributions are found by the names of their folders, and their lists of files are searched as text. Reading the
    metadata of all distributions, or checking some thousand files, would take a second on a slow disk.
    """
    for folder in _metadata_folders("flashinfer_jit_cache"):
        distribution = importlib_metadata.Distribution.at(folder)
        record = distribution.read_text("RECORD") or ""
        listed = re.search(rf"^[^,\n]*jit_cache/{re.escape(module.file)}(?=,|$)", record, re.MULTILINE)
        if listed and Path(str(distribution.locate_file(listed[0]))).is_file():
            yield str(distribution.name).lower().replace("_", "-"), str(distribution.version)


def _metadata_folders(prefix: str) -> Iterator[Path]:
    """Find metadata folders on ``sys.path`` of distributions by a prefix of their names, as installers write them."""
    for folder_path in map(Path, sys.path):
        try:
            folders = sorted(folder_path.glob("*.dist-info"))
        except OSError:  # not readable, or an archive
            continue
        yield from (path for path in folders if path.name.lower().replace("-", "_").startswith(prefix))


def _compiled_earlier(
    module: Module, version: str, compute_capability: tuple[int, int] | None
) -> Path | None:
    base = Path(os.environ.get("FLASHINFER_WORKSPACE_BASE") or Path.home())
    target = "" if compute_capability is None else "{}{}".format(*compute_capability)
    for path in sorted((base / ".cache" / "flashinfer" / version).glob(f"*/cached_ops/{module.file}")):
        # The folder names the architectures of all devices of that time, such as 80_90a.
        built_for = path.parents[2].name.split("_")
        if any(not target or re.fullmatch(f"{target}[a-z]?", architecture) for architecture in built_for):
            return path
    return None


def _jit_is_disabled() -> bool:
    return bool(os.environ.get("FLASHINFER_DISABLE_JIT"))


def _cuda_home() -> Path:
    cuda_home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if cuda_home:
        return Path(cuda_home)
    nvcc = shutil.which("nvcc")
    return Path(nvcc).parents[1] if nvcc else Path("/usr/local/cuda")


def _nvcc() -> Path:
    return Path(os.environ.get("FLASHINFER_NVCC") or _cuda_home() / "bin" / "nvcc")


def _toolkit() -> tuple[tuple[int, int], str] | None:
    """Return the CUDA version by which FlashInfer decides, and its source."""
    try:
        run = subprocess.run(
            [_cuda_home() / "bin" / "nvcc", "--version"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        if match := re.search(r"release (\d+)\.(\d+),", run.stdout):
            return (int(match[1]), int(match[2])), "nvcc"
    except (OSError, subprocess.SubprocessError):
        pass
    try:
        written = Path(str(importlib_metadata.distribution("torch").locate_file("torch"))) / "version.py"
        text = written.read_text(encoding="utf-8")
    except (importlib_metadata.PackageNotFoundError, OSError):
        return None
    match = re.search(r"^cuda\b.*=\s*'(\d+)\.(\d+)'", text, re.MULTILINE)
    return ((int(match[1]), int(match[2])), "torch") if match else None


def _format_version(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
