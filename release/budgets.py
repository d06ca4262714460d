"""Prints the lines and files of each room beside its budget, and fails above one: ``make check``."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]


def python_files() -> list[str]:
    """List the Python files of the checkout that git does not ignore, relative to its root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted({path for path in listed.stdout.splitlines() if (ROOT / path).exists()})


def folder_of(path: str, folders: Iterable[str]) -> str | None:
    """Return the folder, of some, that a path lies in; None if it lies in none of them."""
    return next((folder for folder in folders if PurePosixPath(path).is_relative_to(folder)), None)


def main(budgets: Path = ROOT / "budgets.toml") -> int:
    """Print the table; return 1 if a room is above its budget, or a file in no room."""
    rooms = tomllib.loads(budgets.read_text())["rooms"]
    counts = {path: len((ROOT / path).read_bytes().splitlines()) for path in python_files()}
    homeless = dict(counts)
    wrong = []
    total_lines = total_files = 0
    print(f"{'room':15}{'lines':>9}{'budget':>9}{'files':>7}{'budget':>8}")
    for name, room in rooms.items():
        inside = [path for path in counts if folder_of(path, room["folders"])]
        for path in inside:
            homeless.pop(path, None)
        lines, files = sum(counts[path] for path in inside), len(inside)
        print(f"{name:15}{lines:9,}{room['lines']:9,}{files:7,}{room['files']:8,}")
        total_lines, total_files = total_lines + lines, total_files + files
        wrong += [
            f"'{name}' may have {room[unit]:,} {unit}, found {found:,}. Remove {found - room[unit]:,}."
            for unit, found in (("lines", lines), ("files", files))
            if found > room[unit]
        ]
    print(f"{'all':15}{total_lines:9,}{'':9}{total_files:7,}")
    wrong += [f"'{path}' is in no room of budgets.toml. Move it." for path in homeless]
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
