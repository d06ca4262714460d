"""Pages in Markdown: their blocks of code, the commands in them with what they show, their links and tables."""

import contextlib
import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def text_of(page: str) -> str:
    """The text of a page, by its path in the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The blocks of code in ``language``; "" for those that name none."""
    every = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for name, block in every if name == language]


def commands(text: str) -> list[tuple[str, str]]:
    """The commands of all console blocks, each with the lines that it shows."""
    return [
        command
        for block in blocks(text, "console")
        for command in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    ]


def pattern(shown: str) -> str:
    """A regular expression for what a page shows, in which ``...`` stands for the rest of a line, or for lines."""
    return "".join(
        "(?:.*\n)*" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n"
        for line in shown.splitlines()
    )


def environment(*folders: Path, **variables: str) -> dict[str, str]:
    """The environment of a process that finds native, what is in ``folders``, and no other sampler."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TOKENDRAW_")}
    return environ | {"PYTHONPATH": os.pathsep.join(map(str, [NATIVE_ALONE, *folders]))} | variables


def run(line: str, stderr: int = subprocess.PIPE) -> str:
    """Run a line such as ``tokendraw list`` with the interpreter of this test; what it writes to stdout."""
    words = shlex.split(line)
    assert words[0] == "tokendraw"
    return subprocess.run(
        [sys.executable, "-m", *words],
        stdout=subprocess.PIPE,
        stderr=stderr,
        encoding="utf-8",
        check=True,
        timeout=120,
        env=environment(),
    ).stdout


def broken_links(page: str) -> list[str]:
    """Links of a page to a file that is not there, or to a heading that its file does not have."""
    text, folder = text_of(page), (ROOT / page).parent
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
    """The rows of all tables with so many columns, heads left out."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == columns and not set(line) <= set("|-: "):
            yield cells


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


# Distributions installed into a folder, without a network.


NATIVE_ALONE = Path(__file__).parent / "native_alone"
"""A folder for PYTHONPATH: of the samplers in this environment, an interpreter then finds native and no other."""
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
"""Options of pip: what the project needs, hatchling included, is in this environment already."""


def install(project: Path, site: Path) -> None:
    """Build ``project`` and install it into the folder ``site``, which holds its ``dist-info`` afterwards."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        *OFFLINE,
        "--target",
        str(site),
        str(project),
    ]
    subprocess.run(command, check=True, timeout=120)


@contextlib.contextmanager
def importable(site: Path) -> Iterator[None]:
    """Put a folder that was installed into on the path of this process; take its modules out again afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        importlib.invalidate_caches()
        try:
            yield
        finally:
            here = f"{site}{os.sep}"
            for name, module in list(sys.modules.items()):
                if (getattr(module, "__file__", None) or "").startswith(here):
                    del sys.modules[name]


def run_with(site: Path, *command: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a module of this interpreter, such as ``tokendraw list``, with what is in ``site`` and native."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TOKENDRAW_")}
    return subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
        env=environ | {"PYTHONPATH": f"{NATIVE_ALONE}{os.pathsep}{site}"},
        **options,
    )
