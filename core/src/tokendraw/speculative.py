"""Index arithmetic of a verification, between requests, their drafts and the rows of the target's logits.

Request b has ``num_drafts[b]`` drafts and one row of logits more: its drafts' rows in order, then its bonus row. For
``num_drafts`` 2, 0, 1::

    row              0   1   2   3   4   5
    request          0   0   0   1   2   2         row_index
    offset           0   1   2   0   0   1         row_positions, less each request's first one
    is               d   d   b   b   d   b         target_rows 0, 1, 4; bonus_rows 2, 3, 5
    cu_num_logits    0           3   4       6

Every function computes on the device of what it is given, waits for nothing, and can be captured in a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def cu_num_logits(num_drafts: Tensor) -> Tensor:
    """Compute the first row of each request, and the number of all rows.

    :param num_drafts: [B] integer.
    :returns: [B + 1] int64: 0, then the running sum of (drafts + 1).
    """
    return pad((num_drafts.to(torch.int64) + 1).cumsum(0), (1, 0))


def row_index(cu_num_logits: Tensor, num_rows: int) -> Tensor:
    """Compute the request of each row of logits, for ``SamplingMetadata.row_index``.

    :param cu_num_logits: [B + 1] integer.
    :param num_rows: L. Rows from ``cu_num_logits[B]`` on are given to the last request.
    :returns: [L] int64.
    """
    ends = _indices(cu_num_logits)[1:]
    return _segment(ends, torch.arange(num_rows, dtype=ends.dtype, device=ends.device))


def row_positions(cu_num_logits: Tensor, first_positions: Tensor, num_rows: int) -> Tensor:
    """Compute the position of each row of logits, for ``SamplingMetadata.positions``.

    :param first_positions: [B] integer: position of each request's first row, the index in its sequence of the last
        token that is settled. Its first draft stands one further.
    :returns: [L] int64.
    """
    request, offset = rows_of_requests(cu_num_logits, num_rows)
    return first_positions.index_select(0, request).to(torch.int64).add_(offset)


def rows_of_requests(cu_num_logits: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Compute the request of each row of logits, and the row's index within its request.

    :returns: [L] int64, and [L] of the dtype of ``cu_num_logits``.
    """
    offsets = _indices(cu_num_logits)
    rows = torch.arange(num_rows, dtype=offsets.dtype, device=offsets.device)
    request = torch.searchsorted(offsets[1:], rows, right=True).clamp_(max=max(len(offsets) - 2, 0))
    return request, rows.sub_(offsets.index_select(0, request))


def bonus_rows(cu_num_logits: Tensor) -> Tensor:
    """Compute the last row of each request, the row of the bonus token: [B] int64."""
    return cu_num_logits[1:].to(torch.int64) - 1


def target_rows(cu_num_logits: Tensor, total_drafts: int) -> Tensor:
    """Compute the row of target logits of each draft, in the order of the drafts.

    :param total_drafts: L - B.
    :returns: [L - B] int64.
    """
    ends = _indices(cu_num_logits)[1:]
    indices = torch.arange(max(total_drafts, len(ends) + 1), dtype=ends.dtype, device=ends.device)
    drafts = indices[:total_drafts]
    return _segment(ends - indices[1 : len(ends) + 1], drafts).add_(drafts)


def _indices(offsets: Tensor) -> Tensor:
    """Convert offsets to a dtype for counting rows without overflow, also beyond the last offset."""
    return offsets if offsets.dtype in (torch.int64, torch.int32) else offsets.to(torch.int64)


def _segment(ends: Tensor, indices: Tensor) -> Tensor:
    """Find for each index the first segment that ends beyond it: [indices] int64."""
    return torch.searchsorted(ends, indices, right=True).clamp_(max=max(len(ends) - 1, 0))
