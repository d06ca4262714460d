"""The passes of the launch for wide rows: what a row is waiting for, how passes are handed out, and what they weigh.

A pass reads every logit of one row once, by several programs, and writes 16 or 32 bytes a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.order import LARGEST, LEAST, times
from tokendraw_triton_gumbel.tiles import element_ids, exp2

SLOTS = tl.constexpr(3)
"""Of weights a row: those of the bracket's two ends, and those of the pass that goes on."""
COLUMNS = tl.constexpr(8)
"""Floats a tile and slot: the weight and the number of logits from each of four pivots upwards."""

BY_MASS = tl.constexpr(0)
BY_COUNT = tl.constexpr(1)
EITHER = tl.constexpr(2)
KNOWN = tl.constexpr(3)
COUNT_FIRST = tl.constexpr(4)
FLOOR_FIRST = tl.constexpr(5)
COLLECT = tl.constexpr(6)
"""What is looked for: the edge of a nucleus, a k-th value, the larger of both, nothing (the threshold is known), or a
k-th value or a floor whose mass the nucleus is then measured by. Or what lies in the bracket is collected."""

PLAN = tl.constexpr(32)
"""Floats a row. The first four are the pivots of the pass that goes on, descending."""
LOW = tl.constexpr(4)
HIGH = tl.constexpr(5)
"""The threshold is at least the one and below the other."""
TOP = tl.constexpr(6)
SCALE = tl.constexpr(7)
INVERSE = tl.constexpr(8)
MASS = tl.constexpr(9)
"""The largest logit, log2(e) / T, 1 / T, the sum of ``exp(y)``."""
AT_LEAST = tl.constexpr(10)
AT_MOST = tl.constexpr(11)
"""The mass that a nucleus has to reach: known to lie between the two."""
SHARE = tl.constexpr(12)
SHARE_REST = tl.constexpr(13)
"""p, as a sum of two."""
FLOOR = tl.constexpr(14)
"""Of min-p; the lowest finite value if it is off."""
COUNT_LOW = tl.constexpr(15)
COUNT_HIGH = tl.constexpr(16)
"""Where the k-th value was known to lie when the search for the nucleus began."""

SPARE = tl.constexpr(24)
"""Room for four more pivots."""

NOTES = tl.constexpr(32)
"""Integers a row."""
KIND = tl.constexpr(0)
ROUND = tl.constexpr(1)
LOW_COLUMN = tl.constexpr(2)
HIGH_COLUMN = tl.constexpr(3)
"""Where the weights from LOW and from HIGH upwards are, -1 for nowhere."""
SLOT = tl.constexpr(4)
K = tl.constexpr(5)
SEED = tl.constexpr(6)
POSITION = tl.constexpr(8)
"""Of two integers each."""
COUNT_OVER = tl.constexpr(10)
COUNT_INSIDE = tl.constexpr(11)
"""How many logits reach COUNT_HIGH, and how many more COUNT_LOW; -1 where no k-th value came before."""
CAREFUL = tl.constexpr(12)
"""Whether the row holds NaN, or logits too large for a weight to cost one multiplication."""
KIND_BEFORE = tl.constexpr(13)
"""What is looked for by the passes around one that collects."""
COLLECTED = tl.constexpr(16)
"""Where it says of every part of such a pass how many logits it has found."""

LATER_PARTS = tl.constexpr(16)
"""Of a row in its later passes: few rows take them, and everybody waits."""
SEGMENT = tl.constexpr(256)
"""Logits that there is room for, of each part of a pass that collects."""

TICKETS = tl.constexpr(32)
DONE = tl.constexpr(64)
LATER = tl.constexpr(96)
"""Places in the queue, behind the number of rows: tickets drawn, rows drawn, passes announced after the first of each
row. Each on a cache line of its own, since some programs wait for one of them while others count another."""


@triton.jit
def column_of(weights, column, tile, tiles):
    """A column of the weights of tiles, [TILES]; ``column`` counts over all slots of the launch. Zeros if it is -1."""
    at = weights + (column // COLUMNS).to(tl.int64) * tiles * COLUMNS + tile * COLUMNS + column % COLUMNS
    return tl.load(at, mask=(tile < tiles) & (column >= 0), other=0.0)


@triton.jit
def await_pass(queue, ready, index, rows, most, PTX: tl.constexpr):
    """Wait until a pass is announced: 1 more than its row, or 0 if none will be.

    A row is not done before all parts of its passes are, so that every thread comes to the same answer.
    """
    found = tl.where(index < most, -1, 0)
    while found < 0:
        row = tl.load(ready + index, volatile=True)
        if row > 0:
            found = row
        elif tl.load(queue + DONE, volatile=True) >= rows:
            found = tl.full((), 0, tl.int32)
        elif PTX:
            _pause()
    if found > 0:
        # And with it all that was written before. Its result is used, or the compiler would drop it.
        found = tl.atomic_add(ready + index, 0, sem="acquire")
    return found


@triton.jit
def _pause():
    tl.inline_asm_elementwise(
        "nanosleep.u32 200; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _as_pivot(pivot, low, top, BY: tl.constexpr):
    pivot = tl.minimum(tl.maximum(pivot, LEAST), LARGEST)
    if BY > 1:
        pivot = pivot.to(tl.bfloat16).to(tl.float32)  # and perhaps out of the bracket
    return tl.minimum(tl.maximum(pivot, low), tl.maximum(top, low))


@triton.jit
def write_pivots(plan, p0, p1, p2, p3, low, top, BY: tl.constexpr):
    """Four pivots, descending, as a pass takes them: in [low, top]; of bfloat16 logits (``BY`` 65536) such values."""
    tl.store(plan, _as_pivot(p0, low, top, BY))
    tl.store(plan + 1, _as_pivot(p1, low, top, BY))
    tl.store(plan + 2, _as_pivot(p2, low, top, BY))
    tl.store(plan + 3, _as_pivot(p3, low, top, BY))


@triton.jit
def weigh_part(
    base,
    vocab_size,
    group,
    last,
    tiles,
    plan,
    note,
    partials,
    near,
    part,
    arrivals,
    parts,
    SPAN: tl.constexpr,
    VECTOR: tl.constexpr,
    PTX: tl.constexpr,
):
    """Weigh groups of ``SPAN`` tiles above each pivot, or collect; returns 1 to the program that comes last.

    The next group is on its way while one is weighed.
    """
    kind = tl.load(note + KIND)
    weights = partials + tl.load(note + SLOT).to(tl.int64) * tiles * COLUMNS
    counts = (kind == BY_COUNT) | (kind == EITHER) | (kind == COUNT_FIRST)
    if kind == COLLECT:
        _collect_part(base, vocab_size, group, last, plan, note, near, part, SPAN, VECTOR)
    elif (counts == 0) & (tl.load(note + CAREFUL) == 0):
        p0 = tl.load(plan)
        p1 = tl.load(plan + 1)
        p2 = tl.load(plan + 2)
        p3 = tl.load(plan + 3)
        top = tl.load(plan + TOP)
        scale = tl.load(plan + SCALE)
        offset = -(top * scale)
        correction = exp2(-tl.fma(top, scale, offset), PTX)
        following = _load_group(base, vocab_size, group, SPAN, VECTOR)
        while group < last:
            x = following.to(tl.float32)
            if group + 1 < last:
                following = _load_group(base, vocab_size, group + 1, SPAN, VECTOR)
            weight = exp2(tl.fma(x, scale, offset), PTX)
            _store_four(weights, group, tiles, x, weight, p0, p1, p2, p3, correction, SPAN, PTX)
            group += 1
    else:
        _weigh_carefully(base, vocab_size, group, last, tiles, plan, weights, counts, SPAN, VECTOR, PTX)
    tl.debug_barrier()
    return (tl.atomic_add(arrivals, 1, sem="acq_rel") == parts - 1).to(tl.int32)


@triton.jit(noinline=True)
def _collect_part(
    base, vocab_size, group, last, plan, note, near, part, SPAN: tl.constexpr, VECTOR: tl.constexpr
):
    """Write the ids of the bracket's logits into the segment of the part, as far as there is room; and how many there are.

    A thread marks by bits which of its 32 logits are among them.
    """
    low = tl.load(plan + LOW)
    high = tl.load(plan + HIGH)
    near += part * SEGMENT
    found = 0
    bit = tl.arange(0, 32 // VECTOR)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    lane = tl.arange(0, 32)[:, None] * VECTOR + tl.arange(0, SPAN)[None, :] * 1024
    following = _load_group(base, vocab_size, group, SPAN, VECTOR)
    while group < last:
        x = following.to(tl.float32)
        if group + 1 < last:
            following = _load_group(base, vocab_size, group + 1, SPAN, VECTOR)
        hit = tl.where((x >= low) & (x < high), ((bit * 0 + 1) << bit)[None, None, :, :], 0)
        which = tl.sum(tl.sum(hit, 3), 2)
        number = _number_of_bits(which)
        flat = tl.reshape(number, (32 * SPAN,))
        before = tl.reshape(found + tl.cumsum(flat, 0) - flat, (32, SPAN))
        most = tl.max(flat, 0)
        found += tl.sum(flat, 0)
        i = 0
        while i < most:
            at = _lowest_bit(which)
            token = group * (SPAN * 1024) + lane + at // VECTOR * (32 * VECTOR) + at % VECTOR
            tl.store(near + before + i, token, mask=(number > i) & (before + i < SEGMENT))
            which &= which - 1
            i += 1
        group += 1
    tl.store(note + COLLECTED + part, found)


@triton.jit
def _number_of_bits(which):
    which -= (which >> 1) & 0x55555555
    which = (which & 0x33333333) + ((which >> 2) & 0x33333333)
    which = (which + (which >> 4)) & 0x0F0F0F0F
    which += which >> 8
    return (which + (which >> 16)) & 63


@triton.jit
def _lowest_bit(which):
    """The place of the lowest bit that is set: the exponent of a power of two."""
    return (((which & -which).to(tl.float32).to(tl.int32, bitcast=True) >> 23) & 255) - 127


@triton.jit(noinline=True)
def _weigh_carefully(
    base,
    vocab_size,
    group,
    last,
    tiles,
    plan,
    weights,
    counts,
    SPAN: tl.constexpr,
    VECTOR: tl.constexpr,
    PTX: tl.constexpr,
):
    """The same whatever the row holds, and the numbers of logits where they are wanted."""
    p0 = tl.load(plan)
    p1 = tl.load(plan + 1)
    p2 = tl.load(plan + 2)
    p3 = tl.load(plan + 3)
    top = tl.load(plan + TOP)
    scale = tl.load(plan + SCALE)
    following = _load_group(base, vocab_size, group, SPAN, VECTOR)
    while group < last:
        x = following.to(tl.float32)
        if group + 1 < last:
            following = _load_group(base, vocab_size, group + 1, SPAN, VECTOR)
        weight = tl.where(x > float("-inf"), exp2(times(x - top, scale), PTX), 0.0)  # 0 of NaN, too
        _store_four(weights, group, tiles, x, weight, p0, p1, p2, p3, 1.0, SPAN, PTX)
        if counts:
            _store_numbers(weights + 4, group, tiles, x, p0, p1, p2, p3, SPAN)
        group += 1


@triton.jit
def _load_group(base, vocab_size, group, SPAN: tl.constexpr, VECTOR: tl.constexpr):
    ids = group * (SPAN * 1024) + element_ids(SPAN, VECTOR)
    if (group + 1) * (SPAN * 1024) <= vocab_size:
        x = tl.load(base + ids)
    else:
        x = tl.load(base + ids, mask=ids < vocab_size, other=float("-inf"))
    return x


@triton.jit
def _reaches(x, pivot, PTX: tl.constexpr):
    """1.0 where x is at least ``pivot``, 0.0 elsewhere: a factor, so that a sum costs two instructions a logit."""
    if PTX:
        return tl.inline_asm_elementwise(
            "set.ge.f32.f32 $0, $1, $2;", "=f,f,f", [x, pivot], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return (x >= pivot).to(tl.float32)


@triton.jit
def _lane_sums(block):
    return tl.sum(tl.sum(block, 3), 2)


@triton.jit
def _store_four(out, group, tiles, x, weight, p0, p1, p2, p3, factor, SPAN: tl.constexpr, PTX: tl.constexpr):
    """The weight from each pivot upwards, of [32, SPAN, chunks, VECTOR]."""
    _store_lanes(
        out,
        group,
        tiles,
        _lane_sums(weight * _reaches(x, p0, PTX)),
        _lane_sums(weight * _reaches(x, p1, PTX)),
        _lane_sums(weight * _reaches(x, p2, PTX)),
        _lane_sums(weight * _reaches(x, p3, PTX)),
        factor,
        SPAN,
    )


@triton.jit
def _store_lanes(out, group, tiles, l0, l1, l2, l3, factor, SPAN: tl.constexpr):
    """Four sums over lanes [32, SPAN], in one exchange."""
    tile = group * SPAN + tl.arange(0, SPAN)
    four = tl.sum(tl.join(tl.join(l0, l2), tl.join(l1, l3)), 0) * factor  # [SPAN, 2, 2]: 0 1, 2 3
    at = tile[:, None, None] * COLUMNS + tl.arange(0, 2)[None, :, None] * 2 + tl.arange(0, 2)[None, None, :]
    tl.store(out + at, four, mask=(tile < tiles)[:, None, None])


@triton.jit
def _store_numbers(out, group, tiles, x, p0, p1, p2, p3, SPAN: tl.constexpr):
    """How many logits there are from each pivot upwards."""
    _store_lanes(
        out,
        group,
        tiles,
        _lane_sums((x >= p0).to(tl.int32)),
        _lane_sums((x >= p1).to(tl.int32)),
        _lane_sums((x >= p2).to(tl.int32)),
        _lane_sums((x >= p3).to(tl.int32)),
        1.0,
        SPAN,
    )


@triton.jit
def _add_four(a0, a1, a2, a3, b0, b1, b2, b3):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def four_sums(weights, slot, offset, tiles, TILES: tl.constexpr):
    """What the row weighs from each pivot of a slot upwards; with ``offset`` 4, how many logits it has there."""
    tile = tl.arange(0, TILES)
    at = weights + slot.to(tl.int64) * tiles * COLUMNS + tile * COLUMNS + offset
    inside = tile < tiles
    return tl.reduce(
        (
            tl.load(at, mask=inside, other=0.0),
            tl.load(at + 1, mask=inside, other=0.0),
            tl.load(at + 2, mask=inside, other=0.0),
            tl.load(at + 3, mask=inside, other=0.0),
        ),
        0,
        _add_four,
    )
