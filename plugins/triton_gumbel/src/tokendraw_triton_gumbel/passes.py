"""The passes of the launch for wide rows: how they are announced and awaited, and what they weigh.

A pass reads every logit of one row once, by many programs, and writes 32 bytes a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.order import LARGEST, LEAST
from tokendraw_triton_gumbel.tiles import element_ids, exp2, sum_tiles

COLUMNS = tl.constexpr(8)
"""Floats a tile: the weight and the number of logits from each pivot upwards."""
PLAN = tl.constexpr(8)
"""Floats a pass: four pivots, descending, the bracket that is known, [low, high), the largest logit, log2(e) / T."""
NOTES = tl.constexpr(8)
"""Integers a pass: its row, its kind, which pass of the row it is, and the columns of low and high, -1 for none."""
BY_MASS = tl.constexpr(0)
BY_COUNT = tl.constexpr(1)
KNOWN = tl.constexpr(2)
SEVERAL = tl.constexpr(3)
"""Kinds: the threshold is an edge of a nucleus, a k-th value, the floor of min-p, or more than that."""
TICKETS = tl.constexpr(32)
DONE = tl.constexpr(64)
PASSES = tl.constexpr(96)
"""Places in the queue, behind the number of rows: tickets drawn, rows drawn, passes announced. Each on a cache line of
its own, since some programs wait for one of them while others count another."""


@triton.jit
def column_of(weights, column, tile, tiles):
    """A column of the weights of tiles, [TILES]; ``column`` counts over all passes of the launch."""
    at = weights + (column // COLUMNS).to(tl.int64) * tiles * COLUMNS + tile * COLUMNS + column % COLUMNS
    return tl.load(at, mask=(tile < tiles) & (column >= 0), other=0.0)


@triton.jit
def await_pass(queue, ready, index, rows, most, PTX: tl.constexpr):
    """Wait until a pass is announced: 1, or 0 if none will be."""
    state = tl.where(index < most, -1, 0)
    while state < 0:
        if tl.load(ready + index, volatile=True) > 0:
            state = tl.full((), 1, tl.int32)
        elif tl.load(queue + DONE, volatile=True) >= rows:
            state = tl.full((), 0, tl.int32)
        elif PTX:
            _pause()
    if state > 0:
        tl.atomic_add(ready + index, 0, sem="acquire")  # and so all that was written before it
    return state


@triton.jit
def _pause():
    tl.inline_asm_elementwise(
        "nanosleep.u32 200; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def announce_pass(
    queue,
    ready,
    arrivals,
    plans,
    notes,
    pivots,
    low,
    high,
    top,
    scale,
    row,
    kind,
    number,
    low_column,
    high_column,
):
    """Announce a pass."""
    index = tl.atomic_add(queue + PASSES, 1, sem="relaxed")
    plan = plans + index.to(tl.int64) * PLAN
    note = notes + index.to(tl.int64) * NOTES
    tl.store(plan + tl.arange(0, 4), tl.minimum(tl.maximum(pivots, LEAST), LARGEST))
    tl.store(plan + 4, low)
    tl.store(plan + 5, high)
    tl.store(plan + 6, top)
    tl.store(plan + 7, scale)
    tl.store(note, row)
    tl.store(note + 1, kind)
    tl.store(note + 2, number)
    tl.store(note + 3, low_column)
    tl.store(note + 4, high_column)
    tl.store(arrivals + index, 0)
    tl.debug_barrier()
    tl.atomic_xchg(ready + index, 1, sem="release")


@triton.jit
def weigh_part(
    base,
    vocab_size,
    group,
    last,
    tiles,
    plan,
    note,
    weights,
    arrivals,
    parts,
    WARPS: tl.constexpr,
    VECTOR: tl.constexpr,
    PTX: tl.constexpr,
):
    """Weigh groups of tiles above each pivot; returns 1 to the program that comes last."""
    kind = tl.load(note + 1)
    p0 = tl.load(plan)
    p1 = tl.load(plan + 1)
    p2 = tl.load(plan + 2)
    p3 = tl.load(plan + 3)
    top = tl.load(plan + 6)
    scale = tl.load(plan + 7)
    while group < last:
        _weigh_group(
            base, vocab_size, group, tiles, top, scale, p0, p1, p2, p3, kind, weights, WARPS, VECTOR, PTX
        )
        group += 1
    tl.debug_barrier()
    return (tl.atomic_add(arrivals, 1, sem="acq_rel") == parts - 1).to(tl.int32)


@triton.jit
def _weigh_group(
    base,
    vocab_size,
    group,
    tiles,
    top,
    scale,
    p0,
    p1,
    p2,
    p3,
    kind,
    weights,
    WARPS: tl.constexpr,
    VECTOR: tl.constexpr,
    PTX: tl.constexpr,
):
    """Weigh ``WARPS`` neighbouring tiles above each pivot."""
    ids = group * (WARPS * 1024) + element_ids(WARPS, VECTOR)
    if (group + 1) * (WARPS * 1024) <= vocab_size:
        x = tl.load(base + ids).to(tl.float32)
    else:
        x = tl.load(base + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
    weight = tl.maximum(exp2((x - top) * scale, PTX), 0.0)  # of NaN, too
    tile = group * WARPS + tl.arange(0, WARPS)
    if kind == KNOWN:
        tl.store(weights + tile * COLUMNS, sum_tiles(weight * _reaches(x, p0, PTX)), mask=tile < tiles)
    else:
        _store_four(weights, tile, tiles, x, weight, p0, p1, p2, p3, PTX)
        if kind == BY_COUNT:
            _store_four(weights + 4, tile, tiles, x, tl.full(x.shape, 1.0, tl.float32), p0, p1, p2, p3, PTX)


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
def _lane_sums(x, weight, pivot, PTX: tl.constexpr):
    return tl.sum(tl.sum(weight * _reaches(x, pivot, PTX), 3), 2)


@triton.jit
def _store_four(out, tile, tiles, x, weight, p0, p1, p2, p3, PTX: tl.constexpr):
    """The weight from each pivot upwards, of [32, WARPS, chunks, VECTOR]; one exchange for all four."""
    first = tl.join(_lane_sums(x, weight, p0, PTX), _lane_sums(x, weight, p2, PTX))
    second = tl.join(_lane_sums(x, weight, p1, PTX), _lane_sums(x, weight, p3, PTX))
    four = tl.sum(tl.join(first, second), 0)  # [WARPS, 2, 2]: p0 p1, p2 p3
    at = tile[:, None, None] * COLUMNS + tl.arange(0, 2)[None, :, None] * 2 + tl.arange(0, 2)[None, None, :]
    tl.store(out + at, four, mask=(tile < tiles)[:, None, None])
