"""Warnings that the user hears once, however often a sampler is loaded, from whichever thread."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Hashable

from tokendraw._errors import SamplerFallbackWarning, TokendrawWarning

_lock = threading.Lock()
_said: set[Hashable] = set()


def announce(category: type[TokendrawWarning], text: str, *, strict: bool, stacklevel: int) -> None:
    """Warn once per process and text; of a fallback, once per process.

    :param strict: raise the warning as an exception instead, every time.
    :param stacklevel: 1 is the caller of this function.
    """
    if strict:
        raise category(text)
    key: Hashable = category if category is SamplerFallbackWarning else (category, text)
    with _lock:
        if key in _said:
            return
        _said.add(key)
    warnings.warn(text, category, stacklevel=stacklevel + 1)
