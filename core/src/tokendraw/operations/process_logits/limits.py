"""Finds the calls left by a processor to a companion."""

from __future__ import annotations

from collections.abc import Iterable

from tokendraw.backends.description.capabilities import INPUT_DTYPES
from tokendraw.calls.row_limits import VOCABULARY
from tokendraw.operations.process_logits.capabilities import ProcessCapabilities, ProcessNeed
from tokendraw.parameters.edits import EDITS, Edit

DRAFTS = "rows of a verification"


def beyond(capabilities: ProcessCapabilities, need: ProcessNeed) -> tuple[str, ...]:
    """Name the kinds of calls not served by a processor."""
    wanted = INPUT_DTYPES if need.dtype is None else (need.dtype,)
    lacking = [f"logits in {dtype}" for dtype in wanted if dtype not in capabilities.dtypes]
    if capabilities.max_vocab_size is not None and need.vocab_size is None:
        lacking.append(VOCABULARY)
    if not capabilities.drafts:
        lacking.append(DRAFTS)
    return (*lacking, *(_in_words(edit) for edit in EDITS if edit not in capabilities.edits))


def unserved(
    capabilities: ProcessCapabilities, dtype: str, vocab_size: int, edits: Iterable[Edit], *, has_drafts: bool
) -> str | None:
    """Name the part of a call not served by a processor; None if every part is.

    :param edits: those that a row of the call may ask for.
    """
    if dtype not in capabilities.dtypes:
        return f"logits in {dtype}"
    if capabilities.max_vocab_size is not None and vocab_size > capabilities.max_vocab_size:
        return f"rows of a vocabulary above {capabilities.max_vocab_size}"
    if has_drafts and not capabilities.drafts:
        return DRAFTS
    return next((_in_words(edit) for edit in edits if edit not in capabilities.edits), None)


def _in_words(edit: Edit) -> str:
    return "rows with a bitmask" if edit == "bitmask" else f"requests with {edit}"
