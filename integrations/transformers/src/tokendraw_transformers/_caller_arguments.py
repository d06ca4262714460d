"""Finds the arguments of ``model.generate`` that never reach a callable ``custom_generate``.

``generate`` takes ``streamer``, ``synced_gpus`` and ``assistant_model``, and drops all three on the way to a callable,
without a word (``_extract_generation_mode_kwargs`` of transformers 5). They are read from the frame of ``generate``;
nothing is changed there.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from transformers import GenerationMixin

from tokendraw_transformers._versions import CALLER_ARGUMENTS


def caller_arguments() -> dict[str, Any]:
    """Look up the arguments of the running ``model.generate``; empty without a running call."""
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame = sys._getframe(1)
    while frame.f_code is not code:
        if frame.f_back is None:
            return {}
        frame = frame.f_back
    return {name: frame.f_locals[name] for name in CALLER_ARGUMENTS}
