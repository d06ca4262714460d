"""Loads operations as a program does, and prints each step: the work of the new Python process."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from tokendraw import operations
from tokendraw._torch.importing import require_torch
from tokendraw.backends.discovery.settings import read_settings
from tokendraw.backends.resolution.candidate import Decision, State
from tokendraw.cli.terminal.verbose import StderrHandler, logged_by
from tokendraw.errors.exceptions import SamplerUnavailableError, TokendrawError, TokendrawWarning


def report(*names: str) -> None:
    """Import torch, load each of the operations, and end the process.

    The steps are lines of JSON: ``torch`` (null, or the reason why it cannot be imported), then for each operation
    ``operation`` (its name) with ``plugin``, the name of one before it is built, and last with ``build``, the fields of
    :class:`tokendraw.cli.diagnosis.building.Build`.
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

    operation, settings, start = operations.get(name), read_settings(), time.monotonic()
    decisions: tuple[Decision, ...] = ()
    usable: set[str] = set()
    outcome: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TokendrawWarning)  # a strict one is raised all the same
        try:
            negotiator = open_negotiator(
                settings,
                settings.choice(),
                None,
                operation.need(),
                before_build=lambda plugin: write(plugin=plugin),
            )
            assert negotiator.discovery is not None
            candidates = negotiator.discovery.candidates(operation, negotiator.need)
            usable = {candidate.name for candidate in candidates if candidate.state is State.AVAILABLE}
            with logged_by(log):  # failures to load a plugin are the command's own to show
                selection, _ = negotiator.settle(operation, negotiator.rejections)
            resolution = selection.resolution
            decisions, outcome["warnings"] = resolution.decisions, resolution.untested
            warn_of(resolution, strict=settings.strict)
            outcome |= {"chosen": resolution.chosen, "companion": resolution.companion}
        except (TokendrawError, TokendrawWarning) as refusal:
            outcome["error"] = str(refusal)
            decisions = decisions or getattr(refusal, "decisions", ())
    rejections = {d.name: d.reason for d in decisions if not d.accepted and d.name in usable}
    return {**outcome, "seconds": time.monotonic() - start, "rejections": rejections}
