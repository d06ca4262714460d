"""Builds and proves plugins as a program does, in a new Python process: a plugin or a broken torch may end the process.

If one operation ends the process, a new process goes on with the next operation.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokendraw._torch.importing import damage
from tokendraw.backends.discovery.new_process import command_line

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


def build(operations: Sequence[str], *, verbose: bool = False) -> tuple[str | None, dict[str, Build]]:
    """Import torch and load each of the operations, one after the other.

    :param operations: names; none: only torch is imported.
    :param verbose: let the process write on stderr: tracebacks of plugins that fail, and what plugins print.
    :returns: the reason why torch cannot be imported, or None; then the outcome by operation.
    """
    outcomes: dict[str, Build] = {}
    while True:
        steps, status = _run([name for name in operations if name not in outcomes], verbose=verbose)
        if not steps:
            return damage("A sampler", _ending(status, "ending", "still importing")), outcomes
        outcomes |= {step["operation"]: Build(**step["build"]) for step in steps if "build" in step}
        last = steps[-1]
        if last.get("torch") or len(outcomes) == len(operations):
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
        command_line("tokendraw.cli.diagnosis.build_process:report", *names),
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
