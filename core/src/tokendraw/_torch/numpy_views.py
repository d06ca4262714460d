"""Tells whether tensors of a CPU can be worked on in numpy, without a copy."""

from __future__ import annotations

import functools
import sys

import torch


@functools.cache
def numpy_is_usable() -> bool:
    """Whether numpy is installed and fits this torch, and the low half of a word comes first in memory."""
    try:
        torch.zeros(1, dtype=torch.int64, device="cpu").numpy()  # whatever the host made the default
    except RuntimeError:
        return False
    return sys.byteorder == "little"
