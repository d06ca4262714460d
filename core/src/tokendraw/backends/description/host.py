"""The facts about a machine and a device, the basis of every negotiation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from tokendraw.backends.description.declared import at_least, check_fields

_Count: TypeAlias = Annotated[int, at_least(0)]


@dataclass(frozen=True, kw_only=True)
class Host:
    """The facts about a device and the software around it, gathered by :func:`tokendraw.resolution.detect_host`.

    :ivar device_type: ``cpu``, ``cuda`` (NVIDIA), ``rocm`` (AMD), ``mps``, ``xpu`` ...
    :ivar name: Name of the device, as its driver gives it; "" if unknown.
    :ivar compute_capability: CUDA compute capability (major, minor) of an NVIDIA GPU; None on other devices.
    :ivar rocm_arch: Architecture of an AMD GPU, such as ``gfx942``; None on other devices.
    :ivar sm_count: Number of streaming multiprocessors or compute units; None if unknown.
    :ivar cuda_version: CUDA version of the installed driver.
    :raises InvalidParameterError: a ValueError: a field is not of the type that it declares.
    """

    device_type: str = "cpu"
    name: str = ""
    compute_capability: tuple[_Count, _Count] | None = None
    rocm_arch: str | None = None
    sm_count: _Count | None = None
    cuda_version: tuple[_Count, _Count] | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def __str__(self) -> str:
        parts = []
        if self.compute_capability:
            parts.append("compute capability {}.{}".format(*self.compute_capability))
        if self.rocm_arch:
            parts.append(self.rocm_arch)
        if self.sm_count:
            parts.append(f"{self.sm_count} SMs")
        label = f"{self.device_type} ({self.name})" if self.name else self.device_type
        return ", ".join([label, *parts])
