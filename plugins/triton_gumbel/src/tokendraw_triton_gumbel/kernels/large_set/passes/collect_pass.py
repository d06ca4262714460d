"""A pass that collects the logits in a bracket, and the threshold that is found among them."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.columns import column_sum
from tokendraw_triton_gumbel.kernels.large_set.passes.group_load import as_logits, load_group
from tokendraw_triton_gumbel.kernels.large_set.passes.hits import hits_in, next_hit
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    COLLECTED,
    HIGH,
    LOW,
    MASS,
    MOST_COLLECTED,
    SCALE,
    TOP,
)
from tokendraw_triton_gumbel.kernels.shared.float_keys import key_of, value_of
from tokendraw_triton_gumbel.kernels.shared.tile_layout import TILE_SIZE
from tokendraw_triton_gumbel.kernels.shared.weights import weigh


@triton.jit(noinline=True)
def collect_part(row, group, last, reals, ints, collected, part, parts, config: tl.constexpr):
    """Write the ids of the bracket's logits into the segment of the part, as far as there is room, and their number."""
    SPAN: tl.constexpr = config.WARPS
    VECTOR: tl.constexpr = config.VECTOR
    low = tl.load(reals + LOW)
    high = tl.load(reals + HIGH)
    room = MOST_COLLECTED // parts
    collected += part * room
    found = 0
    following = load_group(row, group, config)
    while group < last:
        x = as_logits(following, config)
        if group + 1 < last:
            following = load_group(row, group + 1, config)
        mask, number, place, most, total = hits_in(x, low, high, found, SPAN, VECTOR)
        first = (group * SPAN + tl.arange(0, SPAN))[None, :] * TILE_SIZE
        i = 0
        while i < most:
            own, mask = next_hit(mask, VECTOR)
            tl.store(collected + place + i, first + own, mask=(number > i) & (place + i < room))
            i += 1
        found += total
        group += 1
    tl.store(ints + COLLECTED + part, found)


@triton.jit(noinline=True)
def keep_collected(
    base,
    results,
    reals,
    ints,
    tiles,
    parts,
    low,
    high,
    high_column,
    target,
    floor_out,
    log_kept,
    TILES: tl.constexpr,
    ULP_STEP: tl.constexpr,
):
    """Find the threshold among what was collected of the bracket; return whether there was room for all of it.

    :param results: :class:`~.argument_groups.PassResults`, of which ``collected`` is that of the row.
    :param target: the mass that the nucleus has to reach.
    """
    i = tl.arange(0, MOST_COLLECTED)
    room = MOST_COLLECTED // parts
    count = tl.load(ints + COLLECTED + i // room, mask=i // room < parts, other=0)
    fits = (tl.max(count, 0) <= room).to(tl.int32)
    if fits > 0:
        top = tl.load(reals + TOP)
        token = tl.load(results.collected + i, mask=i % room < count, other=0)
        x = tl.load(base + token, mask=i % room < count, other=float("-inf")).to(tl.float32)
        weight = weigh(x, top, tl.load(reals + SCALE))
        above = column_sum(results.columns, high_column, 0, tl.where(high_column >= 0, tiles, 0), TILES)
        first = key_of(low).to(tl.int64)
        last = key_of(tl.minimum(high, tl.maximum(tl.max(x, 0), low))).to(tl.int64) + ULP_STEP
        while last - first > ULP_STEP:
            middle = first + tl.maximum((last - first) // (2 * ULP_STEP), 1) * ULP_STEP
            reach = above + tl.sum(tl.where(x >= value_of(middle.to(tl.int32)), weight, 0.0), 0)
            first = tl.where(reach >= target, middle, first)
            last = tl.where(reach >= target, last, middle)
        floor = value_of(first.to(tl.int32))
        least = tl.min(tl.where(x >= floor, x, float("inf")), 0)
        floor = tl.where(least < float("inf"), least, floor)
        kept = above + tl.sum(tl.where(x >= floor, weight, 0.0), 0)
        tl.store(floor_out, floor)
        tl.store(log_kept, tl.log(tl.minimum(kept / tl.load(reals + MASS), 1.0)))
    return fits
