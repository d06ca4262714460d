"""How the draw of a wide row begins: what is known of the row is written down, with the pivots of its first pass.

Reads 2048 logits a row, writes 192 bytes. The programs of the launch for wide rows find everything there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.guess import guess_pivots, sample_of
from tokendraw_triton_gumbel.order import LEAST
from tokendraw_triton_gumbel.passes import (
    AT_LEAST,
    AT_MOST,
    BY_COUNT,
    BY_MASS,
    CAREFUL,
    COUNT_FIRST,
    COUNT_INSIDE,
    EITHER,
    FLOOR,
    FLOOR_FIRST,
    HIGH,
    HIGH_COLUMN,
    INVERSE,
    KIND,
    KNOWN,
    LOW,
    LOW_COLUMN,
    MASS,
    NOTES,
    PLAN,
    POSITION,
    ROUND,
    SCALE,
    SEED,
    SHARE,
    SHARE_REST,
    SLOT,
    SLOTS,
    SPARE,
    TOP,
    K,
    write_pivots,
)

_COARSEST = tl.constexpr(16777216.0)
"""Where floats are 2 apart: beyond it, no rounded offset stands in for the largest logit."""
_FINEST = tl.constexpr(1e-30)


@triton.jit(noinline=True)
def write_guess(base, vocab_size, top, scale, low, target, by_mass, pivots, BY: tl.constexpr):
    """Write four pivots to ``pivots``: [4] float32. The others as :func:`~.guess.guess_pivots` takes them."""
    x = sample_of(base, vocab_size)
    p0, p1, p2, p3 = guess_pivots(x, vocab_size, top, scale, low, target, by_mass, BY)
    write_pivots(pivots, p0, p1, p2, p3, low, top, BY)


@triton.jit(noinline=True)
def begin(
    base,
    vocab_size,
    row,
    bound,
    top,
    scale,
    inverse,
    mass,
    k,
    p,
    least,
    joint,
    has_nan,
    seed,
    position,
    queue,
    ready,
    arrivals,
    plans,
    notes,
    BY: tl.constexpr,
):
    """Announce the first pass of a row. The arguments as :func:`~.few.draw_few` takes them.

    :param bound: proven; where it is the largest logit, it is the threshold.
    """
    plan = plans + row.to(tl.int64) * PLAN
    note = notes + row.to(tl.int64) * NOTES
    low = tl.maximum(least, LEAST)
    kind = tl.full((), KNOWN, tl.int32)
    if bound >= top:
        low = top
    elif p < 1:
        if k > 0:
            kind = tl.where(joint, EITHER, COUNT_FIRST)
        else:
            kind = tl.where((least > float("-inf")) & (joint == 0), FLOOR_FIRST, BY_MASS)
    elif k > 0:
        kind = tl.full((), BY_COUNT, tl.int32)
    below = ((1.0 - p) * mass.to(tl.float64)).to(tl.float32)
    if (kind == KNOWN) | (kind == FLOOR_FIRST):
        write_pivots(plan, low, low, low, low, low, top, BY)
    else:
        aim = tl.where(kind == BY_MASS, below, k.to(tl.float32))
        write_guess(base, vocab_size, top, scale, low, aim, kind == BY_MASS, plan, BY)
        if kind == EITHER:
            other = plan + SPARE
            write_guess(base, vocab_size, top, scale, low, below, kind == EITHER, other, BY)
            tl.debug_barrier()
            p0, p1, p2, p3 = tl.load(other), tl.load(other + 1), tl.load(other + 2), tl.load(other + 3)
            if p1 > tl.load(plan + 1):
                tl.debug_barrier()
                write_pivots(plan, p0, p1, p2, p3, low, top, BY)
    target = (p * mass.to(tl.float64)).to(tl.float32)
    share = p.to(tl.float32)
    tl.store(plan + LOW, low)
    tl.store(plan + HIGH, float("inf"))
    tl.store(plan + TOP, top)
    tl.store(plan + SCALE, scale)
    tl.store(plan + INVERSE, inverse)
    tl.store(plan + MASS, mass)
    tl.store(plan + AT_LEAST, target)
    tl.store(plan + AT_MOST, target)
    tl.store(plan + SHARE, share)
    tl.store(plan + SHARE_REST, (p - share.to(tl.float64)).to(tl.float32))
    tl.store(plan + FLOOR, least)
    large = (tl.abs(top * scale) < _COARSEST).to(tl.int32) * (scale > _FINEST).to(tl.int32) == 0
    tl.store(note + KIND, kind)
    tl.store(note + ROUND, 0)
    tl.store(note + LOW_COLUMN, -1)
    tl.store(note + HIGH_COLUMN, -1)
    tl.store(note + SLOT, row * SLOTS)
    tl.store(note + K, k.to(tl.int32))
    tl.store((note + SEED).to(tl.pointer_type(tl.int64)), seed)
    tl.store((note + POSITION).to(tl.pointer_type(tl.int64)), position)
    tl.store(note + COUNT_INSIDE, -1)
    tl.store(note + CAREFUL, has_nan.to(tl.int32) + large.to(tl.int32))
    tl.store(arrivals + row, 0)
    tl.store(ready + tl.atomic_add(queue, 1), row + 1)
