"""Costs of DRY for the ids of a row."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logits_processing.edited_row import DRY
from tokendraw_triton_gumbel.kernels.logits_processing.id_table import longest_matches


@triton.jit
def load_multiplier(row, dry, flags, config):
    """Load the multiplier of DRY of a row's request; 0 where it is off."""
    multiplier = 0.0
    if config.HAS_LISTS:
        multiplier = tl.load(dry.multiplier + row.slot, mask=(flags & DRY) != 0, other=0.0)
    return multiplier


@triton.jit
def dry_costs(entry, mask, row, multiplier, dry, table):
    """Return the cost [n] of DRY of the ids in entries of a row's table, 0 where there is none.

    The power is computed in float64 by squaring.
    """
    longest = longest_matches(table, entry, mask & (entry >= 0))
    has_cost = longest >= 0
    rest = tl.where(has_cost, longest - tl.load(dry.allowed_length + row.slot), 0)
    factor = tl.load(dry.base + row.slot).to(tl.float64)
    cost = tl.zeros_like(entry).to(tl.float64) + 1.0
    while tl.max(rest, 0) > 0:
        cost *= tl.where((rest & 1) != 0, factor, 1.0)
        factor *= factor
        rest >>= 1
    return tl.where(has_cost, (cost * multiplier.to(tl.float64)).to(tl.float32), 0.0)
