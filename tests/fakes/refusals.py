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


def compare(table: Path, names: Callable[[], dict[str, Any]]) -> None:
    """Compare a table with what its calls raise now, as a whole; to change it, copy what the failure shows.

    :param names: makes the names that a call uses, anew for each.
    """
    expected = table.read_text(encoding="utf-8")
    found = []
    for line in expected.splitlines():
        if line and not line.startswith((" ", "#")):
            found += [line, f"    {error_of(line, names())}"]
        elif not line.startswith(" "):
            found.append(line)
    assert "\n".join([*found, ""]) == expected
