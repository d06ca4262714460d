"""The capabilities of a verifier, and the words that describe a verification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

from tokendraw._exchange.capabilities import Capabilities, DraftKind

VerifyMode: TypeAlias = Literal["rejection", "coupled"]

VERIFY_MODES: tuple[VerifyMode, ...] = ("rejection", "coupled")
DRAFT_KINDS: tuple[DraftKind, ...] = ("probs", "logits", "chosen")


@dataclass(frozen=True, kw_only=True)
class VerifyCapabilities(Capabilities):
    """The capabilities of a verifier: those of sampling, and its kinds of drafts. The defaults promise nothing."""

    verify_modes: tuple[VerifyMode, ...] = ()
    draft_kinds: tuple[DraftKind, ...] = ()
    ragged_drafts: bool = False
    """Whether requests may have different numbers of drafts."""
    placeholder_drafts: bool = False
    """Whether an id outside [0, V) may stand for a draft that was not made."""

    @classmethod
    def of(cls, sampling: Capabilities, **fields: Any) -> Self:
        """Advertise for verification what is advertised for sampling, except for ``fields``."""
        return cls(**{**vars(sampling), **fields})
