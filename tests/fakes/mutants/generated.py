"""Hold a seeded sample of mutants of tokendraw-native, made by mutmut, against the kit's lines about their files.

``make test-mutants`` runs it: ``python -m mutants.generated [--count N] [--seed SEED] [--processes N]``. A survivor is
printed with what it changes; some change nothing that a call shows (a bound of a loop that the loop does not reach).
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import libcst as cst
from mutmut.mutation.file_mutation import create_mutations

import tokendraw_native

SOURCES = Path(tokendraw_native.__file__).parent
TIMEOUT_SECONDS = 300
ROWS = ("crossed requests", "crossed logprobs", "further filters", "near ties", "kept sets")
DRAFTS = ("verify crossing", "verify further filters", "verify sure drafts", "verify near distributions")
EDITS = ("process edits", "process crossing")
LINES = {
    **dict.fromkeys(("draw.py", "rows.py", "search.py"), ("last ids", "seeds at the edges", *ROWS)),
    **dict.fromkeys(("filters.py", "logprobs.py"), ("scores", *ROWS)),
    "row_stats.py": ROWS,
    "verify.py": DRAFTS,
    "logits_processing.py": EDITS,
}
"""Lines by file; files about speed alone and the description have none."""
LOUD = (cst.Call, cst.Assign, cst.AnnAssign, cst.AugAssign, cst.BaseString, cst.Lambda)
"""Nodes whose mutants raise at once: a missing argument, None in place of a tensor."""


class Mutant(NamedTuple):
    """A file with one change."""

    file: str
    code: str

    @property
    def change(self) -> str:
        """The changed lines, as a diff writes them."""
        before = (SOURCES / self.file).read_text().splitlines()
        lines = difflib.unified_diff(before, self.code.splitlines(), n=0, lineterm="")
        return "\n".join(line for line in lines if line[:2] not in ("--", "++", "@@"))


class Outcome(NamedTuple):
    """What the kit says of a mutant."""

    killer: str | None
    seconds: float


def sampled(count: int, seed: int) -> list[Mutant]:
    """Draw from all quiet mutants with equal probability."""
    found = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("src").mkdir()  # where mutmut looks for what it mutates
        for file in LINES:
            code = (SOURCES / file).read_text()
            module, mutations, *_ = create_mutations(file, code)
            found += [(file, code, module, m) for m in mutations if not isinstance(m.original_node, LOUD)]
    changed = [
        Mutant(file, module.deep_replace(m.original_node, m.mutated_node).code)
        for file, code, module, m in random.Random(seed).sample(found, count)
    ]
    print(f"{len(found)} mutants of {len(LINES)} files, {count} of them with seed {seed}", flush=True)
    return changed


@contextlib.contextmanager
def planted(mutant: Mutant) -> Iterator[dict[str, str]]:
    """Yield the environment of a process in which native has the mutant's file."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(
            SOURCES, Path(folder, SOURCES.name), ignore=shutil.ignore_patterns("__pycache__", mutant.file)
        )
        Path(folder, SOURCES.name, mutant.file).write_text(mutant.code)
        yield os.environ | {"PYTHONPATH": folder, "OMP_NUM_THREADS": "1"}


def look(mutant: Mutant) -> Outcome:
    """Run the lines of the mutant's file in a process of its own."""
    start = time.perf_counter()
    only = [part for line in LINES[mutant.file] for part in ("--only", line)]
    command = [
        *["-m", "tokendraw", "check", "native", "--device", "cpu", "--quick", "--jobs", "1", "--json"],
        *only,
    ]
    with planted(mutant) as environment:
        try:
            done = subprocess.run(  # noqa: PLW1510 - a red line is the outcome
                [sys.executable, *command],
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return Outcome("no end", time.perf_counter() - start)
    seconds = time.perf_counter() - start
    if done.returncode == 0:
        return Outcome(None, seconds)
    result = json.loads(done.stdout or "{}")
    failed = [line["name"] for line in result.get("lines", ()) if line["status"] == "failed"]
    return Outcome(failed[0] if failed else f"refused: {result.get('error', done.stderr[-200:])}", seconds)


def main() -> None:
    """Run the sample and print the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    mutants = sampled(arguments.count, arguments.seed)
    with ThreadPoolExecutor(arguments.processes) as pool:
        outcomes = []
        for number, (mutant, outcome) in enumerate(zip(mutants, pool.map(look, mutants), strict=True), 1):
            outcomes.append(outcome)
            verdict = f"killed by {outcome.killer!r}" if outcome.killer else f"SURVIVED\n{mutant.change}"
            print(f"{number}/{len(mutants)} {outcome.seconds:.1f} s  {mutant.file}: {verdict}", flush=True)
    killed = sum(outcome.killer is not None for outcome in outcomes)
    print(f"{killed} of {len(mutants)} generated mutants of native killed, seed {arguments.seed}")


if __name__ == "__main__":
    main()
