"""How messages are worded: lists of names, versions, and what others said, made fit to print."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST_TEXT = 500
"""Of what others wrote, in characters: a compiler's whole output is no reason that one can read in a table."""
LONGEST_REASON = 2 * LONGEST_TEXT
"""Of a reason that quotes such a text."""
_LONGEST_VALUE = 200


def one_of(items: Iterable[object]) -> str:
    """Write ``a, b or c``; ``nothing`` if there is none."""
    return _listed(items, "or")


def all_of(items: Iterable[object]) -> str:
    """Write ``a, b and c``; ``nothing`` if there is none."""
    return _listed(items, "and")


def _listed(items: Iterable[object], word: str) -> str:
    names = [str(item) for item in items]
    if len(names) < 2:
        return "".join(names) or "nothing"
    return f"{', '.join(names[:-1])} {word} {names[-1]}"


def dotted(version: tuple[int, ...]) -> str:
    """``(8, 0)`` as ``8.0``."""
    return ".".join(map(str, version))


def printable(text: str, limit: int = LONGEST_TEXT) -> str:
    """Make text that somebody else wrote fit to print: escapes for what has no glyph, and an end.

    Control characters move the cursor and colour the terminal, line breaks forge lines of a log, and marks of the
    writing direction show a name as another one.

    :param limit: longest result in characters, before the " ..." that stands for the rest.
    """
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: limit + 1])
    return line if len(line) <= limit else f"{line[:limit].rstrip()} ..."


def one_line(text: str, limit: int = LONGEST_TEXT) -> str:
    """Put prose that somebody else wrote on one printable line, with one space wherever it had any."""
    return printable(" ".join(str.split(text)), limit)


def is_printable(text: object, limit: int = LONGEST_TEXT) -> bool:
    """Whether a value is a string on one line that every terminal shows as it is."""
    return type(text) is str and len(text) <= limit and text.isprintable()


def shown(value: object) -> str:
    """Write a value that may be anything as Python would, on one line and not too long."""
    try:
        return printable(repr(value), _LONGEST_VALUE)
    except Exception:  # more digits than Python converts, or an own __repr__ that raises
        return f"{printable(type(value).__name__)} that cannot be printed"


def said(error: BaseException, limit: int = LONGEST_TEXT) -> str:
    """Put the message of an exception on one line, whatever its class does when it is asked for one."""
    try:
        return one_line(str(error), limit)
    except (Exception, SystemExit):
        return "(its message cannot be printed)"


def spoken(error: BaseException) -> str:
    """Put an exception on one line: its type, then what it says."""
    kind, text = printable(type(error).__name__), said(error)
    return f"{kind}: {text}" if text else kind


def type_name(value: object) -> str:
    """The type of a value as a user would write it: ``list``, ``numpy.ndarray``, ``None``."""
    if value is None:
        return "None"
    kind = type(value)
    module = kind.__module__.partition("._")[0]
    return printable(kind.__name__ if module == "builtins" else f"{module}.{kind.__name__}")
