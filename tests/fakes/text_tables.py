"""Tables of calls and what they lead to, in text files that are read more easily than code."""

import re
from pathlib import Path


def pairs(path: Path) -> list[tuple[str, str]]:
    """Read a table: each call on a line, indented below it what it leads to. Lines with # are for readers."""
    found: list[tuple[str, list[str]]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line[:4] == "    ":
            found[-1][1].append(line[4:])
        elif line and line[0] != "#":
            found.append((line, []))
    assert all(below for _, below in found), path
    return [(call, "\n".join(below)) for call, below in found]


def agree(said: str, found: str) -> bool:
    """Whether a text is as a table says it, in which three dots stand for any text."""
    return said == found or bool(re.fullmatch(".*".join(map(re.escape, said.split("..."))), found, re.DOTALL))
