"""The exceptions and warnings of tokendraw, and the wording of messages. Each warning is given once per process.

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
    ├── UntestedUpstreamWarning      an upstream version is in range, but was not tested
    └── SettingsWarning              an unknown TOKENDRAW_* variable, or a name in one that no plugin has
"""

from __future__ import annotations

import difflib
import sys
import threading
import warnings
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

MAX_TEXT_CHARS = 500
"""Longest foreign text in a message, in characters: a compiler's whole output cannot be read in a table."""
MAX_REASON_CHARS = 2 * MAX_TEXT_CHARS
"""Longest reason that quotes such a text, in characters."""
_MAX_VALUE_CHARS = 200


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


for _class in list(globals().values()):
    if isinstance(_class, type) and issubclass(_class, (TokendrawError, TokendrawWarning)):
        _class.__module__ = "tokendraw"  # tracebacks and pickles name what users import


_lock = threading.Lock()
_announced: set[Hashable] = set()
_OURS = ("tokendraw.", "tokendraw_testing.", "tokendraw_bench.", "torch._dynamo.")


def announce(
    category: type[TokendrawWarning], text: str, *, strict: bool, once_for: Hashable = None, outcome: str = ""
) -> None:
    """Warn once per process, category and subject, at the line of tokendraw's caller.

    :param strict: raise the warning as an exception instead, every time.
    :param once_for: the subject; None: the text itself.
    :param outcome: the part of ``text`` about the work that goes on after a warning, and not after an error.
    """
    if strict:
        raise category(as_error(text, outcome))
    subject = category, text if once_for is None else once_for
    with _lock:
        is_new = subject not in _announced
        _announced.add(subject)
    if is_new:
        warnings.warn(text, category, stacklevel=_depth_of_caller())


def as_error(text: str, outcome: str = "") -> str:
    """Word a warning, less its ``outcome``, as an error of ``TOKENDRAW_STRICT=1``."""
    return f"{text.replace(outcome, '', 1)} TOKENDRAW_STRICT=1 makes this warning an error."


def _depth_of_caller() -> int:
    """Count the frames from the caller of this function up to the first one outside of tokendraw and torch._dynamo."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        depth, frame = depth + 1, frame.f_back
    return depth


# Words for messages.


def one_of(items: Iterable[object]) -> str:
    """Write ``a, b or c``; ``nothing`` for an empty list."""
    return _listed(items, "or")


def all_of(items: Iterable[object]) -> str:
    """Write ``a, b and c``; ``nothing`` for an empty list."""
    return _listed(items, "and")


def _listed(items: Iterable[object], word: str) -> str:
    names = [str(item) for item in items]
    if len(names) < 2:
        return "".join(names) or "nothing"
    return f"{', '.join(names[:-1])} {word} {names[-1]}"


def nearest(word: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """Find the known word with ``word`` as a misspelling, or return None.

    Another number is another word: ``float64`` is no misspelling of ``float16``.

    :param likeness: least similarity, from 0 to 1, of words that do not consist of the same letters.
    """
    digits = sorted(filter(str.isdigit, word))
    for near in difflib.get_close_matches(word[:MAX_TEXT_CHARS], list(known), n=3):
        has_same_letters = sorted(near) == sorted(word)
        is_similar = difflib.SequenceMatcher(None, near, word).ratio() >= likeness
        if (has_same_letters or is_similar) and digits in ([], sorted(filter(str.isdigit, near))):
            return near
    return None


def nearest_or_all(word: object, known: Sequence[str]) -> str:
    """Write ``the nearest is 'top_k'``, or ``known are top_k and top_p`` for a word like none of them."""
    near = nearest(word, known) if isinstance(word, str) else None
    return f"known are {all_of(known)}" if near is None else f"the nearest is {near!r}"


def dotted(version: tuple[int, ...]) -> str:
    """Write ``(8, 0)`` as ``8.0``."""
    return ".".join(map(str, version))


def printable(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    """Make foreign text fit to print: escape unprintable characters, and limit the length.

    Control characters move the cursor, line breaks forge lines of a log, marks of direction show another name.

    :param limit: longest result in characters, before the " ..." that stands for the rest.
    """
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: limit + 1])
    return line if len(line) <= limit else f"{line[:limit].rstrip()} ..."


def format_line(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    """Write foreign prose on one printable line, with each run of white space as one space."""
    return printable(" ".join(str.split(text)), limit)


def is_printable(text: object, limit: int = MAX_TEXT_CHARS) -> bool:
    return type(text) is str and len(text) <= limit and text.isprintable()


def format_value(value: object) -> str:
    """Write any value as Python would, on a single line of limited length."""
    try:
        return printable(repr(value), _MAX_VALUE_CHARS)
    except Exception:  # more digits than Python converts, or an own __repr__ that raises
        return f"{printable(type(value).__name__)} that cannot be printed"


def format_message(error: BaseException, limit: int = MAX_TEXT_CHARS) -> str:
    """Write the message of an exception on a single line, even if its class fails to give any."""
    try:
        return format_line(str(error), limit)
    except (Exception, SystemExit):
        return "(its message cannot be printed)"


def format_error(error: BaseException) -> str:
    """Write an exception on a single line: its type, then its message."""
    name, text = printable(type(error).__name__), format_message(error)
    return f"{name}: {text}" if text else name


def type_name(value: object) -> str:
    """Name the type of a value as a user would write it: ``list``, ``numpy.ndarray``, ``None``."""
    if value is None:
        return "None"
    cls = type(value)
    separator = "." if cls.__module__.startswith("tokendraw.") else "._"
    module = cls.__module__.partition(separator)[0]
    return printable(cls.__name__ if module == "builtins" else f"{module}.{cls.__name__}")


_ON_AN_INDEX = False  # publishing turns this to True

_FOLDERS = {
    "tokendraw": "./core",
    "tokendraw-testing": "./testing",
    "tokendraw-bench": "./bench",
    "tokendraw-native": "./plugins/native",
    "tokendraw-cpu": "./plugins/cpu",
    "tokendraw-flashinfer": "./plugins/flashinfer",
    "tokendraw-aiter": "./plugins/aiter",
    "tokendraw-triton-gumbel": "./plugins/triton_gumbel",
    "tokendraw-engine-ops": "./engine_ops",
    "tokendraw-sglang": "./integrations/sglang",
    "tokendraw-transformers": "./integrations/transformers",
    "tokendraw-vllm": "./integrations/vllm",
}


def pip_install(distribution: str, extra: str = "", *, options: str = "") -> str:
    """Write the command to install a distribution: ``pip install './core[files]'``."""
    source = distribution if _ON_AN_INDEX else _FOLDERS.get(distribution, distribution)
    target = f"'{source}[{extra}]'" if extra else source
    return " ".join(filter(None, ("pip install", options, target)))


def where(distribution: str) -> str:
    """Write where to run the command, as a sentence continues: `` in tokendraw's checkout``, or nothing."""
    return "" if _ON_AN_INDEX or distribution not in _FOLDERS else " in tokendraw's checkout"


def how_to_install(distribution: str, extra: str = "") -> str:
    """Write the command in backquotes and where to run it, as a sentence continues after ``run``."""
    return f"`{pip_install(distribution, extra)}`{where(distribution)}"


NATIVE = how_to_install("tokendraw-native")
