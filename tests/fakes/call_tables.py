"""Tables in text files: calls as a caller writes them, and below each, indented, what it returns or leads to.

A :class:`Table` is compared as a whole, with every word of an error; :func:`pairs` makes a test of each call.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokendraw import TokendrawError


def outcome_of(call: str, names: dict[str, Any]) -> str:
    """Return the value of an expression, or the type and message of its exception."""
    try:
        return repr(eval(call, names))
    except (ValueError, ImportError, TokendrawError) as error:
        return f"{type(error).__name__}: {error}"


class Table:
    """A table beside the file of a test.

    ``assert table.found(names) == table.text`` compares it as a whole; to change it, copy what the failure shows.
    """

    def __init__(self, test: str, name: str) -> None:
        self.text = Path(test).with_name(name).read_text(encoding="utf-8")

    def found(self, names: Callable[[], dict[str, Any]]) -> str:
        """Return the table with the present outcomes of its calls.

        :param names: makes the names that a call uses, anew for each.
        """
        lines = []
        for line in self.text.splitlines():
            if not line.startswith(" "):
                lines.append(line)
                if line and not line.startswith("#"):
                    lines.append(f"    {outcome_of(line, names())}")
        return "\n".join([*lines, ""])


def pairs(path: Path) -> list[tuple[str, str]]:
    """Read a table: each call on a line, its outcome indented below. Lines with # are for readers."""
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
