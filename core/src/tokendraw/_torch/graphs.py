"""Tells whether a CUDA graph is being recorded, which forbids uploads and waiting."""

from __future__ import annotations

import torch


def is_capturing() -> bool:
    """Return whether the current stream is recording a CUDA graph: what is launched now is replayed, not run."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]
