"""Checks all properties of a subject, one after the other; a failure ends its own line and no other."""

from __future__ import annotations

import difflib
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from tokendraw._messages.errors import InvalidParameterError
from tokendraw._messages.words import one_of, spoken
from tokendraw._torch.threads import one_thread
from tokendraw.testing.kit.operation import find, properties
from tokendraw.testing.kit.property import Property
from tokendraw.testing.kit.refusals import refused
from tokendraw.testing.kit.report import Line, Report, Status
from tokendraw.testing.kit.subject import OperationSubject, Subject
from tokendraw.testing.kit.trial import FALSE_ALARM, Trial, Violation

_KIT = Path(__file__).parents[1]


def run(
    subject: Subject,
    *,
    only: Iterable[str] | None = None,
    operation: str | None = None,
    starting: Callable[[Property], None] | None = None,
    finished: Callable[[Line], None] | None = None,
) -> Report:
    """Check every property.

    :param only: names of the properties to check, or one name; None: all.
    :param operation: check those of this operation alone; None: of every operation that the subject offers.
    :param starting: called before each one.
    :param finished: called with each line when it is complete.
    :raises InvalidParameterError: there is no such operation, or it has no property of a name in ``only``.
    """
    lines = []
    for prop in selected(only, operation):
        if starting:
            starting(prop)
        line = check(subject, prop)
        if line is not None:
            lines.append(line)
            if finished:
                finished(line)
    return Report(
        sampler=subject.name,
        device=str(subject.device),
        quick=subject.effort.quick,
        seed=subject.seed,
        false_alarm=FALSE_ALARM,
        lines=tuple(lines),
    )


def selected(only: Iterable[str] | None = None, operation: str | None = None) -> tuple[Property, ...]:
    """Return the properties of these names, in the order of a report.

    :param only: names, or one name; None: all.
    :param operation: take those of this operation alone; None: of every one.
    :raises InvalidParameterError: there is no such operation, or no property of one of the names; the message has the
        nearest.
    """
    every = properties(operation)
    if only is None:
        return every
    wanted = [only] if isinstance(only, str) else list(only)
    names = [prop.name for prop in every]
    for name in wanted:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=3)
            advice = f"Nearest: {one_of(map(repr, near))}." if near else "See `tokendraw check --list`."
            raise InvalidParameterError(f"'only' needs the name of a property, found {name!r}. {advice}")
    return tuple(prop for prop in every if prop.name in wanted)


def check(subject: Subject, prop: Property) -> Line | None:
    """Check one property; None if it is not for this subject. Torch's random state is put back."""
    start = time.perf_counter()
    trial = Trial(prop.name, subject.seed)
    devices = [subject.device.index or 0] if subject.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), one_thread():
        status, detail, raised_in = _outcome(subject, prop, trial)
    if status is None:
        return None
    return Line(
        name=prop.name,
        about=prop.about,
        status=status,
        detail=detail,
        checks=trial.checks,
        draws=trial.draws,
        p_value=trial.least[0] if trial.least else None,
        worst=trial.least[1] if trial.least else "",
        traceback=raised_in,
        seconds=time.perf_counter() - start,
    )


def _outcome(subject: Subject, prop: Property, trial: Trial) -> tuple[Status | None, str, str]:
    """Return status, detail and traceback."""
    try:
        kit, capabilities = find(prop.operation), subject.capabilities.get(prop.operation)
        if kit is None or capabilities is None:
            return None, "", ""
        viewed: OperationSubject = kit.view(subject)
        if prop.advertised is not None and not prop.advertised(capabilities):
            words = refused(viewed, prop.refusal) if prop.refusal else ""
            return (Status.REFUSED, words, "") if prop.refusal else (None, "", "")
        if prop.needs_cuda and subject.device.type != "cuda":
            return Status.NOT_RUN, f"needs a CUDA device, found {subject.device.type}", ""
        return Status.PASSED, prop.check(viewed, trial), ""
    except Violation as violation:
        return Status.FAILED, str(violation), _frames(violation.__cause__)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a sampler that calls sys.exit must not end the run
        return Status.FAILED, f"a call raised {spoken(error)}", _frames(error)


def _frames(error: BaseException | None) -> str:
    """Format the frames below the kit's own, where the sampler raised; all of them if the kit itself did."""
    if error is None:
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    kit = [i for i, frame in enumerate(frames) if _KIT in Path(frame.filename).parents]
    below = frames[kit[-1] + 1 :] if kit else frames
    return "".join(traceback.format_list(below or frames))
