"""Describes this machine for resolution, without importing torch.

If torch is loaded already, it is asked, since it will run the sampler. Otherwise the drivers are asked directly. That
initialises NVIDIA's driver in this process, as ``torch.cuda`` does: a program that forks should ask in the workers.
"""

from __future__ import annotations

import ctypes
import platform
import re
import sys
from pathlib import Path
from typing import Any

import importlib_metadata

from tokendraw._torch.importing import parse_device
from tokendraw.backends.description import Host
from tokendraw.errors import SamplerUnavailableError, all_of


class _NoGpuError(Exception):
    """No GPU is usable by torch, or its driver is missing or failed; the message is a reason in words."""


def detect_host(device: str | None = None) -> Host:
    """Describe a device.

    :param device: as torch names it: ``cpu``, ``cuda``, ``cuda:1``, ``mps`` ... (AMD GPUs are ``cuda`` too).
        None: the accelerator if there is one that torch can use, else the CPU.
    :raises InvalidParameterError: ``device`` is not such a name, or names a device that holds no values.
    :raises SamplerUnavailableError: ``device`` is one that this machine, or its torch, does not have.
    """
    device_type, index = parse_device(device)
    if device_type is not None and device_type != "cuda":
        if device_type != "cpu" and not _has_device(str(device), device_type):
            best = detect_host().device_type.replace("rocm", "cuda")
            raise SamplerUnavailableError(
                f"{device!r} needs a device of that name, found {all_of(dict.fromkeys((best, 'cpu')))}. "
                f"Pass device={best!r}, or mend that."
            )
        return Host(device_type=device_type)
    try:
        return _gpu(index)
    except _NoGpuError as reason:
        if device_type is None:
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
    architectures = _rocm_architectures() if build in ("rocm", None) else ()
    if architectures:
        _check_index(index, len(architectures))
        return Host(device_type="rocm", rocm_arch=architectures[index or 0])
    if build == "rocm":
        raise _NoGpuError(f"{TOPOLOGY} lists no GPU")
    return _gpu_by_driver(index)


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
        cuda_version = _newest_cuda(_cuda_driver())
    except _NoGpuError:
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
    for name, platform_name in (("cuda", "cuda"), ("hip", "rocm"), ("xpu", "xpu")):
        if found.get(name, "None") != "None":
            return platform_name
    return "cpu" if found else None


def _has_device(device: str, device_type: str) -> bool:
    """Whether torch has a device that is neither a CPU nor a GPU of CUDA or ROCm, as far as it can be known."""
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "empty"):  # not while another thread is importing it
        try:
            torch.empty(0, device=device, dtype=torch.uint8)
        except Exception:  # which one depends on the device and on the build
            return False
        return True
    if device_type == "mps":
        return _other_accelerator() == device_type
    has_extensions = bool(importlib_metadata.entry_points(group="torch.backends"))
    return has_extensions or (device_type == "xpu" and _torch_build() == device_type)


def _other_accelerator() -> str | None:
    """Name an accelerator other than NVIDIA's and AMD's GPUs, such as ``mps`` or ``xpu``; None without any."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "accelerator"):
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return None if found is None else str(found.type)
    apple = sys.platform == "darwin" and platform.machine() == "arm64"
    return "mps" if apple and _torch_build() is not None else None


# NVIDIA's driver. The calls and the numbers are those of cuda.h; CUDA_VISIBLE_DEVICES is the driver's to honour.

_COMPUTE_CAPABILITY_MAJOR = 75  # CU_DEVICE_ATTRIBUTE_...
_COMPUTE_CAPABILITY_MINOR = 76
_MULTIPROCESSOR_COUNT = 16
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


def _cuda_driver() -> Any:
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        return ctypes.CDLL(name)
    except OSError:
        raise _NoGpuError(f"the NVIDIA driver's library {name} is not there") from None


def _newest_cuda(driver: Any) -> tuple[int, int]:
    """Return the newest CUDA version supported by the driver, without initialising the driver."""
    number = _integer(driver, "cuDriverGetVersion")
    return number // 1000, number % 1000 // 10


def _gpu_by_driver(index: int | None) -> Host:
    driver = _cuda_driver()
    status = driver.cuInit(0)
    if status != _NO_DEVICE:
        _check("cuInit", status)
    _check_index(index, 0 if status == _NO_DEVICE else _integer(driver, "cuDeviceGetCount"))
    device = _integer(driver, "cuDeviceGet", index or 0)
    name = ctypes.create_string_buffer(256)
    _check("cuDeviceGetName", driver.cuDeviceGetName(name, len(name), device))

    def attribute(number: int) -> int:
        return _integer(driver, "cuDeviceGetAttribute", number, device)

    return Host(
        device_type="cuda",
        name=name.value.decode(errors="replace"),
        compute_capability=(attribute(_COMPUTE_CAPABILITY_MAJOR), attribute(_COMPUTE_CAPABILITY_MINOR)),
        sm_count=attribute(_MULTIPROCESSOR_COUNT),
        cuda_version=_newest_cuda(driver),
    )


def _integer(driver: Any, function: str, *arguments: int) -> int:
    value = ctypes.c_int()
    _check(function, getattr(driver, function)(ctypes.byref(value), *arguments))
    return value.value


def _check(function: str, status: int) -> None:
    if status != 0:
        raise _NoGpuError(f"the NVIDIA driver's {function} failed with status {status}")


# AMD's driver: its topology in sysfs, with a node for each CPU and GPU.

TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")


def _rocm_architectures() -> list[str]:
    """List the architecture of each GPU, such as ``gfx942``, in the driver's order, without CPUs.

    Sysfs lists every GPU of the machine: ``HIP_VISIBLE_DEVICES`` and its kin are not taken into account.
    """
    nodes = sorted(TOPOLOGY.glob("*/properties"), key=lambda path: int(path.parent.name))
    # 90402 is gfx942: minor and stepping, two decimal digits each, become a hexadecimal digit each.
    versions = [version for version in map(_gfx_target_version, nodes) if version]
    return [f"gfx{each // 10000}{each // 100 % 100:x}{each % 100:x}" for each in versions]


def _gfx_target_version(properties: Path) -> int:
    try:
        lines = properties.read_text(encoding="ascii").splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("gfx_target_version ")))
    except (OSError, ValueError, IndexError, StopIteration):  # such as another user's node in a container
        return 0
