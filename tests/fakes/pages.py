"""Pages in Markdown: code blocks, commands with output, links and tables."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def text_of(page: str) -> str:
    """Return the text of a page by the path in the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Return the code blocks in ``language``; "" for blocks without a language."""
    every = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for name, block in every if name == language]


def commands(text: str) -> list[tuple[str, str]]:
    """Return the commands of all console blocks with the shown output."""
    return [
        command
        for block in blocks(text, "console")
        for command in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    ]


def pattern(shown: str) -> str:
    """Return a regular expression for shown output, with ``...`` for the rest of a line or for lines."""
    return "".join(
        "(?:.*\n)*" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n"
        for line in shown.splitlines()
    )


def environment(*folders: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a process that finds native and the samplers in ``folders`` alone."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TOKENDRAW_")}
    return environ | {"PYTHONPATH": os.pathsep.join(map(str, [NATIVE_ALONE, *folders]))} | variables


def broken_links(page: str) -> list[str]:
    """Return the links of a page to missing files or headings."""
    text, folder = re.sub("`[^`\n]*`", "", text_of(page)), (ROOT / page).parent
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = folder / path if path else ROOT / page
        if "://" in link:
            continue
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    return broken


def rows(text: str, columns: int) -> Iterator[list[str]]:
    """Yield the rows of all tables with so many columns, without heads."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == columns and not set(line) <= set("|-: "):
            yield cells


def _anchors(page: Path) -> set[str]:
    """Return GitHub's anchors for the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


# Distributions installed into a folder, without a network.


NATIVE_ALONE = Path(__file__).parent / "native_alone"
"""A folder for PYTHONPATH: of the samplers in this environment, an interpreter then finds native and no other."""
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
"""Options of pip: what the project needs, hatchling included, is in this environment already."""


def run_with(site: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a module of this interpreter with native and the packages in ``site``."""
    return subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
        env=environment(site, **variables),
    )
