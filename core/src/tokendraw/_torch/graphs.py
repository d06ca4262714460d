"""Tells whether a CUDA graph is being captured, and allocates memory outside of its pool."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor


def is_capturing() -> bool:
    """Return whether the current CUDA stream is capturing a CUDA graph: launches are recorded for replays, not run."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


class _Memory:
    """Memory of torch's allocator, offered through the CUDA array interface."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 2,
        }


@torch.inference_mode(False)  # inference tensors could not be changed outside of that mode
def memory_outside_graphs(num_bytes: int, device: torch.device) -> Tensor:
    """Allocate memory while a CUDA graph is being captured. Launches nothing.

    Torch's memory for the captured CUDA stream is the graph's: its replays, and those of earlier graphs, write scratch
    there. The default CUDA stream is never captured, so its memory is not.

    :returns: [num_bytes] uint8, undefined.
    :raises torch.OutOfMemoryError: there is too little memory.
    """
    stream = torch.cuda.default_stream(device)
    address: int = torch.cuda.caching_allocator_alloc(num_bytes, device, stream)
    memory = _Memory(address, num_bytes)  # the tensor holds it
    given_back = weakref.finalize(memory, torch.cuda.caching_allocator_delete, address)
    given_back.atexit = False
    return torch.as_tensor(memory, device=device, dtype=torch.uint8)
