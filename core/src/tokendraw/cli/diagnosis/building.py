"""Builds and proves plugins as a program does, in a new Python process: a plugin or a broken torch may end the process.

If one operation ends the process, a new process goes on with the next operation.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tokendraw import operations
from tokendraw._torch.importing import damage, require_torch
from tokendraw.backends.discovery.new_process import command_line
from tokendraw.backends.discovery.settings import read_settings
from tokendraw.backends.resolution.candidate import Decision
from tokendraw.cli.terminal.verbose import StderrHandler, logged_by
from tokendraw.errors.exceptions import SamplerUnavailableError, TokendrawError, TokendrawWarning

TIMEOUT_SECONDS = 900  # seconds for one process; FlashInfer takes up to five minutes to compile


@dataclass(frozen=True)
class Build:
    """Outcome of loading one operation in a program.

    :ivar chosen: Name of the plugin that was built and proven; None: the program gets none.
    :ivar seconds: Time of building and proving both, without the import of torch.
    :ivar error: Reason why the program gets none.
    :ivar rejections: Reasons why building a plugin, or its proof, failed, by name.
    :ivar warnings: Warnings of the decision, less that of the plugins that were passed over.
    :ivar culprit: Name of the plugin that ended the process, or took more than 900 s.
    """

    chosen: str | None = None
    companion: str | None = None
    seconds: float = 0.0
    error: str | None = None
    rejections: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = field(default_factory=list)
    culprit: str | None = None


def build(names: Sequence[str], *, verbose: bool = False) -> tuple[str | None, dict[str, Build]]:
    """Import torch and load each of the operations, one after the other.

    :param names: of the operations; none: only torch is imported.
    :param verbose: let the process write on stderr: tracebacks of plugins that fail, and what plugins print.
    :returns: the reason why torch cannot be imported, or None; then the outcome by operation.
    """
    outcomes: dict[str, Build] = {}
    while True:
        steps, status = _run([name for name in names if name not in outcomes], verbose=verbose)
        if not steps:
            return damage("A sampler", _ending(status, "ending", "still importing")), outcomes
        outcomes |= {step["operation"]: Build(**step["build"]) for step in steps if "build" in step}
        last = steps[-1]
        if last.get("torch") or len(outcomes) == len(names):
            return last.get("torch"), outcomes
        if "plugin" in last:
            plugin, ending = last["plugin"], _ending(status, "ended", "was not done")
            rejections = {} if plugin is None else {plugin: f"building it {ending}"}
            subject = "finding the plugins" if plugin is None else f"building {plugin!r}"
            error = f"{subject} {ending}"
            outcomes[last["operation"]] = Build(error=error, rejections=rejections, culprit=plugin)


def _ending(status: int | None, ended: str, late: str) -> str:
    """Say how a process ended: with an exit status, or None for a process that was killed after 900 s."""
    if status is None:
        return f"{late} after {TIMEOUT_SECONDS} s"
    return f"{ended} the process: exit status {status}"


def _run(names: Sequence[str], *, verbose: bool) -> tuple[list[dict[str, Any]], int | None]:
    """Load operations in a new process; return its steps and its exit status, or None after 900 s."""
    process = subprocess.Popen(
        command_line(f"{__name__}:report", *names),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if verbose else subprocess.DEVNULL,
        start_new_session=True,
    )
    with process:
        try:
            output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
            status: int | None = process.returncode
        except subprocess.TimeoutExpired:
            _kill(process)
            output, _ = process.communicate()
            status = None
        finally:
            _kill(process)
    return [json.loads(line) for line in output.splitlines()], status


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children, for example compilers."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def report(*names: str) -> None:
    """Import torch, load each of the operations, and end the process: the work of the new process.

    The steps are lines of JSON: ``torch`` (null, or the reason why it cannot be imported), then for each operation
    ``operation`` (its name) with ``plugin``, the name of one before it is built, and last with ``build``, the fields of
    :class:`Build`.
    """
    steps = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what plugins print is no step

    def write(**step: Any) -> None:
        print(json.dumps(step), file=steps, flush=True)

    try:
        require_torch()
    except SamplerUnavailableError as error:
        write(torch=str(error))
        return
    write(torch=None)
    log = StderrHandler()
    for name in names:
        write(operation=name, plugin=None)
        write(operation=name, build=_loaded(name, partial(write, operation=name), log))
    sys.stderr.flush()
    os._exit(0)  # no thread or handler of a plugin holds up the end


def _loaded(name: str, write: Callable[..., None], log: StderrHandler) -> dict[str, Any]:
    """Load an operation for the default device and need, and return the fields of the outcome.

    :param write: called with ``plugin``, the name of one before it is built.
    """
    from tokendraw.calls.negotiator import warn_of
    from tokendraw.providers.load import open_negotiator

    operation, settings, start = operations.find_operation(name), read_settings(), time.monotonic()
    decisions: tuple[Decision, ...] = ()
    built: set[str] = set()
    outcome: dict[str, Any] = {}

    def note(plugin: str) -> None:
        built.add(plugin)
        write(plugin=plugin)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TokendrawWarning)  # a strict one is raised all the same
        try:
            negotiator, discovery = open_negotiator(
                settings, settings.choice(), None, operation.need(), before_build=note
            )
            with logged_by(log):  # failures to load a plugin are the command's own to show
                selection, _ = negotiator.settle(operation, negotiator.rejections, discovery)
            resolution = selection.resolution
            decisions, outcome["warnings"] = resolution.decisions, resolution.untested
            warn_of(resolution, strict=settings.strict)
            outcome |= {"chosen": resolution.chosen, "companion": resolution.companion}
        except (TokendrawError, TokendrawWarning) as refusal:
            outcome["error"] = str(refusal)
            decisions = decisions or getattr(refusal, "decisions", ())
    rejections = {d.name: d.reason for d in decisions if not d.accepted and d.name in built}
    return {**outcome, "seconds": time.monotonic() - start, "rejections": rejections}
