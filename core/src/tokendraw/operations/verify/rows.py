"""Spreads the parameters of requests over the rows of the target's logits."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

import torch
from torch import Tensor

from tokendraw import speculative
from tokendraw._torch.graphs import is_capturing
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.metadata import SamplingMetadata


def by_row(metadata: SamplingMetadata, drafts: Drafts, rows: int) -> SamplingMetadata:
    """Make metadata of rows, also from metadata of requests with the position of each request's first row."""
    found = metadata.num_rows
    if found is None or found == rows:
        return metadata
    request, place, steps = _rows_of_requests(drafts, rows)
    positions = metadata.positions
    if positions is not None and steps is not None:
        positions = torch.add(positions.unsqueeze(1), steps).view(-1)  # one launch
    elif positions is not None:
        positions = positions.index_select(0, request)
        positions = (positions if positions.dtype is torch.int64 else positions.to(torch.int64)).add_(place)
    slot = metadata.row_index
    return metadata.for_rows(request if slot is None else slot.index_select(0, request), positions)


_Rows: TypeAlias = tuple[Tensor, Tensor, Tensor | None]


def _rows_of_requests(drafts: Drafts, rows: int) -> _Rows:
    """Find the request of each row, and the row's index within its request: computed once for unchanged offsets.

    Inside of a CUDA graph both are computed, so that replays follow what ``cu_num_logits`` is changed to.

    :returns: [L] each; and the places in any request, [K + 1] int64, where all requests have K drafts.
    """
    offsets = drafts.cu_num_logits
    if is_capturing() or offsets.is_inference():  # torch does not count changes of inference tensors
        return *speculative.rows_of_requests(offsets, rows), None
    stream = torch.cuda.current_stream(offsets.device) if offsets.is_cuda else None
    state: Hashable = rows, offsets._version, stream
    known: tuple[Hashable, _Rows] | None = drafts.memo.get("rows of requests")
    if known is None or known[0] != state:
        width, steps = drafts.max_drafts + 1, None
        if drafts.is_uniform and rows == drafts.num_requests * width:
            steps = torch.arange(width, device=offsets.device)
        known = state, (*speculative.rows_of_requests(offsets, rows), steps)
        drafts.memo["rows of requests"] = known
    return known[1]
