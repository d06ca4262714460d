"""What the user hears once, however often a sampler is loaded or drawn with, from whichever thread."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Hashable

from tokendraw._candidate import Resolution
from tokendraw._errors import SamplerFallbackWarning, TokendrawWarning, UntestedUpstreamWarning

_lock = threading.Lock()
_said: set[Hashable] = set()


def announce(
    category: type[TokendrawWarning],
    text: str,
    *,
    strict: bool,
    stacklevel: int,
    once_for: Hashable = None,
) -> None:
    """Warn once per process, category and subject.

    :param strict: raise the warning as an exception instead, every time.
    :param stacklevel: 1 is the caller of this function.
    :param once_for: the subject; None: the text itself.
    """
    if strict:
        raise category(text)
    if is_first((category, text if once_for is None else once_for)):
        warnings.warn(text, category, stacklevel=stacklevel + 1)


def tell_of(resolution: Resolution, *, strict: bool, stacklevel: int, once_for: Hashable = None) -> None:
    """Tell what a decision passed over, once for ``once_for``, and the untested versions that it uses.

    :param strict: raise the first of these warnings instead.
    :param stacklevel: 1 is the caller of this function.
    """
    if resolution.fallback:
        text = resolution.fallback
        announce(SamplerFallbackWarning, text, strict=strict, stacklevel=stacklevel + 1, once_for=once_for)
    for text in resolution.untested:
        announce(UntestedUpstreamWarning, text, strict=strict, stacklevel=stacklevel + 1)


def is_first(subject: Hashable) -> bool:
    """Whether nobody has asked about this subject in this process before."""
    with _lock:
        if subject in _said:
            return False
        _said.add(subject)
    return True
