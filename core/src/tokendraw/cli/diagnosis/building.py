"""Builds and proves plugins as a program does, in a new Python process: a plugin or a broken torch may end the process.

The process reports by lines of JSON in a file, since plugins print on stdout. If one operation ends the process, a
new process goes on with the next operation.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import click

from tokendraw._torch.importing import damage
from tokendraw.backends.discovery.new_process import command_line

ReportProgress: TypeAlias = Callable[[str, int], None]
"""Shows the current step, and how many operations are done."""

TIMEOUT_SECONDS = 600  # seconds for one step; FlashInfer takes up to five minutes to compile
POLL_SECONDS = 0.05  # seconds


@dataclass(frozen=True)
class Build:
    """Outcome of loading one operation in a program."""

    chosen: str | None = None
    """Name of the plugin that was built and proven; None: the program gets none."""
    companion: str | None = None
    seconds: float = 0.0
    """Time of building and proving both, without the import of torch."""
    error: str | None = None
    """Reason why the program gets none."""
    rejections: Mapping[str, str] = field(default_factory=dict)
    """Reasons why building a plugin, or its proof, failed, by name."""
    warnings: tuple[str, ...] = ()
    """Warnings of the decision, less that of the plugins that were passed over."""
    culprit: str | None = None
    """Name of the plugin that ended the process, or took more than 600 s."""


def build(
    operations: Sequence[str], report_progress: ReportProgress, *, verbose: bool = False
) -> tuple[str | None, dict[str, Build]]:
    """Import torch and load each of the operations, one after the other.

    :param operations: names; none: only torch is imported.
    :param verbose: show on stderr the traceback of a plugin that fails, and the output of the plugins.
    :returns: the reason why torch cannot be imported, or None; then the outcome by operation.
    """
    outcomes: dict[str, Build] = {}
    while True:
        names = [name for name in operations if name not in outcomes]
        with _process(names, verbose=verbose) as steps:
            torch_error = _load(names, steps, outcomes, report_progress)
        if torch_error is not None or len(outcomes) == len(operations):
            return torch_error, outcomes


def _load(
    names: Sequence[str],
    steps: Iterator[dict[str, Any]],
    outcomes: dict[str, Build],
    report_progress: ReportProgress,
) -> str | None:
    """Follow one process until every operation has an outcome; an early end is the outcome of the current operation.

    :returns: the reason why torch cannot be imported; None if it can.
    """
    report_progress("importing torch", len(outcomes))
    operation = plugin = None
    for step in steps:
        if "torch" in step:
            if step["torch"] is not None or not names:
                return None if step["torch"] is None else str(step["torch"])
            operation = names[0]
        elif "operation" in step:
            operation, plugin = step["operation"], None
        elif "plugin" in step:
            plugin = step["plugin"]
            report_progress(f"building {plugin} for {operation}", len(outcomes))
        elif "build" in step:
            fields = step["build"]
            outcomes[str(operation)] = Build(**{**fields, "warnings": tuple(fields["warnings"])})
            if operation == names[-1]:
                return None
        elif operation is None:
            return damage("A sampler", _ending(step["exit status"], "ending", "still importing"))
        else:
            ending = _ending(step["exit status"], "ended", "was not done")
            rejections = {} if plugin is None else {plugin: f"building it {ending}"}
            subject = "finding the plugins" if plugin is None else f"building {plugin!r}"
            outcomes[operation] = Build(error=f"{subject} {ending}", rejections=rejections, culprit=plugin)
    return None


def _ending(status: int | None, ended: str, late: str) -> str:
    """Say how a process ended: with an exit status, or None after 600 s without a step."""
    if status is None:
        return f"{late} after {TIMEOUT_SECONDS} s"
    return f"{ended} the process: exit status {status}"


@contextlib.contextmanager
def _process(names: Sequence[str], *, verbose: bool) -> Iterator[Iterator[dict[str, Any]]]:
    """Start a process that loads operations, yield the iterator of steps, and kill the process with its children."""
    with tempfile.TemporaryDirectory() as folder:
        path, errors = Path(folder, "steps"), Path(folder, "stderr")
        path.touch()
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                command_line("tokendraw.cli.diagnosis.build_process:report", str(path), *names),
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                start_new_session=True,
            )
        try:
            yield _steps(process, path)
        finally:
            _end(process)
        if verbose:
            click.echo(errors.read_text("utf-8", "backslashreplace"), err=True, nl=False)


def _steps(process: subprocess.Popen[bytes], path: Path) -> Iterator[dict[str, Any]]:
    """Yield each step of the process, and last the exit status, or None after 600 s without a step."""
    last, status = time.monotonic(), None
    with path.open("rb") as file:
        while True:
            status = process.poll()  # before the file is read: no step is missed
            position = file.tell()
            line = file.readline()
            if line.endswith(b"\n"):
                last = time.monotonic()
                yield json.loads(line)
                continue
            file.seek(position)
            if status is not None or time.monotonic() - last > TIMEOUT_SECONDS:
                yield {"exit status": status}
                return
            time.sleep(POLL_SECONDS)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children, for example compilers."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
