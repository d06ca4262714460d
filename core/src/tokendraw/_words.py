"""How messages are worded: lists of names, versions, and what an exception said."""

from __future__ import annotations

from collections.abc import Iterable

_LONGEST_REASON = 500  # a compiler's whole output is no reason that one can read in a table


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


def spoken(error: BaseException) -> str:
    """Put an exception on one line: its type, then what it says."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # a plugin's own exception class may fail here too
        text = "(its message cannot be printed)"
    if len(text) > _LONGEST_REASON:
        text = text[:_LONGEST_REASON].rstrip() + " ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
