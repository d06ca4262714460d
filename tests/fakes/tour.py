"""The pictures of docs/tour.md, drawn by the page's own code. ``make tour`` draws them into docs/images."""

import contextlib
import sys
from pathlib import Path

import pages


def draw(folder: Path) -> dict[str, object]:
    """Run the page in a folder, into whose sub-folder images it draws; return the page's names."""
    names: dict[str, object] = {}
    path = list(sys.path)
    with contextlib.chdir(folder):
        for i, source in enumerate(pages.blocks(pages.text_of("docs/tour.md"), "python")):
            exec(compile(source, f"docs/tour.md, block {i}", "exec"), names)
    sys.path[:] = path  # the page adds a distribution of its own
    return names


if __name__ == "__main__":
    draw(pages.ROOT / "docs")
