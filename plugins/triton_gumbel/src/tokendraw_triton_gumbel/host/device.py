"""The device that kernels are launched on, and what they are given there in place of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from tokendraw_triton_gumbel.host.arguments import Addresses, Arguments, Tensors
from tokendraw_triton_gumbel.host.compilation import is_interpreted


class LaunchDevice(NamedTuple):
    """Holds what the host has to know of a device."""

    family: str
    """``cuda`` or ``hip``; ``cpu`` for the interpreter."""
    processors: int
    """Its multiprocessors."""
    current: Callable[[], int]
    """Returns the index of the current device, as ``Tensor.get_device`` does of a tensor: -1 for the CPU."""
    is_interpreted: bool
    arguments: Arguments

    @classmethod
    def of(cls, device: torch.device) -> LaunchDevice:
        """Look at a device, once for each object that launches on it."""
        interpreted = is_interpreted()
        arguments: Arguments = Tensors() if interpreted else Addresses()
        if device.type != "cuda":
            return cls("cpu", 1, lambda: -1, interpreted, arguments)
        family = "hip" if torch.version.hip else "cuda"
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        return cls(family, processors, torch.cuda.current_device, interpreted, arguments)
