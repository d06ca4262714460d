"""Run every mutant against the kit's lines, and write the table of totals in docs/numbers.md.

``make test-mutants`` runs it: ``python -m mutants.report [--only FAMILY ...] [--processes N]``. It ends with 1 where a
mutant is missed that a line has to see.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch

import mutants
from mutants import Mutant

PAGE = Path(__file__).parents[3] / "docs/numbers.md"
SECTION = re.compile(r"(?<=## Planted bugs\n\n).*?(?=\n## )", re.DOTALL)
HEAD = """Each is native with one bug in a corner, and `make test-mutants` runs the line of the conformance kit that
has to see it, at quick effort on as few vocabularies as show it: {seen} of {run} were seen in {seconds:.0f} seconds
by {processes} processes on {machine}. They are tables in [tests/fakes/mutants](../tests/fakes/mutants).

| bugs in | planted | seen |
| --- | --: | --: |
"""


class Look(NamedTuple):
    """The outcome of a mutant."""

    name: str
    is_seen: bool
    detail: str
    seconds: float


def look(family: str, name: str) -> Look:
    """Run the lines of a mutant."""
    (mutant,) = (mutant for mutant in mutants.families()[family] if mutant.name == name)
    start = time.perf_counter()
    lines = mutant.look()
    return Look(name, mutant.is_seen(lines), lines[0].detail, time.perf_counter() - start)


def can_run(mutant: Mutant) -> bool:
    """Whether a mutant has lines and a device to run on."""
    return bool(mutant.lines) and (mutant.device == "cpu" or torch.cuda.is_available())


def run(families: dict[str, tuple[Mutant, ...]], processes: int) -> dict[str, Look]:
    """Run all mutants of this machine's devices, and print each outcome."""
    looks: dict[str, Look] = {}
    pairs = [(family, m.name) for family, rows in families.items() for m in rows if can_run(m)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        processes, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        for number, outcome in enumerate(pool.map(look, *zip(*pairs, strict=True)), 1):
            looks[outcome.name] = outcome
            verdict = "seen" if outcome.is_seen else f"MISSED: {outcome.detail}"
            print(f"{number}/{len(pairs)} {outcome.seconds:.1f} s  {outcome.name}: {verdict}", flush=True)
    return looks


def section(
    families: dict[str, tuple[Mutant, ...]], looks: dict[str, Look], seconds: float, processes: int
) -> str:
    """Return the section of the page: a total for each family, of the bugs that this machine can run."""
    machine = f"{os.cpu_count()} cores ({platform.machine()}), torch {torch.__version__.partition('+')[0]}"
    seen = sum(outcome.is_seen for outcome in looks.values())
    text = HEAD.format(seen=seen, run=len(looks), seconds=seconds, processes=processes, machine=machine)
    for family, rows in families.items():
        outcomes = [looks[mutant.name] for mutant in rows if mutant.name in looks]
        text += (
            f"| {family.lower()} | {len(rows)} | {sum(each.is_seen for each in outcomes) or 'not run'} |\n"
        )
    return text


def main() -> int:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="*", metavar="FAMILY", help="families to run; the page is not written"
    )
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    families = {
        name: rows
        for name, rows in mutants.families().items()
        if not arguments.only or name in arguments.only
    }
    start = time.perf_counter()
    looks = run(families, arguments.processes)
    seconds = time.perf_counter() - start
    missed = [outcome.name for outcome in looks.values() if not outcome.is_seen]
    print(f"{len(looks)} run, {len(looks) - len(missed)} seen, {len(missed)} missed in {seconds:.0f} s")
    if not arguments.only:
        shown = section(families, looks, seconds, arguments.processes)
        PAGE.write_text(SECTION.sub(lambda _: shown, PAGE.read_text()))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
