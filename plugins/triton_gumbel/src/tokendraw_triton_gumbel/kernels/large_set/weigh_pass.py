"""A pass: reads every logit of one row once, by several programs, and writes 16 or 32 bytes a tile.

It weighs every tile above each of four pivots; where k counts, it counts the logits from there upwards, too. A pass
that collects writes the ids of the logits in the bracket instead: see :mod:`.collect_pass`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.collect_pass import collect_part, load_group
from tokendraw_triton_gumbel.kernels.large_set.pivots import load_pivots
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    CAREFUL,
    COLLECT,
    COLUMNS,
    COUNT_COLUMN,
    FIND_KTH,
    FIND_LARGER,
    GOAL,
    KTH_THEN_NUCLEUS,
    SCALE,
    SLOT,
    TOP,
)
from tokendraw_triton_gumbel.kernels.shared.tile_layout import lane_sums
from tokendraw_triton_gumbel.kernels.shared.weights import exp2, times


@triton.jit
def counts_logits(goal):
    """Return whether the passes of a goal count logits beside weighing them."""
    return (goal == FIND_KTH) | (goal == FIND_LARGER) | (goal == KTH_THEN_NUCLEUS)


@triton.jit
def pass_over_part(row, group, last, tiles, reals, ints, results, part, parts, config: tl.constexpr):
    """Weigh groups of ``WARPS`` tiles above each pivot, or collect, from ``group`` to before ``last``.

    The next group is on its way while one is weighed.

    :param reals: the state of the row, like ``ints``; ``results`` its :class:`~.argument_groups.PassResults`, of
        which the columns are numbered over all rows.
    :param part: the number of the part, of ``parts``.
    """
    SPAN: tl.constexpr = config.WARPS
    IS_NVIDIA: tl.constexpr = config.IS_NVIDIA
    goal = tl.load(ints + GOAL)
    weights = results.columns + tl.load(ints + SLOT).to(tl.int64) * tiles * COLUMNS
    counts = counts_logits(goal)
    if goal == COLLECT:
        collect_part(row, group, last, reals, ints, results.collected, part, parts, SPAN, config.VECTOR)
    elif (counts == 0) & (tl.load(ints + CAREFUL) == 0):
        pivots = load_pivots(reals)
        top = tl.load(reals + TOP)
        scale = tl.load(reals + SCALE)
        offset = -(top * scale)
        correction = exp2(-tl.fma(top, scale, offset), IS_NVIDIA)
        following = load_group(row, group, SPAN, config.VECTOR)
        while group < last:
            x = following.to(tl.float32)
            if group + 1 < last:
                following = load_group(row, group + 1, SPAN, config.VECTOR)
            weight = exp2(tl.fma(x, scale, offset), IS_NVIDIA)
            _store_weights(weights, group, tiles, x, weight, pivots, correction, SPAN, IS_NVIDIA)
            group += 1
    else:
        _weigh_carefully(row, group, last, tiles, reals, weights, counts, SPAN, config.VECTOR, IS_NVIDIA)


@triton.jit(noinline=True)
def _weigh_carefully(
    row,
    group,
    last,
    tiles,
    reals,
    weights,
    counts,
    SPAN: tl.constexpr,
    VECTOR: tl.constexpr,
    IS_NVIDIA: tl.constexpr,
):
    """Weigh whatever the row holds, and count logits where that is wanted."""
    pivots = load_pivots(reals)
    top = tl.load(reals + TOP)
    scale = tl.load(reals + SCALE)
    following = load_group(row, group, SPAN, VECTOR)
    while group < last:
        x = following.to(tl.float32)
        if group + 1 < last:
            following = load_group(row, group + 1, SPAN, VECTOR)
        weight = tl.where(x > float("-inf"), exp2(times(x - top, scale), IS_NVIDIA), 0.0)  # 0 of NaN, too
        _store_weights(weights, group, tiles, x, weight, pivots, 1.0, SPAN, IS_NVIDIA)
        if counts:
            _store_counts(weights + COUNT_COLUMN, group, tiles, x, pivots, SPAN)
        group += 1


@triton.jit
def _reaches(x, pivot, IS_NVIDIA: tl.constexpr):
    """Return 1.0 where x is at least ``pivot``, else 0.0: a factor, so that a sum costs two instructions a logit."""
    if IS_NVIDIA:
        return tl.inline_asm_elementwise(
            "set.ge.f32.f32 $0, $1, $2;", "=f,f,f", [x, pivot], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return (x >= pivot).to(tl.float32)


@triton.jit
def _store_weights(out, group, tiles, x, weight, pivots, factor, SPAN: tl.constexpr, IS_NVIDIA: tl.constexpr):
    """Write the weight from each pivot upwards, of [LANES, SPAN, chunks, VECTOR]."""
    _store_lanes(
        out,
        group,
        tiles,
        lane_sums(weight * _reaches(x, pivots.p0, IS_NVIDIA)),
        lane_sums(weight * _reaches(x, pivots.p1, IS_NVIDIA)),
        lane_sums(weight * _reaches(x, pivots.p2, IS_NVIDIA)),
        lane_sums(weight * _reaches(x, pivots.p3, IS_NVIDIA)),
        factor,
        SPAN,
    )


@triton.jit
def _store_counts(out, group, tiles, x, pivots, SPAN: tl.constexpr):
    """Write how many logits there are from each pivot upwards."""
    _store_lanes(
        out,
        group,
        tiles,
        lane_sums((x >= pivots.p0).to(tl.int32)),
        lane_sums((x >= pivots.p1).to(tl.int32)),
        lane_sums((x >= pivots.p2).to(tl.int32)),
        lane_sums((x >= pivots.p3).to(tl.int32)),
        1.0,
        SPAN,
    )


@triton.jit
def _store_lanes(out, group, tiles, l0, l1, l2, l3, factor, SPAN: tl.constexpr):
    """Write four sums over lanes [LANES, SPAN], in one exchange."""
    tile = group * SPAN + tl.arange(0, SPAN)
    four = tl.sum(tl.join(tl.join(l0, l2), tl.join(l1, l3)), 0) * factor  # [SPAN, 2, 2]: 0 1, 2 3
    at = tile[:, None, None] * COLUMNS + tl.arange(0, 2)[None, :, None] * 2 + tl.arange(0, 2)[None, None, :]
    tl.store(out + at, four, mask=(tile < tiles)[:, None, None])
