"""The draw of a row from a bracket of its threshold, if the same tile and token win wherever in it that lies.

Reads 8 bytes a tile, 8 or 16 more that a pass has left, and one tile of logits.

Whatever the threshold, a tile weighs at most what it weighs from the low end of the bracket upwards, and at least
what it weighs from the high end. A tile that beats all others at its least, while they are at their most, wins in any
case; and so does a token in it that reaches the high end and beats all that reach the low one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.columns import load_column
from tokendraw_triton_gumbel.kernels.large_set.row_state import INVERSE, MASS, POSITION, SCALE, SEED, TOP
from tokendraw_triton_gumbel.kernels.shared.noise import gumbel, streams_of
from tokendraw_triton_gumbel.kernels.shared.row_params import EXACT
from tokendraw_triton_gumbel.kernels.shared.row_values import NoiseKey
from tokendraw_triton_gumbel.kernels.shared.tile_layout import TILE_SIZE
from tokendraw_triton_gumbel.kernels.shared.weights import scaled, weigh


@triton.jit(noinline=True)
def draw_from_bracket(
    source,
    statistics,
    tiles,
    bracket,
    exact,
    reals,
    ints,
    columns,
    flags,
    out,
    config: tl.constexpr,
):
    """Draw if the bracket decides who wins; return whether it does. If ``exact``, the threshold is its low end.

    :param source: the :class:`~.row_values.Row`; ``statistics`` are those of the row, like ``reals``, ``ints`` and
        ``out``.
    :param bracket: :class:`~.bracket.Bracket`.
    """
    FP64: tl.constexpr = config.FP64
    tile = tl.arange(0, config.TILES)
    inside = tile < tiles
    top = tl.load(reals + TOP)
    inverse = tl.load(reals + INVERSE)
    seed = tl.load((ints + SEED).to(tl.pointer_type(tl.int64)))
    position = tl.load((ints + POSITION).to(tl.pointer_type(tl.int64)))
    key = NoiseKey(seed, position)
    most = load_column(columns, bracket.low_column, tiles, config.TILES)
    least = most
    if exact == 0:
        least = load_column(columns, bracket.high_column, tiles, config.TILES)
    if bracket.low_column < 0:
        maximum = tl.load(statistics.maxima + tile, mask=inside, other=float("-inf"))
        most = tl.abs(tl.load(statistics.sums + tile, mask=inside, other=0.0))
        most *= weigh(maximum, top, tl.load(reals + SCALE))
    of_token, of_tile = streams_of(flags)
    noise = gumbel(key, tile, of_tile, FP64)
    upper = _scores(most, noise)
    lower = _scores(least, noise)
    best, chosen = tl.max(lower, 0, return_indices=True)
    rival = tl.max(tl.where(tile == chosen, float("-inf"), upper), 0)
    decided = tl.maximum(exact, (best > rival).to(tl.int32))
    if decided > 0:
        members = chosen * TILE_SIZE + tl.arange(0, TILE_SIZE)
        x = tl.load(source.base + members, mask=members < source.vocab_size, other=float("-inf"))
        x = x.to(tl.float32)
        x = tl.where((x == x) & (x >= bracket.low), x, float("-inf"))
        score = scaled(x, top, inverse, FP64) + gumbel(key, members, of_token, FP64)
        winner = chosen * TILE_SIZE + tl.argmax(score, 0)
        value = tl.load(source.base + winner).to(tl.float32)
        decided = tl.maximum(exact, (value >= bracket.high).to(tl.int32))
        if decided > 0:
            tl.store(out.token_ids, winner.to(tl.int64))
            if (flags & EXACT) != 0:
                tl.store(out.floors, bracket.low)
                share = tl.sum(most, 0) / tl.load(reals + MASS)
                tl.store(out.log_kept, tl.log(tl.minimum(share, 1.0)))
    return decided


@triton.jit
def _scores(weight, noise):
    some = weight > 0
    return tl.where(some, tl.log(tl.where(some, weight, 1.0).to(noise.dtype)) + noise, float("-inf"))
