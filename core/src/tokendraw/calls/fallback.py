"""Decides after a failed call: whose fault, which backend serves next, and the user's message.

=====================================================  ================================================================
the failed call                                        what follows
=====================================================  ================================================================
was wrong itself, lacked memory, or was captured,      the error is raised; the backend stays
or a filter from moments failed
went to an explicit choice, or to its companion        the error is raised with a note; the backend stays
may not fall back (``Call.may_fall_back``)             the error is raised; the backend stays
had no other backend available, first or later         ``SamplerUnavailableError`` is raised from the error
was the first of its signature                         the next best backend serves it, replaces the failed backend, and
                                                       a warning says so once (an error with ``TOKENDRAW_STRICT``); if
                                                       every other backend fails as well, the first error is raised
                                                       with a note and the backend stays: the call is to blame
was a later one                                        the error is raised with a note; the backend stays
=====================================================  ================================================================

Compilations fail in the first call of a signature (:meth:`tokendraw.calls.call.Call.signature`). This call runs on
copies of the tensors, for a failed backend may have modified them past torch's notice. Later calls run on the tensors
themselves: copies would cost a read and a write of the logits. Nothing is copied during the capture of a CUDA graph,
nor where no other backend is available. Faults found by ``TOKENDRAW_DEBUG`` are raised and never reach this module.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokendraw._torch.tensors import is_capturing
from tokendraw.backends.description import Operation
from tokendraw.backends.discovery.guard import log_traceback
from tokendraw.backends.resolution.messages import disable_setting, install, undo
from tokendraw.calls.call import Call
from tokendraw.calls.negotiator import Negotiator, Rejections, is_out_of_memory, rejected
from tokendraw.calls.routing import LoadedBackend, Selection
from tokendraw.errors import (
    FilterError,
    InvalidInputError,
    InvalidParameterError,
    PluginError,
    SamplerFallbackWarning,
    SamplerUnavailableError,
    UntestedUpstreamWarning,
    announce,
)


class CallFailedError(Exception):
    """A backend raised, or returned an output of the wrong form."""

    def __init__(self, backend: LoadedBackend, error: BaseException, reason: str) -> None:
        self.backend = backend
        self.error = error
        """The exception that the backend raised, or a PluginError that describes the output."""
        self.reason = reason
        """Says what speaks against the backend."""
        self.had_copies = False
        """Whether the backend was given copies, so that the caller's tensors are unmodified."""

    @property
    def visible_error(self) -> BaseException:
        """The error, or a PluginError in place of ``SystemExit`` and its like, for the host's sake."""
        if isinstance(self.error, Exception):
            return self.error
        visible = PluginError(f"{self.backend.name!r} failed: {self.reason}")
        visible.__cause__ = self.error
        return visible

    @property
    def is_verdict(self) -> bool:
        """Whether the error may speak against the backend, unlike a mistake of the caller or of a filter.

        Nor does too little memory, which another backend would hide: the batch was too large for the free memory.
        """
        is_mistake = isinstance(self.error, (InvalidInputError, InvalidParameterError, FilterError))
        return not (is_mistake or is_out_of_memory(self.error))


def copied(call: Call) -> Call:
    """Copy the first call of a signature; return the call itself during a capture, or if memory is short."""
    if is_capturing():
        return call
    try:
        return call.copied()
    except RuntimeError as error:
        if is_out_of_memory(error):
            return call
        raise


def refusal(failure: CallFailedError, selection: Selection, call: Call) -> BaseException | None:
    """Return the error to raise at once; None if another backend may serve the call."""
    if not failure.is_verdict or is_capturing():
        return failure.visible_error
    choice = selection.resolution.choice
    if choice.sampler is not None:
        name, asked = failure.backend.name, f"asked for by {choice.source or 'the caller'}"
        role = "" if name == choice.sampler else f"{name!r} serves what {choice.sampler!r} cannot. "
        note = f"{role}{choice.sampler!r} was {asked}, so no other one takes over. {undo(choice)}"
        return _noted(failure.visible_error, note)
    if not call.may_fall_back:
        return failure.visible_error
    if selection.can_fall_back and not failure.had_copies:
        name = failure.backend.name
        return _noted(
            failure.visible_error,
            f"{name!r} may have overwritten its inputs before it failed, so no other one is given them. Only the "
            f"first call of each kind, which runs on copies, can be taken over. Set TOKENDRAW_DISABLE={name} to use "
            "another one.",
        )
    return None


def failed_by_all(failures: Sequence[CallFailedError]) -> BaseException:
    """Return the first error of a call after failures of all backends."""
    first, *others = failures
    return _noted(
        first.visible_error,
        "; ".join(f"{other.backend.name!r} failed on this batch too: {other.reason}" for other in others)
        + ". So nobody is replaced. Check what the call was given.",
    )


def successor(
    operation: Operation, negotiator: Negotiator, rejections: Rejections, failure: CallFailedError, call: Call
) -> tuple[Selection, Rejections]:
    name, reason = failure.backend.name, failure.reason
    rejections = rejected(rejections, operation, name, reason, failure.error)
    selection, rejections = negotiator.settle(operation, rejections)
    backend = selection.backend
    missing = backend.reason_against(call)
    if missing is None or selection.companion is not None:
        return selection, rejections
    raise SamplerUnavailableError(
        f"Nothing here can serve {missing}, which this batch may hold: {name!r} failed, {reason}. "
        f"{install('another one that can', selection.resolution.decisions)}, or, if the batch holds none, say so in "
        f"{call.hint_field}."
    )


def warn_of(
    failures: Sequence[CallFailedError], selection: Selection, successor: str, *, strict: bool, debug: bool
) -> None:
    """Warn once a process of each failed backend, and of the successor's untested versions; raise if strict."""
    resolution, outcome = selection.resolution, f" Using {successor!r} from here on."
    for failure in failures:
        name = failure.backend.name
        log_traceback(f"a call of {name!r}", failure.error, aloud=debug)
        disable = disable_setting([name], resolution.choice)
        text = f"{name!r} failed: {failure.reason}.{outcome} Set {disable} to silence this."
        try:
            announce(SamplerFallbackWarning, text, strict=strict, once_for=("call", name), outcome=outcome)
        except SamplerFallbackWarning as warning:
            raise warning from failure.error
    for text in resolution.untested:
        announce(UntestedUpstreamWarning, text, strict=strict)


def _noted(error: BaseException, note: str) -> BaseException:
    if note not in getattr(error, "__notes__", ()):  # a plugin may raise one object again and again
        error.add_note(note)
    return error
