"""Properties of a sharded call for the choice of kernels, sizes, and the arguments common to the launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from tokendraw.plugin import Moment
from tokendraw.vocab_parallel import Layout
from tokendraw_triton_gumbel.host.geometry import Grid, tiles_of
from tokendraw_triton_gumbel.host.row_layout import RowAccess
from tokendraw_triton_gumbel.host.tuning import Configuration
from tokendraw_triton_gumbel.kernels.shards.argument_groups import Shard
from tokendraw_triton_gumbel.kernels.shared.argument_groups import Logits, RowParams
from tokendraw_triton_gumbel.kernels.shared.tile_layout import TILE_SIZE


class ShardVariant(NamedTuple):
    """The properties of a sharded call in the choice of kernels, without sizes and addresses."""

    logits: RowAccess
    columns: int
    """Columns of this rank, and those of its first tile that lie before them."""
    shard: Shard
    has_filters: bool
    has_logprobs: bool
    """Whether any row wants logprobs."""
    is_drawn: bool
    """Whether a row may not be greedy."""
    moments: tuple[Moment, ...]
    """The moments of rows that filters read."""
    configuration: Configuration
    param_dtypes: tuple[torch.dtype | None, ...]
    """Dtypes of the parameters of the batch, in the order of :mod:`.params_layout`."""

    @property
    def is_aligned(self) -> bool:
        """Return whether the tiles of every row begin at multiples of 16 bytes."""
        return self.logits.is_aligned and self.shard.lead % 16 == 0


class ShardGeometry(NamedTuple):
    """The grid and the scratch layout of a variant at a number of rows."""

    rows: int
    scratch_counts: tuple[int, ...]
    scratch_offsets: list[int]
    tile_grid: Grid


class ShardArguments(NamedTuple):
    """Arguments shared by all launches of a call, as in :class:`.host.launch.LaunchArguments`."""

    geometry: ShardGeometry
    logits: Logits
    """Their ``vocab_size`` counts the columns of this rank with the lead."""
    lead: int
    params: RowParams
    """Without fresh seeds."""
    scratch: Sequence[Any]
    """All buffers of scratch."""


def shard_of(layout: Layout) -> Shard:
    """Return the place of this rank's columns. A rank without columns has one of -inf, in a tile of its own."""
    ids, tiles = layout.ids, layout.tiles
    if not ids.size:
        return Shard(0, 0, 1, 0, 1, layout.vocab_size)
    first = ids.start // TILE_SIZE.value
    count = tiles_of(ids.end) - first
    has_head, has_tail = tiles.head.size > 0, tiles.tail.size > 0
    return Shard(layout.lead, first, count, int(has_head), count - int(has_tail), layout.vocab_size)
