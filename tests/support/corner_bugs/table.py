"""Writes docs/planted-bugs.md: each bug of a corner, the line of the kit that sees it, and what it found.

Run as ``python tests/support/corner_bugs/table.py`` from the checkout, with ``tests/support`` on the path.
"""

from __future__ import annotations

from checkout import ROOT
from corner_bugs import catalogue
from corner_bugs.catalogue import ROOMS
from tokendraw_testing.kit.report import Status

PAGE = ROOT / "docs/planted-bugs.md"
_WIDTH = 150
_HEAD = """# Planted bugs of one corner

Each of these plugins is the native sampler with one mistake that it makes in one corner alone. The table says which
line of the conformance kit turns red, and what it found, on a plugin that has the dtype of the mistake alone and on as
few vocabularies as show it; `tests/testing/test_corner_bugs.py` runs them, and the same lines without the mistakes.
`python tests/support/corner_bugs/table.py` writes this page anew.
"""


def page() -> str:
    """Run every line, and write the page."""
    parts = [_HEAD]
    for about, bugs in ROOMS.items():
        seen = [bug for bug in bugs if bug.line]
        if seen:
            rows = [(words(bug), f"`{bug.line}`", found(bug)) for bug in seen]
            parts.append(f"## {about.rstrip('.')}\n\n{table(('mistake', 'line', 'found'), rows)}")
    unseen = [(words(bug), bug.unseen) for bug in catalogue.BUGS if bug.unseen]
    parts.append(f"## Mistakes that no line sees\n\n{table(('mistake', 'why'), unseen)}")
    return "\n".join(parts)


def words(bug: type) -> str:
    """What a bug does wrong."""
    return " ".join(str(bug.__doc__).split()).rstrip(".")


def found(bug: type) -> str:
    """What its line found, cut to a width."""
    line = catalogue.seen(bug)
    if line.status is not Status.FAILED:
        raise SystemExit(f"{bug.__name__!r} needs {bug.line!r} to be red, found it {line.status}.")
    detail = line.detail.replace("|", "\\|")
    return detail if len(detail) <= _WIDTH else detail[:_WIDTH].rsplit(" ", 1)[0] + " ..."


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table of markdown."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page())
