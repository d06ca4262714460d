"""What a CUDA graph that is being recorded forbids."""

from __future__ import annotations

import torch


def is_capturing() -> bool:
    """Whether the current stream is recording a CUDA graph: what is launched now is replayed, not run."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]
