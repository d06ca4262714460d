"""Draws a row from the bracket of its threshold, if every threshold in the bracket gives the same token.

Reads 8 bytes a tile, 8 or 16 more that passes wrote, and one tile of logits.

For every threshold in the bracket, a tile weighs at most its weight from the low end upwards, and at least its weight
from the high end upwards. A tile wins for sure if its lower bound beats the upper bounds of all other tiles; a token
of this tile wins for sure if it reaches the high end and beats every logit from the low end upwards.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.columns import load_column
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    INVERSE,
    MASS,
    MAX_LOGIT,
    POSITION,
    SCALE,
    SEED,
)
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
    is_exact,
    reals,
    ints,
    columns,
    flags,
    out,
    config: tl.constexpr,
):
    """Draw a row if its bracket decides the token; return whether it does. ``is_exact``: the threshold is the low end.

    :param source: the :class:`.RowAddress`; ``statistics`` are those of the row, like ``reals``, ``ints`` and
        ``out``.
    :param bracket: :class:`~.bracket.Bracket`.
    """
    FP64: tl.constexpr = config.FP64
    tile = tl.arange(0, config.TILES)
    inside = tile < tiles
    max_logit = tl.load(reals + MAX_LOGIT)
    inverse = tl.load(reals + INVERSE)
    seed = tl.load((ints + SEED).to(tl.pointer_type(tl.int64)))
    position = tl.load((ints + POSITION).to(tl.pointer_type(tl.int64)))
    key = NoiseKey(seed, position)
    upper_weight = load_column(columns, bracket.low_column, tiles, config.TILES)
    lower_weight = upper_weight
    if is_exact == 0:
        lower_weight = load_column(columns, bracket.high_column, tiles, config.TILES)
    if bracket.low_column < 0:
        maximum = tl.load(statistics.maxima + tile, mask=inside, other=float("-inf"))
        upper_weight = tl.abs(tl.load(statistics.sums + tile, mask=inside, other=0.0))
        upper_weight *= weigh(maximum, max_logit, tl.load(reals + SCALE))
    of_token, of_tile = streams_of(flags)
    noise = gumbel(key, tile, of_tile, FP64)
    upper = _scores(upper_weight, noise)
    lower = _scores(lower_weight, noise)
    best_score, chosen = tl.max(lower, 0, return_indices=True)
    rival = tl.max(tl.where(tile == chosen, float("-inf"), upper), 0)
    decided = tl.maximum(is_exact, (best_score > rival).to(tl.int32))
    if decided > 0:
        members = chosen * TILE_SIZE + tl.arange(0, TILE_SIZE)
        x = tl.load(source.base + members, mask=members < source.vocab_size, other=float("-inf"))
        x = x.to(tl.float32)
        x = tl.where((x == x) & (x >= bracket.low), x, float("-inf"))
        score = scaled(x, max_logit, inverse, FP64) + gumbel(key, members, of_token, FP64)
        winner = chosen * TILE_SIZE + tl.argmax(score, 0)
        value = tl.load(source.base + winner).to(tl.float32)
        decided = tl.maximum(is_exact, (value >= bracket.high).to(tl.int32))
        if decided > 0:
            tl.store(out.token_ids, winner.to(tl.int64))
            if (flags & EXACT) != 0:
                tl.store(out.threshold, bracket.low)
                share = tl.sum(upper_weight, 0) / tl.load(reals + MASS)
                tl.store(out.log_kept, tl.log(tl.minimum(share, 1.0)))
    return decided


@triton.jit
def _scores(weight, noise):
    has_weight = weight > 0
    return tl.where(
        has_weight, tl.log(tl.where(has_weight, weight, 1.0).to(noise.dtype)) + noise, float("-inf")
    )
