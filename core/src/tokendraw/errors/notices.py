"""Gives each warning once per process, however often and in whichever thread its cause occurs."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Hashable

from tokendraw.errors.exceptions import TokendrawWarning

_lock = threading.Lock()
_announced: set[Hashable] = set()
_OURS = ("tokendraw.", "tokendraw_testing.", "tokendraw_bench.", "torch._dynamo.")


def announce(
    category: type[TokendrawWarning],
    text: str,
    *,
    strict: bool,
    once_for: Hashable = None,
    outcome: str = "",
) -> None:
    """Warn once per process, category and subject, at the line of tokendraw's caller.

    :param strict: raise the warning as an exception instead, every time, in the words of :func:`as_error`.
    :param once_for: the subject; None: the text itself.
    :param outcome: as of :func:`as_error`.
    """
    if strict:
        raise category(as_error(text, outcome))
    if is_first((category, text if once_for is None else once_for)):
        warnings.warn(text, category, stacklevel=_depth_of_caller())


def as_error(text: str, outcome: str = "") -> str:
    """Word a warning as an error of ``TOKENDRAW_STRICT=1``.

    :param outcome: the part of ``text`` about the work that goes on after a warning, and not after an error.
    """
    return f"{text.replace(outcome, '', 1)} TOKENDRAW_STRICT=1 makes this warning an error."


def is_first(subject: Hashable) -> bool:
    """Whether this subject comes up for the first time in this process."""
    with _lock:
        if subject in _announced:
            return False
        _announced.add(subject)
    return True


def _depth_of_caller() -> int:
    """Count the frames from the caller of this function up to the first frame outside of tokendraw.

    A compiled program has frames of torch._dynamo in between.
    """
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        depth, frame = depth + 1, frame.f_back
    return depth
