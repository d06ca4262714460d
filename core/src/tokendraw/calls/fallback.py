"""Decides what happens after a call failed: whose fault it is, who may take over, and what the user reads.

A provider is demoted only where it failed a call that another one then served: a call that nobody can serve is its
caller's mistake. Another one serves a failed call only if the failed one had been given copies of its tensors: nothing
else proves that they are as they were, since a plugin may write to their memory past torch. A provider gets copies for

* the first call of each kind that it meets (:meth:`tokendraw.calls.call.Call.kind`): there compilations fail;
* calls of a kind that it has failed, until it serves one;

and none while a CUDA graph is captured, of which they would become a part, nor where nobody could take over. They take
the memory of the tensors for the time of the call, and a read and a write of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tokendraw._torch.graphs import is_capturing
from tokendraw.backends.description.operation import Operation
from tokendraw.backends.discovery.origins import format_origin, package_of
from tokendraw.backends.resolution.candidate import Choice
from tokendraw.backends.resolution.refusals import install, undo
from tokendraw.calls.call import Call
from tokendraw.calls.device_faults import is_out_of_memory
from tokendraw.calls.negotiation import Negotiation
from tokendraw.calls.routing import BuiltProvider, Serving
from tokendraw.errors.exceptions import (
    InvalidInputError,
    InvalidParameterError,
    PluginError,
    SamplerUnavailableError,
)
from tokendraw.errors.formatting import format_error

_NO_VERDICT = (
    # The caller's mistake:
    InvalidInputError,
    InvalidParameterError,
)
"""Errors that say nothing against the provider that raised them. Nor does too little memory, which another one would
hide: the batch was too large for what the host left free."""


class CallFailedError(Exception):
    """A provider's call raised, or returned what is no output."""

    def __init__(self, member: BuiltProvider, error: BaseException, reason: str) -> None:
        self.member = member
        self.error = error
        """The exception that it raised, or a PluginError that says what was wrong with its output."""
        self.reason = reason
        """Says what speaks against the provider."""
        self.kind: Hashable = None
        """Kind of the call, if another provider could take over."""
        self.had_copy = False
        """Whether it was given copies, so that the caller's tensors are as they were."""

    @property
    def shown(self) -> BaseException:
        """The error, or a PluginError in place of one that would end the host, such as ``SystemExit``."""
        if isinstance(self.error, Exception):
            return self.error
        shown = PluginError(f"{self.member.name!r} failed: {self.reason}")
        shown.__cause__ = self.error
        return shown

    @property
    def is_verdict(self) -> bool:
        """Whether it may say something against the provider."""
        return not (isinstance(self.error, _NO_VERDICT) or is_out_of_memory(self.error))

    @property
    def may_be_followed(self) -> bool:
        """Whether yet another provider may serve the call."""
        return self.is_verdict and self.had_copy


def raised(error: BaseException, member: BuiltProvider) -> str:
    """Put into words what speaks against a provider whose call raised."""
    return f"its call raised {format_error(error)}{format_origin(error, member.package or package_of(member.backend))}"


def copied(call: Call, member: BuiltProvider, kind: Hashable) -> Call:
    """Prepare a call of a provider that another one could replace: with copies where they are due and there is room."""
    if is_capturing() or not (kind in member.failed_kinds or member.is_new(kind)):
        return call
    try:
        return call.copied()
    except RuntimeError as error:
        if is_out_of_memory(error):
            return call
        raise


def refusal(failed: CallFailedError, serving: Serving) -> BaseException | None:
    """Return what the caller gets to see of a failed call at once; None if another provider may serve in its place."""
    if not failed.is_verdict or is_capturing():
        return failed.shown
    choice = serving.resolution.choice
    if choice.sampler is not None:
        return _noted(failed.shown, _as_asked(failed.member, choice))
    if serving.can_fall_back and not failed.had_copy:
        failed.member.note_failure(failed.kind)
        return _noted(failed.shown, _not_from_these(failed.member))
    return None


def failed_by_all(failures: Sequence[CallFailedError]) -> BaseException:
    """Return what the caller gets to see of a call that nobody could serve: the first error."""
    first, *others = failures
    return _noted(
        first.shown,
        "; ".join(f"{other.member.name!r} failed on this batch too: {other.reason}" for other in others)
        + ". So nobody is replaced. Check what the call was given.",
    )


def successor(
    operation: Operation, facts: Negotiation, failed: CallFailedError, call: Call
) -> tuple[Negotiation, Serving]:
    """Decide anew without the provider that failed.

    :raises SamplerUnavailableError: nobody else can serve, or nobody this call.
    """
    facts, serving = facts.without(operation, failed.member.name, failed.reason, failed.error).settle(
        operation
    )
    lacking = serving.lacking(call)
    if serving.capabilities is not None and call.undeclared(serving.capabilities) is not None:
        return facts, serving  # whose route says which rows need what
    if lacking is not None and serving.companion is None:
        raise SamplerUnavailableError(
            f"Nothing here can serve {lacking}, which this batch may hold: {failed.member.name!r} failed, "
            f"{failed.reason}. {install('another one that can', serving.resolution.decisions)}, or, if the batch holds "
            f"none, say so in {call.told_in}."
        )
    return facts, serving


def _as_asked(failed: BuiltProvider, choice: Choice) -> str:
    beside = (
        "" if failed.name == choice.sampler else f"{failed.name!r} serves what {choice.sampler!r} cannot. "
    )
    asked = f"{choice.sampler!r} was asked for by {choice.source or 'the caller'}"
    return f"{beside}{asked}, so no other one takes over. {undo(choice)}"


def _not_from_these(failed: BuiltProvider) -> str:
    return (
        f"{failed.name!r} may have overwritten its inputs before it failed, so no other one is given them. It is given "
        "copies at the next call of this kind, and the next best one takes over, from then on, if it fails "
        f"again. Set TOKENDRAW_DISABLE={failed.name} to use another one at once."
    )


def _noted(error: BaseException, note: str) -> BaseException:
    if note not in getattr(error, "__notes__", ()):  # a plugin may raise one object again and again
        error.add_note(note)
    return error
