"""Recognises device faults in torch's errors: further calls of a plugin on the device will fail too."""

from __future__ import annotations

import torch

_FAULTS = ("CUDA error: ", "HIP error: ")
_OUT_OF_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "[enforce fail at alloc_cpu.cpp",
    "CUDA error: out of memory",
    "HIP error: out of memory",
)
"""Texts in a RuntimeError that torch raises where it has no class for the fault."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether a host or a device had too little memory left."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def is_device_fault(error: BaseException | None) -> bool:
    """Whether a kernel, or the driver, failed. ``torch.AcceleratorError`` is a RuntimeError; older versions lack it."""
    if not isinstance(error, RuntimeError) or is_out_of_memory(error):
        return False
    kind = getattr(torch, "AcceleratorError", None)
    return (kind is not None and isinstance(error, kind)) or any(text in str(error) for text in _FAULTS)
