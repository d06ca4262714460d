"""What becomes of a call that raised: whose verdict it is, who may take over, and what the user reads."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw._batch_facts import BatchFacts
from tokendraw._candidate import Choice
from tokendraw._cuda_graphs import is_capturing
from tokendraw._errors import (
    InvalidInputError,
    InvalidParameterError,
    PluginError,
    SamplerUnavailableError,
)
from tokendraw._negotiation import Negotiation
from tokendraw._refusals import undo
from tokendraw._serving import Member, Serving
from tokendraw._words import spoken

_NO_VERDICT = (
    KeyboardInterrupt,
    # The caller's mistake:
    InvalidInputError,
    InvalidParameterError,
    # The batch was too large for what the host left free; another sampler would hide that:
    MemoryError,
    torch.OutOfMemoryError,
)
"""What says nothing against the sampler that raised it."""


def spare(logits: Tensor) -> Tensor:
    """Copy the logits for a sampler that has not shown yet what it does to them; none while capturing.

    Where there is no room for a copy, or where it would become part of a graph, the logits themselves do.
    """
    if is_capturing():
        return logits
    try:
        return logits.clone()
    except torch.OutOfMemoryError:
        return logits


def refusal(
    error: BaseException, failed: Member, serving: Serving, *, is_pristine: bool
) -> BaseException | None:
    """What the caller gets to see of a failed call; None if another sampler may draw in its place.

    :param is_pristine: the logits are known to be as they were before the call.
    :return: the error itself, or a PluginError in place of one that would end the host, such as ``SystemExit``.
    """
    if isinstance(error, _NO_VERDICT):
        return error
    shown: BaseException = error
    if not isinstance(error, Exception):
        shown = PluginError(f"{failed.name!r} failed: {reason_of(error)}")
    if is_capturing():
        return shown
    choice = serving.resolution.choice
    if choice.sampler is not None:
        return _noted(shown, _as_asked(failed, choice))
    if not is_pristine:
        return _noted(shown, _not_from_these(failed))
    return None


def reason_of(error: BaseException) -> str:
    """The reason against a sampler whose call raised."""
    return f"its call raised {spoken(error)}"


def successor(
    facts: Negotiation, failed: Member, error: BaseException, batch: BatchFacts
) -> tuple[Negotiation, Serving]:
    """Decide anew without the sampler that failed.

    :raises SamplerUnavailableError: from ``error``: nobody else can serve, or nobody the rows of this batch.
    """
    reason = reason_of(error)
    try:
        facts, serving = facts.without(failed.name, reason).settle()
    except SamplerUnavailableError as unavailable:
        raise unavailable from error
    lacking = serving.lacking(batch)
    if lacking is not None and serving.companion is None:
        raise SamplerUnavailableError(
            f"No sampler here can serve {lacking}, which this batch may hold: {failed.name!r} failed, {reason}. "
            "Install another one that can, or, if the batch holds none, say so in SamplingMetadata.facts."
        ) from error
    return facts, serving


def _as_asked(failed: Member, choice: Choice) -> str:
    beside = (
        "" if failed.name == choice.sampler else f"{failed.name!r} draws what {choice.sampler!r} cannot. "
    )
    asked = f"{choice.sampler!r} was asked for by {choice.source or 'the caller'}"
    return f"{beside}{asked}, so no other sampler takes over. {undo(choice)}"


def _not_from_these(failed: Member) -> str:
    return (
        f"{failed.name!r} may have overwritten the logits before it failed, so no other sampler draws from "
        f"them. Set TOKENDRAW_DISABLE={failed.name} to draw with another one."
    )


def _noted(error: BaseException, note: str) -> BaseException:
    if note not in getattr(error, "__notes__", ()):  # a plugin may raise one object again and again
        error.add_note(note)
    return error
