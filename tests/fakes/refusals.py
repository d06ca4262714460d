"""Tables of refusals: text files of calls as a caller writes them, with the error of each below it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokendraw import PluginError, SamplerUnavailableError


def error_of(call: str, names: dict[str, Any]) -> str:
    """Return the type and the message of what an expression raises."""
    try:
        returned = eval(call, names)
    except (ValueError, PluginError, SamplerUnavailableError) as error:
        return f"{type(error).__name__}: {error}"
    return f"raised nothing, and returned {returned!r}"


class Table:
    """A table beside the file of a test, whose name ends in ``.txt``.

    ``assert table.found(names) == table.text`` compares it as a whole; to change it, copy what the failure shows.
    """

    def __init__(self, test: str, name: str) -> None:
        self.text = Path(test).with_name(name).read_text(encoding="utf-8")

    def found(self, names: Callable[[], dict[str, Any]]) -> str:
        """Return the table with the errors that its calls raise now.

        :param names: makes the names that a call uses, anew for each.
        """
        lines = []
        for line in self.text.splitlines():
            if not line.startswith(" "):
                lines.append(line)
                if line and not line.startswith("#"):
                    lines.append(f"    {error_of(line, names())}")
        return "\n".join([*lines, ""])
