"""The capabilities of a verifier, and the vocabulary of a verification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

from tokendraw.backends.description.capabilities import Capabilities, DraftKind

VerifyMode: TypeAlias = Literal["rejection", "coupled"]

VERIFY_MODES: tuple[VerifyMode, ...] = ("rejection", "coupled")
DRAFT_KINDS: tuple[DraftKind, ...] = ("probs", "logits", "chosen")


@dataclass(frozen=True, kw_only=True)
class VerifyCapabilities(Capabilities):
    """The capabilities of a verifier: of sampling, and of drafts. The defaults promise nothing.

    Inherits the fields of :class:`Capabilities`.

    :ivar verify_modes: Ways in which drafts are verified, of ``VERIFY_MODES``.
    :ivar draft_kinds: Kinds of drafts, by what the drafts come with: probabilities, logits or nothing, of
        ``DRAFT_KINDS``.
    :ivar ragged_drafts: Whether requests may have different numbers of drafts.
    :ivar placeholder_drafts: Whether an id outside [0, V) may stand for a draft that was not made.
    """

    verify_modes: tuple[VerifyMode, ...] = ()
    draft_kinds: tuple[DraftKind, ...] = ()
    ragged_drafts: bool = False
    placeholder_drafts: bool = False

    @classmethod
    def of(cls, sampling: Capabilities, **fields: Any) -> Self:
        """Copy the capabilities of sampling to verification, except for ``fields``."""
        return cls(**{**vars(sampling), **fields})
