"""The command, called in this process, and machines that it can be told to be on."""

from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tokendraw
from fake_candidates import ALL, LAPTOP, NATIVE
from tokendraw import Need, operations
from tokendraw.backends.resolution.decide import assess
from tokendraw.cli import main
from tokendraw.plugin import Host
from tokendraw.providers import resolve as _resolve
from tokendraw.providers.resolve import resolve as real_resolve
from tokendraw.resolution import Candidate, Choice, Resolution, State

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
DRAWN_BY_NATIVE = "drawn by native on cpu: asked for by --sampler\n"


def call(*arguments: object, standard_input: bytes | None = None) -> Result:
    """Run ``tokendraw`` with these arguments, as in a pipe. An unexpected exception fails the test."""
    return CliRunner().invoke(
        main, [str(a) for a in arguments], standard_input, catch_exceptions=False, prog_name="tokendraw"
    )


def be_on(patch: pytest.MonkeyPatch, host: Host = LAPTOP, candidates: tuple[Candidate, ...] = ALL) -> None:
    """Make this machine ``host``, with ``candidates`` installed."""

    def discover(operation: str = "sample") -> tuple[Candidate, ...]:
        about = operations.get(operation)
        return tuple(
            c if c.state is not State.LOADED else assess(c, about, host, about.need()) for c in candidates
        )

    def discover_all() -> dict[str, tuple[Candidate, ...]]:
        return {operation: discover(operation) for operation in operations.FOLDERS}

    def resolve(need: Need | None = None, choice: Choice | None = None, **rest: Any) -> Resolution:
        return real_resolve(
            candidates, host, need or Need(), choice or Choice(), operation=rest.get("operation", "sample")
        )

    patch.setattr(tokendraw, "discover", discover)
    patch.setattr(_resolve, "discover_all", discover_all)
    patch.setattr(tokendraw, "resolve", resolve)
