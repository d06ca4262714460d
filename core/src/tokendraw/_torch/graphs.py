"""Tells whether a CUDA graph is being captured: uploads and waiting are then forbidden."""

from __future__ import annotations

import torch


def is_capturing() -> bool:
    """Return whether the current stream is capturing a CUDA graph: launches are recorded for replays, not run."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]
