"""The parameters of requests, spread over the rows of the target's logits that judge their drafts."""

from __future__ import annotations

from dataclasses import replace

from tokendraw import speculative
from tokendraw._exchange.metadata import SamplingMetadata
from tokendraw.operations.verify.drafts import Drafts


def by_row(metadata: SamplingMetadata, drafts: Drafts, rows: int) -> SamplingMetadata:
    """Make metadata of rows, also from those of requests, whose positions are those of their first rows."""
    found = metadata.num_rows
    if found is None or found == rows:
        return metadata
    positions = metadata.positions
    if positions is not None:
        positions = speculative.row_positions(drafts.cu_num_logits, positions, rows)
    return replace(metadata, row_index=speculative.row_index(drafts.cu_num_logits, rows), positions=positions)
