"""Collects the logits of a bracket in one pass, and finds the threshold among them."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.columns import column_sum
from tokendraw_triton_gumbel.kernels.large_set.passes.group_load import as_logits, load_group
from tokendraw_triton_gumbel.kernels.large_set.passes.hits import find_hits, next_hit
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    COLLECTED,
    HIGH,
    LOW,
    MASS,
    MAX_COLLECTED,
    MAX_LOGIT,
    SCALE,
)
from tokendraw_triton_gumbel.kernels.shared.float_keys import key_of, value_of
from tokendraw_triton_gumbel.kernels.shared.tile_layout import TILE_SIZE
from tokendraw_triton_gumbel.kernels.shared.weights import weigh


@triton.jit(noinline=True)
def collect_part(row, group, end_group, reals, ints, collected, part, parts, config: tl.constexpr):
    """Write the ids of the bracket's logits into the segment of a part, up to its room, and their number."""
    SPAN: tl.constexpr = config.WARPS
    VECTOR: tl.constexpr = config.VECTOR
    low = tl.load(reals + LOW)
    high = tl.load(reals + HIGH)
    room = MAX_COLLECTED // parts
    collected += part * room
    num_collected = 0
    next_group = load_group(row, group, config)
    while group < end_group:
        x = as_logits(next_group, row, config)
        if group + 1 < end_group:
            next_group = load_group(row, group + 1, config)
        mask, count, offset, max_count, total = find_hits(x, low, high, num_collected, SPAN, VECTOR)
        first_id = (group * SPAN + tl.arange(0, SPAN))[None, :] * TILE_SIZE
        i = 0
        while i < max_count:
            id_in_tile, mask = next_hit(mask, VECTOR)
            tl.store(collected + offset + i, first_id + id_in_tile, mask=(count > i) & (offset + i < room))
            i += 1
        num_collected += total
        group += 1
    tl.store(ints + COLLECTED + part, num_collected)


@triton.jit(noinline=True)
def find_collected_threshold(
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
    threshold_out,
    log_kept,
    TILES: tl.constexpr,
    ULP_STEP: tl.constexpr,
):
    """Find the threshold among the collected logits of the bracket; return whether all of them fitted the buffer.

    :param results: :class:`~.argument_groups.PassResults`, with ``collected`` of this row.
    :param target: the mass of the nucleus.
    """
    i = tl.arange(0, MAX_COLLECTED)
    room = MAX_COLLECTED // parts
    count = tl.load(ints + COLLECTED + i // room, mask=i // room < parts, other=0)
    fits = (tl.max(count, 0) <= room).to(tl.int32)
    if fits > 0:
        max_logit = tl.load(reals + MAX_LOGIT)
        token = tl.load(results.collected + i, mask=i % room < count, other=0)
        x = tl.load(base + token, mask=i % room < count, other=float("-inf")).to(tl.float32)
        weight = weigh(x, max_logit, tl.load(reals + SCALE))
        above = column_sum(results.columns, high_column, 0, tl.where(high_column >= 0, tiles, 0), TILES)
        low_key = key_of(low).to(tl.int64)
        high_key = key_of(tl.minimum(high, tl.maximum(tl.max(x, 0), low))).to(tl.int64) + ULP_STEP
        while high_key - low_key > ULP_STEP:
            middle = low_key + tl.maximum((high_key - low_key) // (2 * ULP_STEP), 1) * ULP_STEP
            reach = above + tl.sum(tl.where(x >= value_of(middle.to(tl.int32)), weight, 0.0), 0)
            low_key = tl.where(reach >= target, middle, low_key)
            high_key = tl.where(reach >= target, high_key, middle)
        threshold = value_of(low_key.to(tl.int32))
        lowest = tl.min(tl.where(x >= threshold, x, float("inf")), 0)
        threshold = tl.where(lowest < float("inf"), lowest, threshold)
        kept_mass = above + tl.sum(tl.where(x >= threshold, weight, 0.0), 0)
        tl.store(threshold_out, threshold)
        tl.store(log_kept, tl.log(tl.minimum(kept_mass / tl.load(reals + MASS), 1.0)))
    return fits
