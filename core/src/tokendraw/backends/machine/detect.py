"""Gathers the facts about this machine for resolution, without importing torch.

If torch is loaded already, it is asked, since it will run the sampler. Otherwise the drivers are asked
directly.
"""

from __future__ import annotations

import platform
import re
import sys
from typing import Any

import importlib_metadata

from tokendraw._torch.device_names import parse
from tokendraw.backends.description.host import Host
from tokendraw.backends.machine import cuda_driver, kfd
from tokendraw.errors.exceptions import SamplerUnavailableError
from tokendraw.errors.formatting import all_of


class _NoGpuError(Exception):
    """No GPU is usable by torch; the message is a reason in words."""


def detect_host(device: str | None = None) -> Host:
    """Gather the facts about a device.

    :param device: as torch names it: ``cpu``, ``cuda``, ``cuda:1``, ``mps`` ... (AMD GPUs are ``cuda`` too).
        None: the accelerator if there is one that torch can use, else the CPU.
    :raises InvalidParameterError: ``device`` is not such a name, or names a device that holds no values.
    :raises SamplerUnavailableError: ``device`` is one that this machine, or its torch, does not have.
    """
    kind, index = parse(device)
    if kind is not None and kind != "cuda":
        if kind != "cpu" and not _has_device(str(device), kind):
            best = detect_host().device_type.replace("rocm", "cuda")
            raise SamplerUnavailableError(
                f"{device!r} needs a device of that name, found {all_of(dict.fromkeys((best, 'cpu')))}. "
                f"Pass device={best!r}, or mend that."
            )
        return Host(device_type=kind)
    try:
        return _gpu(index)
    except _NoGpuError as reason:
        if kind is None:
            return Host(device_type=_other_accelerator() or "cpu")
        raise SamplerUnavailableError(
            f"{device!r} needs a CUDA or ROCm device, found none to use: {reason}. "
            "Pass device='cpu', or mend that."
        ) from None


def _gpu(index: int | None) -> Host:
    torch = sys.modules.get("torch")
    if hasattr(torch, "cuda") and hasattr(torch, "version"):  # not while another thread is importing it
        return _gpu_by_torch(torch, index)
    build = _torch_build()
    if build in ("cpu", "xpu"):
        raise _NoGpuError(f"the installed torch is built for the {build.upper()} alone")
    architectures = kfd.architectures() if build in ("rocm", None) else ()
    if architectures:
        _check_index(index, len(architectures))
        return Host(device_type="rocm", rocm_arch=architectures[index or 0])
    if build == "rocm":
        raise _NoGpuError(f"{kfd.TOPOLOGY} lists no GPU")
    try:
        library = cuda_driver.open_library()
        _check_index(index, cuda_driver.device_count(library))
        return cuda_driver.describe(library, index or 0)
    except cuda_driver.DriverError as error:
        raise _NoGpuError(str(error)) from None


def _gpu_by_torch(torch: Any, index: int | None) -> Host:
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        reason = "sees no device" if built else "is built for the CPU alone"
        raise _NoGpuError(f"the installed torch {reason}")
    _check_index(index, torch.cuda.device_count())
    properties = torch.cuda.get_device_properties(torch.cuda.current_device() if index is None else index)
    if torch.version.hip:
        arch = properties.gcnArchName.split(":")[0]  # gfx942:sramecc+:xnack-
        return Host(device_type="rocm", name=properties.name, rocm_arch=arch)
    try:
        cuda_version = cuda_driver.version(cuda_driver.open_library())
    except cuda_driver.DriverError:
        cuda_version = None
    return Host(
        device_type="cuda",
        name=properties.name,
        compute_capability=(properties.major, properties.minor),
        sm_count=properties.multi_processor_count,
        cuda_version=cuda_version,
    )


def _check_index(index: int | None, count: int) -> None:
    if count == 0:
        raise _NoGpuError("the driver lists no device")
    if index is not None and index >= count:
        raise _NoGpuError(f"its index needs {index + 1} devices, found {count}")


def _torch_build() -> str | None:
    """Tell the platform of the installed torch: ``cpu``, ``cuda``, ``rocm``, ``xpu``; None if unknown."""
    try:
        distribution = importlib_metadata.distribution("torch")
        local = str(distribution.version).partition("+")[2]
        written = (distribution.locate_file("torch") / "version.py").read_text(encoding="utf-8")
    except (ImportError, OSError, KeyError):
        return None
    if local.startswith("cpu"):
        return "cpu"
    # A wheel without a local version may be built for anything; its version.py says `cuda = '13.0'` or so.
    found = dict(re.findall(r"^(cuda|hip|xpu)\b.*=\s*(.+)$", written, re.MULTILINE))
    if found.get("cuda", "None") != "None":
        return "cuda"
    if found.get("hip", "None") != "None":
        return "rocm"
    if found.get("xpu", "None") != "None":
        return "xpu"
    return "cpu" if found else None


def _has_device(device: str, kind: str) -> bool:
    """Whether torch has a device that is neither a CPU nor a GPU of CUDA or ROCm, as far as it can be known."""
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "empty"):  # not while another thread is importing it
        try:
            torch.empty(0, device=device, dtype=torch.uint8)
        except Exception:  # which one depends on the kind and on the build
            return False
        return True
    if kind == "mps":
        return _other_accelerator() == kind
    has_extensions = bool(importlib_metadata.entry_points(group="torch.backends"))
    return has_extensions or (kind == "xpu" and _torch_build() == kind)


def _other_accelerator() -> str | None:
    """Name an accelerator other than NVIDIA's and AMD's GPUs, such as ``mps`` or ``xpu``; None without any."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "accelerator"):
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return None if found is None else str(found.type)
    apple = sys.platform == "darwin" and platform.machine() == "arm64"
    return "mps" if apple and _torch_build() is not None else None
