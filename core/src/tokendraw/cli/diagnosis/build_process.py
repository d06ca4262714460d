"""Loads operations as a program does, and writes each step to a file: the work of the new Python process."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokendraw import operations
from tokendraw._torch.importing import require_torch
from tokendraw.backends.description.operation import Operation
from tokendraw.backends.discovery.settings import read_settings
from tokendraw.backends.resolution.candidate import Decision, State
from tokendraw.cli.terminal.verbose import StderrHandler, logged_by
from tokendraw.errors.exceptions import SamplerUnavailableError, TokendrawError, TokendrawWarning


def report(path: str, *names: str) -> None:
    """Import torch, load each of the operations, and end the process.

    The steps are lines of JSON: ``torch`` (null, or the reason why it cannot be imported); for each operation
    ``operation`` (its name), ``plugin`` before one is built, and ``build`` (fields of
    :class:`tokendraw.cli.diagnosis.building.Build`).
    """
    with Path(path).open("a", encoding="utf-8") as file:

        def write(**step: Any) -> None:
            print(json.dumps(step), file=file, flush=True)

        try:
            require_torch()
        except SamplerUnavailableError as error:
            write(torch=str(error))
            return
        write(torch=None)
        log = StderrHandler()
        for name in names:
            write(operation=name)
            write(build=_loaded(operations.get(name), lambda plugin: write(plugin=plugin), log))
    sys.stderr.flush()
    os._exit(0)  # no thread or handler of a plugin holds up the end


def _loaded(
    operation: Operation, before_build: Callable[[str], None], log: logging.Handler
) -> dict[str, Any]:
    """Load an operation for the default device and need, and return the fields of the outcome."""
    from tokendraw.calls.negotiator import warn_of
    from tokendraw.providers.load import open_negotiator

    settings, start = read_settings(), time.monotonic()
    decisions: tuple[Decision, ...] = ()
    usable: set[str] = set()
    chosen = companion = error = None
    untested: tuple[str, ...] = ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TokendrawWarning)  # a strict one is raised all the same
        try:
            negotiator = open_negotiator(
                settings, settings.choice(), None, operation.need(), before_build=before_build
            )
            assert negotiator.discovery is not None
            candidates = negotiator.discovery.candidates(operation, negotiator.need)
            usable = {candidate.name for candidate in candidates if candidate.state is State.AVAILABLE}
            with logged_by(log):  # failures to load a plugin are the command's own to show
                selection, _ = negotiator.settle(operation, negotiator.rejections)
            decisions, untested = selection.resolution.decisions, selection.resolution.untested
            warn_of(selection.resolution, strict=settings.strict)
            chosen, companion = selection.resolution.chosen, selection.resolution.companion
        except (TokendrawError, TokendrawWarning) as refusal:
            error = str(refusal)
            decisions = decisions or getattr(refusal, "decisions", ())
    return {
        "chosen": chosen,
        "companion": companion,
        "seconds": time.monotonic() - start,
        "error": error,
        "rejections": {d.name: d.reason for d in decisions if not d.accepted and d.name in usable},
        "warnings": untested,
    }
