"""All bugs of the corners, and the least that the kit has to look at to see each."""

import importlib
import pkgutil
from dataclasses import replace

import corner_bugs
from corner_bugs.plugin import NATIVE, Draws, Honest, subject
from corner_bugs.shared_tables import shared_tables
from tokendraw_testing import Subject, run
from tokendraw_testing.kit.effort import Effort
from tokendraw_testing.kit.report import Line

_QUICK = Effort.of(quick=True, device_type="cpu")
_WIDE = 1 << 16
_WIDE_ROWS, _WIDE_CASES = 90, 24
"""Rows of the large batches, of which wide ones have a sixth, and cases of a table, where a look is at a wide one."""


def _bugs() -> dict[str, tuple[type[Honest], ...]]:
    modules = [
        importlib.import_module(f"corner_bugs.{m.name}")
        for m in pkgutil.iter_modules(corner_bugs.__path__)
        if m.name not in ("catalogue", "table")
    ]
    return {str(m.__doc__): m.BUGS for m in modules if hasattr(m, "BUGS")}


ROOMS = _bugs()
"""The bugs of each file, by what the file says of them."""
BUGS = tuple(bug for bugs in ROOMS.values() for bug in bugs)
SEEN = tuple(bug for bug in BUGS if bug.line)


def operation(bug: type[Honest]) -> str:
    """The operation in which a bug shows."""
    return "sample" if issubclass(bug, Draws) and not bug.drafts else "verify"


def widths(bug: type[Honest]) -> tuple[int, ...]:
    """The vocabularies of crossed requests that are enough to see a bug."""
    if bug.crossed_sizes:
        return bug.crossed_sizes
    if bug.above < 1 << 13:
        return (33, 1025)
    if bug.above < _WIDE - 1:
        return (20_011,)
    return (131_113,) if operation(bug) == "sample" else (33, 131_113)


def look(
    sampler: type[Honest],
    line: str,
    own: str,
    sizes: tuple[int, ...],
    dtypes: tuple[str, ...],
    seed: int = 0,
    *,
    all_cases: bool = False,
) -> Line:
    """One line of the report on a sampler that has these dtypes alone, on few vocabularies."""
    under_test = restricted(subject(sampler, seed=seed), dtypes)
    under_test.effort = replace(_QUICK, crossed_sizes=sizes)
    if max(sizes) > _WIDE and not all_cases and line.startswith(("crossed", "verify crossing")):
        under_test.effort = replace(under_test.effort, crossed_batch=_WIDE_ROWS, crossed_rows=_WIDE_CASES)
    with shared_tables():
        (found,) = run(under_test, only=[line], operation=own).lines
    return found


def restricted(under_test: Subject, dtypes: tuple[str, ...]) -> Subject:
    """The same plugin, advertising these dtypes alone."""
    under_test.capabilities = {
        name: replace(offered, dtypes=dtypes) for name, offered in under_test.capabilities.items()
    }
    return under_test


def seen(bug: type[Honest], seed: int = 0) -> Line:
    """The line that a bug turns red, by the random numbers of a seed of the kit."""
    assert bug.line
    dtypes = NATIVE["sample"].dtypes if bug.all_dtypes else (bug.dtype or "float32",)
    return look(bug, bug.line, operation(bug), widths(bug), dtypes, seed, all_cases=bug.all_cases)
