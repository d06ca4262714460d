"""The command in this process, on pretended machines."""

import ast
import platform
import re
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tokendraw
import tokendraw_bench
from fake_candidates import ALL, LAPTOP, NATIVE
from tokendraw import Need, cli, operations
from tokendraw import providers as _providers
from tokendraw.backends.resolution.decide import assess
from tokendraw.cli import main
from tokendraw.plugin import Host
from tokendraw.providers import resolve as real_resolve
from tokendraw.resolution import Candidate, Choice, Resolution, State
from tokendraw_bench import Timing

BOOM = Candidate(
    name="boom",
    state=State.BROKEN,
    reason="loading 'boom:plugin' raised ImportError: cannot import name 'kernels' [see the notes] from "
    "'boom_kernels', which is a long story",
    distribution="boom-tokendraw",
    version="2.0",
    entry_point="boom:plugin",
)
FUTURE = Candidate(
    name="future",
    state=State.INCOMPATIBLE,
    reason="needs plugin API 99, found 1; upgrade tokendraw",
    distribution="future-tokendraw",
    version="9.9",
    entry_point="future:plugin",
    info=replace(NATIVE.info, name="future", api_version=99, priority=10),
)
OFF = Candidate(
    name="off",
    state=State.DISABLED,
    reason="switched off by TOKENDRAW_DISABLE",
    distribution="off-tokendraw",
    version="1.0",
    entry_point="off:plugin",
)

NATIVE_ON_CPU = ("--sampler", "native", "--device", "cpu")
"""Options that give the same answer whatever is installed, and whatever the machine."""
ARGUMENTS = {
    "list": (),
    "show": ("native",),
    "resolve": (),
    "doctor": ("--no-build",),
    "check": ("native", "--device", "cpu", "--quick", "--only", "seeds at the edges"),
    "bench": (
        *("--device", "cpu", "--batch", "1", "--vocab-size", "128", "--filters", "none"),
        *("--repeats", "3", "--sampler", "native"),
    ),
    "sample": ("logits.npy", *NATIVE_ON_CPU),
    "generate": ("The", "-n", "2", *NATIVE_ON_CPU),
    "new": ("acme", "acme-tokendraw"),
}
"""Arguments that each command succeeds with, beside a file of logits."""
DRAWN_BY_NATIVE = "drawn by native on cpu: asked for by --sampler\n"


def call(*arguments: object, standard_input: bytes | None = None) -> Result:
    """Run ``tokendraw`` with these arguments, as in a pipe. An unexpected exception fails the test."""
    return CliRunner().invoke(
        main, [str(a) for a in arguments], standard_input, catch_exceptions=False, prog_name="tokendraw"
    )


def be_on(patch: pytest.MonkeyPatch, host: Host = LAPTOP, candidates: tuple[Candidate, ...] = ALL) -> None:
    """Make this machine ``host``, with ``candidates`` installed."""

    def discover(operation: str = "sample") -> tuple[Candidate, ...]:
        about = operations.find_operation(operation)
        return tuple(
            c if c.state is not State.LOADED else assess(c, about, host, about.need()) for c in candidates
        )

    def discover_all() -> dict[str, tuple[Candidate, ...]]:
        return {operation: discover(operation) for operation in operations.RECORDS}

    def resolve(need: Need | None = None, choice: Choice | None = None, **rest: Any) -> Resolution:
        return real_resolve(
            candidates, host, need or Need(), choice or Choice(), operation=rest.get("operation", "sample")
        )

    patch.setattr(tokendraw, "discover", discover)
    patch.setattr(_providers, "discover_all", discover_all)
    patch.setattr(tokendraw, "resolve", resolve)


# The timer of the bench.


SOURCE = Path(tokendraw_bench.__file__).parent / "command.py"
TIMES = {
    "read: torch.sum": 10.0,
    "read: torch.amax": 12.5,
    "copy: torch.Tensor.copy_": 4.0,
    "acme": 11.0,
    "native": 99.96,
    "torch-sort": 2500.0,
}


class FixedTimer:
    """A timer that calls each function once and returns constant times."""

    method = "a clock that stands"

    def __init__(self, repeats):
        self.repeats = repeats

    def buffers(self, nbytes):
        return 2

    def time(self, calls, buffers):
        for one in calls.values():
            one.draw(buffers[0])
        return {
            name: Timing(us=TIMES[name], q1_us=TIMES[name], q3_us=TIMES[name], host_us=None, how="wall clock")
            for name in calls
        }


def documented_keys() -> set[str]:
    """Return names in double backquotes in the help of the command and of all commands, keys of JSON among them."""
    docstring = ast.get_docstring(ast.parse(SOURCE.read_text(encoding="utf-8")))
    return set(re.findall(r"``(\w+)``", f"{docstring} {cli.__doc__}"))


SCREENS = Path(__file__).parents[1] / "cli" / "screens.txt"


def screen(name: str) -> str:
    """Return a complete output from tests/cli/screens.txt, with the versions of today."""
    (text,) = re.findall(
        rf"^\[{re.escape(name)}\]\n(.*?)(?=\n\[[a-z]|\Z)",
        SCREENS.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    python = f"{platform.python_version()} ({platform.python_implementation()})"
    versions = {"tokendraw": tokendraw.__version__, "torch": version("torch"), "python": python}
    for word, number in versions.items():
        text = text.replace(f"{{{word}}}", number)
    return str(text)
