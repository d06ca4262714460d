"""The public face for distributions that draw from a part of a vocabulary, such as ``tokendraw-ranks``.

Here are the statistics of the tiles of some columns, the parameters of rows as kernels read them, and the device
functions with which a kernel draws as this package does: the same noise, weights and temperatures, bit for bit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection

import torch
from torch import Tensor

from tokendraw import SamplingMetadata
from tokendraw.plugin import Moment
from tokendraw_triton_gumbel.host.device import LaunchDevice
from tokendraw_triton_gumbel.host.geometry import power_of_two, row_grid, tiles_of
from tokendraw_triton_gumbel.host.params_layout import (
    FRESH_SEEDS_INDEX,
    contiguous_params,
    placeholders,
    presence_flags,
)
from tokendraw_triton_gumbel.host.row_layout import RowAccess, row_layout, with_unit_stride
from tokendraw_triton_gumbel.host.tuning import configuration_for
from tokendraw_triton_gumbel.host.variant import Target
from tokendraw_triton_gumbel.kernels.logprobs.best_candidates import (
    bound_by_maxima,
    collect_best,
    count_ties,
    group_maxima,
    order_candidates,
    search_edge,
)
from tokendraw_triton_gumbel.kernels.row_draw.candidates import list_granules
from tokendraw_triton_gumbel.kernels.row_draw.tile_survey import survey_tiles
from tokendraw_triton_gumbel.kernels.shared.argument_groups import (
    Counts,
    Logits,
    MomentSums,
    RowParams,
    TileStatistics,
)
from tokendraw_triton_gumbel.kernels.shared.float_keys import LOWEST, key_of, value_of
from tokendraw_triton_gumbel.kernels.shared.noise import TILE, TOKEN, gumbel
from tokendraw_triton_gumbel.kernels.shared.row_address import is_inside
from tokendraw_triton_gumbel.kernels.shared.row_params import (
    HAS_FLOOR,
    TEMPERED,
    load_filters,
    noise_key,
    slot_of,
)
from tokendraw_triton_gumbel.kernels.shared.row_values import RowAddress
from tokendraw_triton_gumbel.kernels.shared.temperature import inverse_temperature, mode_temperature
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE, TILE_SIZE
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, lowest_kept, scaled, share_of
from tokendraw_triton_gumbel.kernels.tile_pass.column_statistics import column_statistics
from tokendraw_triton_gumbel.kernels.tile_pass.moments_of_tiles import spread_of_tiles, weights_of_tiles
from tokendraw_triton_gumbel.launches.draw import tile_pass
from tokendraw_triton_gumbel.launches.moments import MOMENTS_OF_SUMS

__all__ = [
    "GRANULES_PER_TILE",
    "HAS_FLOOR",
    "LOG2_E",
    "LOWEST",
    "TEMPERED",
    "TILE",
    "TILE_SIZE",
    "TOKEN",
    "Logits",
    "RowAddress",
    "RowParams",
    "bound_by_maxima",
    "collect_best",
    "count_ties",
    "group_maxima",
    "gumbel",
    "inverse_temperature",
    "is_inside",
    "key_of",
    "list_granules",
    "load_filters",
    "lowest_kept",
    "mode_temperature",
    "noise_key",
    "order_candidates",
    "power_of_two",
    "row_grid",
    "row_params",
    "scaled",
    "search_edge",
    "share_of",
    "slot_of",
    "spread_of_tiles",
    "survey_tiles",
    "tile_statistics",
    "value_of",
    "weights_of_tiles",
    "with_unit_stride",
]


def tile_statistics(
    logits: Tensor,
    lead: int,
    params: RowParams,
    *,
    has_row_index: bool,
    has_granules: bool,
    has_raw_sums: bool,
    moments: Collection[Moment] = (),
) -> tuple[TileStatistics, MomentSums]:
    """Reduce the columns of each row by tile, in one launch that reads each logit once and waits for nothing.

    :param logits: [B, n], n > 0, float32, bfloat16 or float16, the elements of a row contiguous.
    :param lead: number of ids of the first tile before the first column, in [0, 1024).
    :param params: of :func:`row_params`.
    :param has_row_index: whether these have a row index.
    :param has_granules: whether the maxima of the granules of 64 logits are wanted.
    :param has_raw_sums: whether sums at T = 1 are wanted, too.
    :param moments: the moments of rows whose sums are wanted.
    """
    rows, columns = logits.shape
    tiles, device = tiles_of(lead + columns), logits.device
    facts = LaunchDevice.of(device)
    target = Target(facts.family, facts.processors, fp64=False)
    access, configuration = RowAccess.of(row_layout(logits)), configuration_for(facts.family, rows)

    def per_tile() -> Tensor:
        return torch.empty(rows, tiles, dtype=torch.float32, device=device)

    granules = None
    if has_granules:
        granules = torch.empty(rows, tiles * GRANULES_PER_TILE.value, dtype=logits.dtype, device=device)
    statistics = TileStatistics(per_tile(), per_tile(), per_tile() if has_raw_sums else None, granules, None)
    fields = {name for names, readers in MOMENTS_OF_SUMS.items() if readers & set(moments) for name in names}
    sums = MomentSums(**{name: per_tile() for name in fields})
    launch = tile_pass(
        column_statistics,
        access,
        configuration,
        target,
        is_aligned=access.is_aligned and lead % 16 == 0,
        has_raw_sums=has_raw_sums,
        has_further_sums=bool(moments),
    )
    grid = (math.ceil(tiles / configuration.span(logits.dtype.itemsize)), *row_grid(rows))
    arguments = (
        Logits(logits, logits.stride(0), lead + columns),
        lead,
        Counts(rows, rows, tiles, 0, 0),
        params.temperature,
        params.row_index if has_row_index else None,
        statistics,
        sums,
    )
    launch(grid, arguments, None)
    return statistics, sums


def row_params(
    metadata: SamplingMetadata, fresh: Tensor | None, device: torch.device
) -> tuple[RowParams, int]:
    """Return the parameters of a batch for kernels, without floors, and bits that say which of them there are.

    :param fresh: [B] int64: seeds of rows without one; None: every row has one.
    """
    tensors, layout = contiguous_params(metadata)
    flags = presence_flags(layout.dtypes, has_fresh_seeds=fresh is not None)
    given = list(tensors[:-1])  # but for the number of logprobs
    given.insert(FRESH_SEEDS_INDEX, fresh)
    given.append(None)  # floors
    expected = placeholders(layout.dtypes)
    filled = [
        tensor if tensor is not None or pointer is None else _stand_in(pointer.dtype, device)
        for tensor, pointer in zip(given, expected, strict=True)
    ]
    return RowParams(*filled), flags


@functools.cache
def _stand_in(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a zero for a parameter that is absent: no kernel reads it, but each computes its address."""
    return torch.zeros(1, dtype=dtype, device=device)
