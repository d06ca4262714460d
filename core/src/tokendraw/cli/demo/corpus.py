"""English prose from the standard library: the language reference behind ``help("import")``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from tokendraw.errors.exceptions import TokendrawError

_BLANK_LINES = re.compile(r"\n\s*\n")
_LIST_MARKER = re.compile(r"\A(?:[*+-]|\d+\.|\[\d+\]) +")
# Quotation marks and emphasis are mark-up of the help pages; without them they read as they would be said.
_MARK_UP = re.compile(r'["“”]|\*\*|(?<!\*)\*(?=\w)|(?<=\w)\*(?!\*)')
# "left-\nhand" becomes "left- hand" when its lines are joined.
_SPLIT_AT_HYPHEN = re.compile(r"(?<=\w)- (?=[a-z])")
_NOT_PROSE = ("::=", ">>>", "---", "===")  # grammars, interpreter transcripts, tables, headings
_LEAST_WORDS = 6


def documentation() -> list[str]:
    """Return the paragraphs of prose in ``pydoc_data.topics``, each once and on one line.

    :raises TokendrawError: this Python was installed without its help pages.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise TokendrawError(
            "'generate' needs the help pages that ship with CPython, 'pydoc_data.topics', found none. "
            "Install Python's full standard library."
        ) from error
    return prose(topics)


def prose(topics: Mapping[str, str]) -> list[str]:
    """Return the paragraphs of full sentences: no code, no grammar, no tables, no headings."""
    return list(dict.fromkeys(_sentences(topics.values())))  # several help pages repeat the same sections


def _sentences(pages: Iterable[str]) -> Iterator[str]:
    for page in pages:
        for block in _BLANK_LINES.split(page):
            line = _LIST_MARKER.sub("", " ".join(block.split()))
            if any(mark in line for mark in _NOT_PROSE):
                continue
            line = _SPLIT_AT_HYPHEN.sub("-", _MARK_UP.sub("", line))
            if line[:1].isupper() and line.endswith((".", ":", ")")) and line.count(" ") >= _LEAST_WORDS - 1:
                yield line
