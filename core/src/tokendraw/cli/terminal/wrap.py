"""Breaks lines of text streamed to a terminal."""

from __future__ import annotations

import re

_PIECES = re.compile(r"\s*\S+|\s+")
_ROOM_FOR_PUNCTUATION = 2  # which follows its word without a space and so cannot move to the next line


class Wrapper:
    """Turns the space before a word beyond the width into a line break.

    :param width: columns of the terminal.
    """

    def __init__(self, width: int) -> None:
        self._room = width - _ROOM_FOR_PUNCTUATION
        self._column = 0

    def __call__(self, text: str) -> str:
        """Return ``text`` with line breaks, as a continuation of all text before."""
        return "".join(map(self._place, _PIECES.findall(text)))

    def _place(self, piece: str) -> str:
        if piece.startswith(" ") and self._column + len(piece) > self._room:
            piece = "\n" + piece.lstrip(" ")
        *before, last_line = piece.split("\n")
        self._column = len(last_line) + (0 if before else self._column)
        return piece
