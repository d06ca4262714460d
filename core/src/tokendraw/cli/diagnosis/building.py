"""Builds and proves plugins as a program does, in a new Python process: a plugin or a broken torch may end the process.

If one operation ends the process, a new process goes on with the next operation.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokendraw import operations
from tokendraw._torch.importing import damage, require_torch
from tokendraw.backends.discovery.new_process import call_in_new_process
from tokendraw.backends.discovery.settings import read_settings
from tokendraw.backends.resolution.candidate import Decision
from tokendraw.cli.terminal.verbose import StderrHandler, logged_by
from tokendraw.errors.exceptions import SamplerUnavailableError, TokendrawError, TokendrawWarning

TIMEOUT_SECONDS = 900  # seconds for one process; FlashInfer takes up to five minutes to compile


@dataclass(frozen=True)
class Build:
    """Outcome of loading one operation in a program.

    :ivar chosen: Name of the plugin that was built and proven; None: the program gets none.
    :ivar seconds: Time of building and proving it and its companions, without the import of torch.
    :ivar error: Reason why the program gets none.
    :ivar rejections: Reasons why building a plugin, or its proof, failed, by name.
    :ivar warnings: Warnings of the decision, less that of the plugins that were passed over.
    :ivar culprit: Name of the plugin that ended the process, or took more than 900 s.
    """

    chosen: str | None = None
    companion: str | None = None
    partial_companion: str | None = None
    seconds: float = 0.0
    error: str | None = None
    rejections: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = field(default_factory=list)
    culprit: str | None = None


def build(names: Sequence[str], *, verbose: bool = False) -> tuple[str | None, dict[str, Build]]:
    """Import torch and load each of the operations, one after the other.

    :returns: the reason why torch cannot be imported, or None; then the outcome by operation.
    """
    outcomes: dict[str, Build] = {}
    while True:
        remaining = [name for name in names if name not in outcomes]
        state, status = call_in_new_process(
            f"{__name__}:report", *remaining, timeout_seconds=TIMEOUT_SECONDS, verbose=verbose
        )
        if state is None:
            return damage("A sampler", _ending(status, "ending", "still importing")), outcomes
        outcomes |= {name: Build(**fields) for name, fields in state["builds"].items()}
        if state["torch"] or len(outcomes) == len(names):
            return state["torch"], outcomes
        if state["operation"] not in outcomes:
            plugin, ending = state["plugin"], _ending(status, "ended", "was not done")
            rejections = {} if plugin is None else {plugin: f"building it {ending}"}
            subject = "finding the plugins" if plugin is None else f"building {plugin!r}"
            error = f"{subject} {ending}"
            outcomes[state["operation"]] = Build(error=error, rejections=rejections, culprit=plugin)


def _ending(status: int | None, ended: str, late: str) -> str:
    """Say how a process ended: with an exit status, or None for a process that was killed after 900 s."""
    if status is None:
        return f"{late} after {TIMEOUT_SECONDS} s"
    return f"{ended} the process: exit status {status}"


def report(*names: str) -> None:
    """Import torch, load each of the operations, and end the process: the work of the new process.

    Each line is the whole state as JSON: ``torch`` (null, or the reason why it cannot be imported), ``builds`` (the
    fields of :class:`Build` by operation), ``operation`` (at work) and ``plugin``, the name of one before it is built.
    """
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what plugins print is no line
    state: dict[str, Any] = {
        "torch": None,
        "builds": {},
        "operation": names[0] if names else None,
        "plugin": None,
    }

    def write(**changes: Any) -> None:
        state.update(changes)
        print(json.dumps(state), file=lines, flush=True)

    try:
        require_torch()
    except SamplerUnavailableError as error:
        write(torch=str(error))
        return
    write()
    log = StderrHandler()
    for name in names:
        write(operation=name, plugin=None)
        build = _loaded(name, lambda plugin: write(plugin=plugin), log)
        write(builds={**state["builds"], name: build})
    sys.stderr.flush()
    os._exit(0)  # no thread or handler of a plugin holds up the end


def _loaded(name: str, before_build: Callable[[str], None], log: StderrHandler) -> dict[str, Any]:
    """Load an operation for the default device and need, and return the fields of the outcome.

    :param before_build: called with the name of a plugin before it is built.
    """
    from tokendraw.calls.negotiator import warn_of
    from tokendraw.providers.load import open_negotiator

    operation, settings, start = operations.find_operation(name), read_settings(), time.monotonic()
    choice = settings.choice(binds=operations.is_own(operation))
    decisions: tuple[Decision, ...] = ()
    built: set[str] = set()
    outcome: dict[str, Any] = {}

    def note(plugin: str) -> None:
        built.add(plugin)
        before_build(plugin)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TokendrawWarning)  # a strict one is raised all the same
        try:
            negotiator, discovery = open_negotiator(
                settings, choice, None, operation.need(), before_build=note
            )
            with logged_by(log):  # failures to load a plugin are the command's own to show
                selection, _ = negotiator.settle(operation, negotiator.rejections, discovery)
            resolution = selection.resolution
            decisions, outcome["warnings"] = resolution.decisions, resolution.untested
            warn_of(resolution, strict=settings.strict)
            for role in ("chosen", "companion", "partial_companion"):
                outcome[role] = getattr(resolution, role)
        except (TokendrawError, TokendrawWarning) as refusal:
            outcome["error"] = str(refusal)
            decisions = decisions or getattr(refusal, "decisions", ())
    rejections = {d.name: d.reason for d in decisions if not d.accepted and d.name in built}
    return {**outcome, "seconds": time.monotonic() - start, "rejections": rejections}
