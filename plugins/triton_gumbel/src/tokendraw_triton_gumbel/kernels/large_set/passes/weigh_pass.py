"""Makes a pass over a row: several programs read every logit once, and write 16 or 32 bytes a tile.

Weighs every tile above each of four pivots; where k counts, also counts the logits above each. A pass that collects
writes the ids of the logits in the bracket instead: see :mod:`.collect_pass`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.passes.collect_pass import collect_part
from tokendraw_triton_gumbel.kernels.large_set.passes.group_load import as_logits, load_group
from tokendraw_triton_gumbel.kernels.large_set.pivots import load_pivots
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    COLLECT_BRACKET,
    COLUMNS,
    COUNT_COLUMN,
    FIND_KTH,
    FIND_LARGER,
    IS_EXTREME,
    KTH_THEN_NUCLEUS,
    MAX_LOGIT,
    SCALE,
    SLOT,
)
from tokendraw_triton_gumbel.kernels.shared.comparisons import reaches
from tokendraw_triton_gumbel.kernels.shared.tile_layout import LANES, lane_sums
from tokendraw_triton_gumbel.kernels.shared.weights import exp2, times


@triton.jit
def counts_logits(goal):
    """Return whether the passes of a goal count logits beside weighing them."""
    return (goal == FIND_KTH) | (goal == FIND_LARGER) | (goal == KTH_THEN_NUCLEUS)


@triton.jit
def pass_over_part(
    row, granules, goal, group, end_group, tiles, reals, ints, results, scratch, config: tl.constexpr
):
    """Weigh groups of ``WARPS`` tiles above each pivot, or collect, from ``group`` to before ``end_group``.

    The next group is on its way while one is weighed.

    :param granules: [tiles, 16] maxima of the row; ``goal`` the goal of the pass.
    :param reals: the state of the row, like ``ints``; ``results`` its :class:`~.argument_groups.PassResults`, of
        which the columns are numbered over all rows.
    :param scratch: the :class:`~.argument_groups.SearchScratch` of the program.
    """
    SPAN: tl.constexpr = config.WARPS
    IS_NVIDIA: tl.constexpr = config.IS_NVIDIA
    weights = results.columns + tl.load(ints + SLOT).to(tl.int64) * tiles * COLUMNS
    counts = counts_logits(goal)
    if goal >= COLLECT_BRACKET:
        units = weights.to(tl.pointer_type(tl.int64))
        collect_part(
            row,
            granules,
            group,
            end_group,
            tiles,
            reals,
            ints,
            results.collected,
            units,
            scratch.logits.to(tl.pointer_type(tl.int32)),
            config,
        )
    elif (counts == 0) & (tl.load(ints + IS_EXTREME) == 0):
        pivots = load_pivots(reals)
        max_logit = tl.load(reals + MAX_LOGIT)
        scale = tl.load(reals + SCALE)
        offset = -(max_logit * scale)
        correction = exp2(-tl.fma(max_logit, scale, offset), IS_NVIDIA)
        next_group = load_group(row, group, config)
        while group < end_group:
            x = as_logits(next_group, row, config)
            if group + 1 < end_group:
                next_group = load_group(row, group + 1, config)
            weight = exp2(tl.fma(x, scale, offset), IS_NVIDIA)
            _store_weights(weights, group, tiles, x, weight, pivots, correction, SPAN, IS_NVIDIA)
            group += 1
    else:
        _weigh_carefully(row, group, end_group, tiles, reals, weights, counts, config)


@triton.jit(noinline=True)
def _weigh_carefully(row, group, end_group, tiles, reals, weights, counts, config: tl.constexpr):
    """Weigh tiles with NaN, infinities or extreme logits, and count logits where the goal needs counts."""
    SPAN: tl.constexpr = config.WARPS
    IS_NVIDIA: tl.constexpr = config.IS_NVIDIA
    pivots = load_pivots(reals)
    max_logit = tl.load(reals + MAX_LOGIT)
    scale = tl.load(reals + SCALE)
    next_group = load_group(row, group, config)
    while group < end_group:
        x = as_logits(next_group, row, config)
        if group + 1 < end_group:
            next_group = load_group(row, group + 1, config)
        weight = tl.where(
            x > float("-inf"), exp2(times(x - max_logit, scale), IS_NVIDIA), 0.0
        )  # 0 of NaN, too
        _store_weights(weights, group, tiles, x, weight, pivots, 1.0, SPAN, IS_NVIDIA)
        if counts:
            _store_weights(weights + COUNT_COLUMN, group, tiles, x, 1.0, pivots, 1.0, SPAN, IS_NVIDIA)
        group += 1


@triton.jit
def _store_weights(out, group, tiles, x, weight, pivots, factor, SPAN: tl.constexpr, IS_NVIDIA: tl.constexpr):
    """Write the weight from each pivot upwards, of [LANES, SPAN, chunks, VECTOR]."""
    _store_lanes(
        out,
        group,
        tiles,
        lane_sums(weight * reaches(x, pivots.p0, IS_NVIDIA)),
        lane_sums(weight * reaches(x, pivots.p1, IS_NVIDIA)),
        lane_sums(weight * reaches(x, pivots.p2, IS_NVIDIA)),
        lane_sums(weight * reaches(x, pivots.p3, IS_NVIDIA)),
        factor,
        SPAN,
    )


@triton.jit
def _store_lanes(out, group, tiles, l0, l1, l2, l3, factor, SPAN: tl.constexpr):
    """Write four sums over lanes [LANES, SPAN] by four lanes of each warp, so that no warp waits for another."""
    lane, tile = tl.arange(0, LANES)[:, None], (group * SPAN + tl.arange(0, SPAN))[None, :]
    first = tl.where(lane == 0, _over_lanes(l0), _over_lanes(l1))
    second = tl.where(lane == 2, _over_lanes(l2), _over_lanes(l3))
    four = tl.where(lane < 2, first, second) * factor
    tl.store(out + tile * COLUMNS + lane, four, mask=(lane < 4) & (tile < tiles))


@triton.jit
def _over_lanes(block):
    """Sum [LANES, SPAN] to [1, SPAN]."""
    return tl.sum(block, 0)[None, :]
