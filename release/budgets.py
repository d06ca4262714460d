"""Prints lines and files of each room beside the budget, and fails above a budget: ``make check``."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main(budgets: Path = ROOT / "budgets.toml") -> int:
    """Print the table; return 1 if a room is above its budget, or a file in no room."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    counts = {path: len((ROOT / path).read_bytes().splitlines()) for path in listed if (ROOT / path).exists()}
    rooms, wrong = tomllib.loads(budgets.read_text())["rooms"], []
    homeless = set(counts)
    print(f"{'room':15}{'lines':>9}{'budget':>9}{'files':>7}{'budget':>8}")
    for name, room in rooms.items():
        folders = tuple(f"{folder}/" for folder in room["folders"])
        inside = [path for path in counts if path.startswith(folders)]
        homeless -= set(inside)
        lines, files = sum(counts[path] for path in inside), len(inside)
        print(f"{name:15}{lines:9,}{room['lines']:9,}{files:7,}{room['files']:8,}")
        wrong += [
            f"'{name}' may have {room[unit]:,} {unit}, found {found:,}. Remove {found - room[unit]:,}."
            for unit, found in (("lines", lines), ("files", files))
            if found > room[unit]
        ]
    print(f"{'all':15}{sum(counts.values()):9,}{'':9}{len(counts):7,}")
    wrong += [f"'{path}' is in no room of budgets.toml. Move it." for path in sorted(homeless)]
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
