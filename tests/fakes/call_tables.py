"""Tables in text files: calls as a caller writes them, and below each what it returns, or its error with every word."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokendraw import PluginError, SamplerUnavailableError


def outcome_of(call: str, names: dict[str, Any]) -> str:
    """Return what an expression returns, or the type and the message of what it raises."""
    try:
        return repr(eval(call, names))
    except (ValueError, ImportError, PluginError, SamplerUnavailableError) as error:
        return f"{type(error).__name__}: {error}"


class Table:
    """A table beside the file of a test.

    ``assert table.found(names) == table.text`` compares it as a whole; to change it, copy what the failure shows.
    """

    def __init__(self, test: str, name: str) -> None:
        self.text = Path(test).with_name(name).read_text(encoding="utf-8")

    def found(self, names: Callable[[], dict[str, Any]]) -> str:
        """Return the table with what its calls return or raise now.

        :param names: makes the names that a call uses, anew for each.
        """
        lines = []
        for line in self.text.splitlines():
            if not line.startswith(" "):
                lines.append(line)
                if line and not line.startswith("#"):
                    lines.append(f"    {outcome_of(line, names())}")
        return "\n".join([*lines, ""])
