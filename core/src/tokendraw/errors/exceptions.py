"""The exceptions and warnings of tokendraw; each warning is given once per process.

::

    TokendrawError
    ├── SamplerUnavailableError      an explicit choice cannot be honoured, or nothing can serve this machine
    ├── InvalidParameterError        a value is outside its range                   (also a ValueError)
    ├── InvalidInputError            a tensor is wrong, or tensors do not fit       (also a ValueError)
    ├── SettingsError                a variable or the configuration file is malformed (also a ValueError)
    └── PluginError                  a plugin breaks the contract of ``docs/plugin-authors.md``
        ├── DuplicatePluginError     two distributions claim one name
        └── FilterError              a filter from moments failed, so that its batch was not drawn

    TokendrawWarning (UserWarning)
    ├── SamplerFallbackWarning       a higher-ranked plugin is installed and was passed over, or failed in a call
    ├── UntestedUpstreamWarning      an upstream version is in range, but nobody has tested it
    └── SettingsWarning              an unknown TOKENDRAW_* variable, or a name in one that no plugin has
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Hashable
from typing import Any

from tokendraw.errors.formatting import MAX_REASON_CHARS, format_line


class TokendrawError(Exception):
    """Base class of every error raised by tokendraw on purpose."""


class SamplerUnavailableError(TokendrawError):
    """The requested sampler cannot serve this machine or request, or no sampler can.

    The message says what was asked, by whom, why not, what would work, and how to undo the choice.
    """

    decisions: tuple[Any, ...] = ()
    """A :class:`tokendraw.resolution.Decision` of every candidate, where the question got that far."""


class InvalidParameterError(TokendrawError, ValueError):
    """A value is outside its range; the message names the field, the row and the value."""


class InvalidInputError(TokendrawError, ValueError):
    """A tensor is wrong in type, layout, shape, dtype or device, or does not fit another. Nothing was launched."""


class SettingsError(TokendrawError, ValueError):
    """A setting is malformed; the message names the variable or the key of the configuration file."""


class PluginError(TokendrawError):
    """A plugin breaks the plugin API, and its author has to mend the plugin; what it raised is the cause."""

    def __str__(self) -> str:
        return format_line(super().__str__(), MAX_REASON_CHARS)  # plugins raise it too, in words of their own


class DuplicatePluginError(PluginError):
    """Two distributions claim the name of a plugin that the user asked for. Neither is imported: uninstall one."""


class FilterError(PluginError):
    """A filter of :mod:`tokendraw.filters` raised, or returned another form. Nothing was drawn."""


class TokendrawWarning(UserWarning):
    """Base class of every tokendraw warning, raised as an error with ``TOKENDRAW_STRICT=1``."""


class SamplerFallbackWarning(TokendrawWarning):
    """The default choice draws with another sampler than the user expects; given once per process and plugin."""


class UntestedUpstreamWarning(TokendrawWarning):
    """The upstream library of a plugin is in its supported range, but its exact version is untested."""


class SettingsWarning(TokendrawWarning):
    """A setting is no variable of tokendraw, or names no plugin; probably a misspelling."""


for _kind in list(globals().values()):
    if isinstance(_kind, type) and issubclass(_kind, (TokendrawError, TokendrawWarning)):
        _kind.__module__ = "tokendraw"  # tracebacks and pickles name what users import


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

    :param strict: raise the warning as an exception instead, every time.
    :param once_for: the subject; None: the text itself.
    :param outcome: the part of ``text`` about the work that goes on after a warning, and not after an error.
    """
    if strict:
        raise category(as_error(text, outcome))
    if is_first((category, text if once_for is None else once_for)):
        warnings.warn(text, category, stacklevel=_depth_of_caller())


def as_error(text: str, outcome: str = "") -> str:
    """Word a warning, less its ``outcome``, as an error of ``TOKENDRAW_STRICT=1``."""
    return f"{text.replace(outcome, '', 1)} TOKENDRAW_STRICT=1 makes this warning an error."


def is_first(subject: Hashable) -> bool:
    """Whether this subject comes up for the first time in this process."""
    with _lock:
        is_new = subject not in _announced
        _announced.add(subject)
    return is_new


def _depth_of_caller() -> int:
    """Count the frames from the caller of this function up to the first one outside of tokendraw and torch._dynamo."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        depth, frame = depth + 1, frame.f_back
    return depth
