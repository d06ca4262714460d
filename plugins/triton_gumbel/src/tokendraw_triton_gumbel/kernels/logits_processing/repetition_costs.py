"""Costs of DRY for the ids of a row."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logits_processing.edited_row import DRY

_REPETITIONS = tl.constexpr(8)
"""Matches of DRY that are compared together with a block of ids."""


@triton.jit
def load_multiplier(row, dry, flags, config):
    """Load the multiplier of DRY of a row's request; 0 where it is off."""
    multiplier = 0.0
    if config.HAS_LISTS:
        multiplier = tl.load(dry.multiplier + row.slot, mask=(flags & DRY) != 0, other=0.0)
    return multiplier


@triton.jit
def dry_costs(ids, row, multiplier, dry, repetitions):
    """Return the cost [n] of DRY of each id of a block, 0 where there is none.

    The power is computed in float64 by squaring.
    """
    longest = tl.zeros_like(ids) - 1
    offset = row.row * repetitions.room
    count = tl.load(repetitions.count + row.row)
    for start in range(0, count, _REPETITIONS):
        index = start + tl.arange(0, _REPETITIONS)
        repeated = tl.load(repetitions.ids + offset + index, mask=index < count, other=-1)
        length = tl.load(repetitions.lengths + offset + index, mask=index < count, other=-1)
        lengths = tl.where(ids[:, None] == repeated[None, :], length[None, :], -1)
        longest = tl.maximum(longest, tl.max(lengths, 1))
    has_cost = longest >= 0
    rest = tl.where(has_cost, longest - tl.load(dry.allowed_length + row.slot), 0)
    factor = tl.load(dry.base + row.slot).to(tl.float64)
    cost = tl.zeros_like(ids).to(tl.float64) + 1.0
    while tl.max(rest, 0) > 0:
        cost *= tl.where((rest & 1) != 0, factor, 1.0)
        factor *= factor
        rest >>= 1
    return tl.where(has_cost, (cost * multiplier.to(tl.float64)).to(tl.float32), 0.0)
