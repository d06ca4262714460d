"""Finds the drafts left by a verifier to a companion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tokendraw.backends.description.capabilities import DraftKind, Need
from tokendraw.calls import row_limits
from tokendraw.operations.verify.capabilities import (
    DRAFT_KINDS,
    VERIFY_MODES,
    VerifyCapabilities,
    VerifyMode,
)

if TYPE_CHECKING:
    from tokendraw.parameters.drafts import Drafts

_FROM: dict[DraftKind, str] = {
    "probs": "drafts with probabilities",
    "logits": "drafts with logits",
    "chosen": "drafts that were not drawn",
}


def beyond(capabilities: VerifyCapabilities, need: Need) -> tuple[str, ...]:
    """Name the kinds of rows and drafts not served by a verifier."""
    return (*row_limits.beyond(capabilities, need), *_draft_gaps(capabilities))


def _draft_gaps(capabilities: VerifyCapabilities) -> Iterator[str]:
    for mode in VERIFY_MODES:
        if mode not in capabilities.verify_modes:
            yield f"the mode {mode}"
    for kind in DRAFT_KINDS:
        if kind not in capabilities.draft_kinds:
            yield _FROM[kind]
    if not capabilities.ragged_drafts:
        yield "requests with different numbers of drafts"
    if not capabilities.placeholder_drafts:
        yield "placeholders among drafts"


def undrafted(capabilities: VerifyCapabilities, drafts: Drafts, mode: VerifyMode) -> str | None:
    """Name the drafts of a batch perhaps not served by a verifier; None if all are served."""
    if mode not in capabilities.verify_modes:
        return f"the mode {mode}"
    if drafts.kind not in capabilities.draft_kinds:
        return _FROM[drafts.kind]
    if not capabilities.ragged_drafts and not drafts.is_uniform:
        return "requests with different numbers of drafts"
    if not capabilities.placeholder_drafts and drafts.any_placeholder:
        return "placeholders among drafts"
    return None
