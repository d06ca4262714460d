"""The operation ``verify`` of a :class:`tokendraw.Sampler`: the check of a call, and who verifies its drafts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from tokendraw import speculative
from tokendraw._capabilities import VERIFY_MODES, VerifyMode
from tokendraw._drafts import Drafts
from tokendraw._errors import InvalidInputError, InvalidParameterError, SamplerUnavailableError
from tokendraw._metadata import SamplingMetadata
from tokendraw._output import SamplerOutput, VerifyOutput
from tokendraw._rows import undrafted, unserved
from tokendraw._words import one_of

if TYPE_CHECKING:
    from tokendraw._plugin import VerifierBackend
    from tokendraw._serving import Serving


def verify(
    serving: Serving, target_logits: Tensor, drafts: Drafts, metadata: SamplingMetadata, mode: VerifyMode
) -> VerifyOutput:
    """Verify a batch with whoever serves every request of it. See :meth:`tokendraw.Sampler.verify`."""
    backend = _verifier(serving, drafts, metadata, target_logits.shape[1], mode)
    return backend.verify(target_logits, drafts, metadata, mode=mode)


def draft(serving: Serving, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
    """Draw drafts with whoever serves every row. See :meth:`tokendraw.Sampler.draft`."""
    backend: VerifierBackend = serving.member(metadata.facts, logits.shape[1]).backend
    return backend.draft(logits, metadata)


def checked(
    target_logits: Tensor, drafts: Drafts, metadata: SamplingMetadata, mode: VerifyMode
) -> SamplingMetadata:
    """The metadata of every row of the target.

    :raises InvalidInputError: drafts or metadata do not fit the logits.
    :raises InvalidParameterError: there is no such mode.
    """
    if mode not in VERIFY_MODES:
        raise InvalidParameterError(
            f"'mode' needs {one_of(VERIFY_MODES)}, found {mode!r}. Pass one of these."
        )
    drafts.check(target_logits)
    rows, found = target_logits.shape[0], metadata.num_rows
    if found == rows or (found is None and metadata.row_index is None):
        return metadata
    if metadata.row_index is None and found == drafts.num_requests:
        return _spread(metadata, drafts, rows)
    raise InvalidInputError(
        f"'metadata' needs one entry a request, {drafts.num_requests}, or one a row of 'target_logits', {rows}, "
        f"found {found}."
    )


def _spread(metadata: SamplingMetadata, drafts: Drafts, rows: int) -> SamplingMetadata:
    """The metadata of rows from those of requests, whose positions are those of their first rows."""
    positions = metadata.positions
    if positions is not None:
        positions = speculative.row_positions(drafts.cu_num_logits, positions, rows)
    return replace(metadata, row_index=speculative.row_index(drafts.cu_num_logits, rows), positions=positions)


def _verifier(
    serving: Serving, drafts: Drafts, metadata: SamplingMetadata, vocab_size: int, mode: VerifyMode
) -> VerifierBackend:
    refusals = []
    for member, offered in (
        (serving.chosen, serving.capabilities),
        (serving.companion, serving.companion_capabilities),
    ):
        if member is None:
            continue
        lacking = None
        if offered is not None:
            lacking = unserved(offered, metadata.facts, vocab_size) or undrafted(offered, drafts, mode)
        if lacking is None:
            backend: VerifierBackend = member.backend
            return backend
        refusals.append(f"'{member.name}' cannot serve {lacking}")
    raise SamplerUnavailableError(
        f"No sampler here can verify this batch: {'; '.join(refusals)}, which it may hold. Install one that can "
        "(pip install 'tokendraw[native]'), or, if the batch holds none, say so in its facts."
    )
