"""A pass that collects the logits in a bracket, and the threshold that is found among them."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.columns import column_sum
from tokendraw_triton_gumbel.kernels.large_set.group_load import as_logits, load_group
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    COLLECTED,
    HIGH,
    LOW,
    MASS,
    MOST_COLLECTED,
    SCALE,
    TOP,
)
from tokendraw_triton_gumbel.kernels.shared.bits import count_bits, lowest_bit
from tokendraw_triton_gumbel.kernels.shared.float_keys import key_of, value_of
from tokendraw_triton_gumbel.kernels.shared.tile_layout import LANES, TILE_SIZE
from tokendraw_triton_gumbel.kernels.shared.weights import weigh


@triton.jit(noinline=True)
def collect_part(row, group, last, reals, ints, collected, part, parts, config: tl.constexpr):
    """Write the ids of the bracket's logits into the segment of the part, as far as there is room, and their number.

    A thread marks by bits which of its 32 logits are among them.
    """
    SPAN: tl.constexpr = config.WARPS
    VECTOR: tl.constexpr = config.VECTOR
    low = tl.load(reals + LOW)
    high = tl.load(reals + HIGH)
    room = MOST_COLLECTED // parts
    collected += part * room
    found = 0
    bit = tl.arange(0, LANES // VECTOR)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    lane = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, SPAN)[None, :] * TILE_SIZE
    following = load_group(row, group, config)
    while group < last:
        x = as_logits(following, config)
        if group + 1 < last:
            following = load_group(row, group + 1, config)
        hit = tl.where((x >= low) & (x < high), ((bit * 0 + 1) << bit)[None, None, :, :], 0)
        mask = tl.sum(tl.sum(hit, 3), 2)
        number = count_bits(mask)
        flat = tl.reshape(number, (LANES * SPAN,))
        before = tl.reshape(found + tl.cumsum(flat, 0) - flat, (LANES, SPAN))
        most = tl.max(flat, 0)
        found += tl.sum(flat, 0)
        i = 0
        while i < most:
            at = lowest_bit(mask)
            token = group * (SPAN * TILE_SIZE) + lane + at // VECTOR * (LANES * VECTOR) + at % VECTOR
            tl.store(collected + before + i, token, mask=(number > i) & (before + i < room))
            mask &= mask - 1
            i += 1
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
        tl.store(log_kept, tl.log(kept / tl.load(reals + MASS)))
    return fits
