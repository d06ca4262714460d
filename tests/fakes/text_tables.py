"""Tables of calls and what they lead to, in text files that are read more easily than code."""

from pathlib import Path


def pairs(path: Path) -> list[tuple[str, str]]:
    """Read a table: each call on a line, indented below it what it leads to. Lines with # are for readers."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    assert all(below[:4] == "    " != call[:4] for call, below in zip(lines[::2], lines[1::2], strict=True))
    return [(call, below[4:]) for call, below in zip(lines[::2], lines[1::2], strict=True)]
