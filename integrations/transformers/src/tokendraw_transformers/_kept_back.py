"""Finds the arguments of ``model.generate`` that it does not pass to a callable ``custom_generate``.

``generate`` takes ``streamer``, ``synced_gpus`` and ``assistant_model``, and drops all three on the way to a callable,
without a word (``_extract_generation_mode_kwargs`` of transformers 5). They still stand in its frame, which is where
they are read; nothing is changed there.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from transformers import GenerationMixin

from tokendraw_transformers._supported import KEPT_BACK


def kept_back() -> dict[str, Any]:
    """Look up the arguments of the ``model.generate`` that is running; empty if none is."""
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame = sys._getframe(1)
    while frame.f_code is not code:
        if frame.f_back is None:
            return {}
        frame = frame.f_back
    return {name: frame.f_locals[name] for name in KEPT_BACK}
