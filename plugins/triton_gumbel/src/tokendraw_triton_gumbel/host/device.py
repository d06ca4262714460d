"""The device of an operation: kind, multiprocessors, and form of kernel arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from tokendraw_triton_gumbel.host.arguments import AddressConverter, ArgumentConverter, TensorConverter
from tokendraw_triton_gumbel.host.compilation import is_interpreted


class LaunchDevice(NamedTuple):
    """The facts about a device for launches."""

    family: str
    """``cuda`` or ``hip``; ``cpu`` for the interpreter."""
    processors: int
    """Number of multiprocessors."""
    current_index: Callable[[], int]
    """Returns the index of the current device, as ``Tensor.get_device`` does of a tensor: -1 for the CPU."""
    converter: ArgumentConverter

    @classmethod
    def of(cls, device: torch.device) -> LaunchDevice:
        """Inspect a device, once for each sampler or processor."""
        converter: ArgumentConverter = TensorConverter() if is_interpreted() else AddressConverter()
        if device.type != "cuda":
            return cls("cpu", 1, lambda: -1, converter)
        family = "hip" if torch.version.hip else "cuda"
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        return cls(family, processors, torch.cuda.current_device, converter)
