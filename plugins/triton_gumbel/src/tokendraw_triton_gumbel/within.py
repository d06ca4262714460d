"""The draw of a wide row from a bracket of its threshold, if the same tile and token win wherever in it that lies.

Reads 8 bytes a tile, 8 or 16 more that a pass has left, and one tile of logits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.noise import gumbel, streams_of
from tokendraw_triton_gumbel.order import scaled, weigh
from tokendraw_triton_gumbel.passes import INVERSE, MASS, POSITION, SCALE, SEED, TOP, column_of
from tokendraw_triton_gumbel.request import EXACT


@triton.jit(noinline=True)
def draw_within(
    base,
    vocab_size,
    maxima,
    sums,
    tiles,
    low,
    high,
    low_column,
    high_column,
    exact,
    plan,
    note,
    partials,
    flags,
    token_id,
    floor_out,
    log_kept,
    FP64: tl.constexpr,
    TILES: tl.constexpr,
):
    """Draw if the bracket decides who wins; returns whether it does. If ``exact``, the threshold is ``low``."""
    tile = tl.arange(0, TILES)
    top = tl.load(plan + TOP)
    inverse = tl.load(plan + INVERSE)
    seed = tl.load((note + SEED).to(tl.pointer_type(tl.int64)))
    position = tl.load((note + POSITION).to(tl.pointer_type(tl.int64)))
    most = column_of(partials, low_column, tile, tiles)
    at_least = most
    if exact == 0:
        at_least = column_of(partials, high_column, tile, tiles)
    if low_column < 0:
        maximum = tl.load(maxima + tile, mask=tile < tiles, other=float("-inf"))
        most = tl.abs(tl.load(sums + tile, mask=tile < tiles, other=0.0))
        most *= weigh(maximum, top, tl.load(plan + SCALE))
    of_token, of_tile = streams_of(flags)
    noise = gumbel(seed, position, tile, of_tile, FP64)
    upper = _scores(most, noise)
    lower = _scores(at_least, noise)
    best, chosen = tl.max(lower, 0, return_indices=True)
    rival = tl.max(tl.where(tile == chosen, float("-inf"), upper), 0)
    decided = tl.maximum(exact, (best > rival).to(tl.int32))
    if decided > 0:
        members = chosen * 1024 + tl.arange(0, 1024)
        x = tl.load(base + members, mask=members < vocab_size, other=float("-inf")).to(tl.float32)
        x = tl.where((x == x) & (x >= low), x, float("-inf"))
        score = scaled(x, top, inverse, FP64) + gumbel(seed, position, members, of_token, FP64)
        winner = chosen * 1024 + tl.argmax(score, 0)
        value = tl.load(base + winner).to(tl.float32)
        decided = tl.maximum(exact, (value >= high).to(tl.int32))
        if decided > 0:
            tl.store(token_id, winner.to(tl.int64))
            if (flags & EXACT) != 0:
                tl.store(floor_out, low)
                tl.store(log_kept, tl.log(tl.sum(most, 0) / tl.load(plan + MASS)))
    return decided


@triton.jit
def _scores(weight, noise):
    some = weight > 0
    return tl.where(some, tl.log(tl.where(some, weight, 1.0).to(noise.dtype)) + noise, float("-inf"))
