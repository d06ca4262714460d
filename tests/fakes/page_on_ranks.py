"""The Python of a page, run on every rank of a group."""

import contextlib
import io
from typing import Any


def run(rank: int, sources: list[str], names: list[str]) -> tuple[dict[str, Any], str]:
    """Run blocks of code one behind another: the values of some names, and what they print."""
    found: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for source in sources:
            exec(source, found)
    return {name: found[name] for name in names}, printed.getvalue()
