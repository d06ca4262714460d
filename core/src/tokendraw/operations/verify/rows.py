"""The parameters of requests, given to the rows of the target's logits that judge their drafts."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from tokendraw import speculative
from tokendraw._exchange.metadata import SamplingMetadata
from tokendraw._torch.graphs import is_capturing
from tokendraw.operations.verify.drafts import Drafts


def by_row(metadata: SamplingMetadata, drafts: Drafts, rows: int) -> SamplingMetadata:
    """Make metadata of rows, also from those of requests, whose positions are those of their first rows."""
    found = metadata.num_rows
    if found is None or found == rows:
        return metadata
    request, offset = _rows_of_requests(drafts, rows)
    positions = metadata.positions
    if positions is not None:
        positions = positions.index_select(0, request)
        positions = (positions if positions.dtype is torch.int64 else positions.to(torch.int64)).add_(offset)
    return metadata.for_rows(request, positions)


def _rows_of_requests(drafts: Drafts, rows: int) -> tuple[Tensor, Tensor]:
    """Find the request of each row, and its place among that request's rows: once for offsets that do not change.

    Inside of a CUDA graph both are computed, so that replays follow what ``cu_num_logits`` is changed to.
    """
    offsets = drafts.cu_num_logits
    if is_capturing() or offsets.is_inference():  # torch does not count changes of inference tensors
        return speculative.rows_of_requests(offsets, rows)
    stream = torch.cuda.current_stream(offsets.device) if offsets.is_cuda else None
    state: Hashable = rows, offsets._version, stream
    known: tuple[Hashable, tuple[Tensor, Tensor]] | None = drafts.memo.get("rows of requests")
    if known is None or known[0] != state:
        known = state, speculative.rows_of_requests(offsets, rows)
        drafts.memo["rows of requests"] = known
    return known[1]
