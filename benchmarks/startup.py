"""Times an import of tokendraw and the answer of ``tokendraw list``; prints a table.

    python benchmarks/startup.py

Processor time of a fresh process, so that other work on the machine counts little: the least of several runs, and how
much that is beyond an interpreter that does nothing.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import click

import tokendraw

CASES = {
    "python -c pass": (sys.executable, "-c", "pass"),
    "import tokendraw": (sys.executable, "-c", "import tokendraw"),
    "tokendraw list": (sys.executable, "-m", "tokendraw", "list"),
}


def milliseconds(arguments: tuple[str, ...], repeats: int) -> float:
    """Measure the least processor time of ``repeats`` runs of a command."""

    def once() -> float:
        before = os.times()
        subprocess.run(arguments, capture_output=True, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    once()  # writes the bytecode
    return 1e3 * min(once() for _ in range(repeats))


@click.command()
@click.option("--repeats", type=click.IntRange(min=1), default=10, show_default=True)
def main(repeats: int) -> None:
    """Time an import and the quickest command."""
    found = {name: milliseconds(arguments, repeats) for name, arguments in CASES.items()}
    nothing = found["python -c pass"]
    click.echo(
        f"{platform.machine()}, Python {platform.python_version()}, tokendraw {tokendraw.__version__}.\n"
    )
    click.echo("| what starts | ms | beyond the interpreter |\n| --- | --: | --: |")
    for name, taken in found.items():
        click.echo(f"| {name} | {taken:.0f} | {taken - nothing:.0f} |")


if __name__ == "__main__":
    main()
