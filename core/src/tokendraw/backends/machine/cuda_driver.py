"""Asks the NVIDIA driver for facts about devices, without importing torch.

The calls and the numbers are those of ``cuda.h``; ``CUDA_VISIBLE_DEVICES`` is the driver's to honour. Asking
initialises the driver in this process, as ``torch.cuda`` does: a program that forks workers should ask in the
workers.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from tokendraw.backends.description.host import Host

_COMPUTE_CAPABILITY_MAJOR = 75  # CU_DEVICE_ATTRIBUTE_...
_COMPUTE_CAPABILITY_MINOR = 76
_MULTIPROCESSOR_COUNT = 16
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


class DriverError(Exception):
    """The driver is missing, or a call of the driver failed; the message is a reason in words."""


def open_library() -> Any:
    """Open the driver's library.

    :raises DriverError: it is not installed.
    """
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        return ctypes.CDLL(name)
    except OSError:
        raise DriverError(f"the NVIDIA driver's library {name} is not there") from None


def version(library: Any) -> tuple[int, int]:
    """Return the newest CUDA version supported by the driver, without initialising the driver."""
    number = _integer(library, "cuDriverGetVersion")
    return number // 1000, number % 1000 // 10


def device_count(library: Any) -> int:
    """Count the devices visible to this process."""
    status = library.cuInit(0)
    if status == _NO_DEVICE:
        return 0
    _check("cuInit", status)
    return _integer(library, "cuDeviceGetCount")


def describe(library: Any, index: int) -> Host:
    """Gather the facts about a device. Call :func:`device_count` first; ``index`` has to be below it."""
    device = _integer(library, "cuDeviceGet", index)
    name = ctypes.create_string_buffer(256)
    _check("cuDeviceGetName", library.cuDeviceGetName(name, len(name), device))

    def attribute(number: int) -> int:
        return _integer(library, "cuDeviceGetAttribute", number, device)

    return Host(
        device_type="cuda",
        name=name.value.decode(errors="replace"),
        compute_capability=(attribute(_COMPUTE_CAPABILITY_MAJOR), attribute(_COMPUTE_CAPABILITY_MINOR)),
        sm_count=attribute(_MULTIPROCESSOR_COUNT),
        cuda_version=version(library),
    )


def _integer(library: Any, function: str, *arguments: int) -> int:
    """Call a function with an ``int *`` as first parameter, and return the integer."""
    value = ctypes.c_int()
    _check(function, getattr(library, function)(ctypes.byref(value), *arguments))
    return value.value


def _check(function: str, status: int) -> None:
    if status != 0:
        raise DriverError(f"the NVIDIA driver's {function} failed with status {status}")
