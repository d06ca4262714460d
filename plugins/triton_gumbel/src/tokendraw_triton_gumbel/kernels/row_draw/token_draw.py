"""The two levels of every draw: a tile by the logarithm of its weight plus noise, then a token in it."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.float_keys import INT32_MAX, key_of
from tokendraw_triton_gumbel.kernels.shared.noise import gumbel
from tokendraw_triton_gumbel.kernels.shared.tile_layout import TILE_SIZE
from tokendraw_triton_gumbel.kernels.shared.weights import scaled

_LOW_WORD = tl.constexpr(0xFFFFFFFF)


@triton.jit
def _same_tile(weight_a, tile_a, weight_b, tile_b):
    return tl.where(tile_a == tile_b, weight_a, 0.0) + weight_b, tile_b


@triton.jit
def running_sums(weight, tile):
    """Add up weights that stand tile by tile: where a tile ends it is its whole weight, and before that no more."""
    total, _ = tl.associative_scan((weight, tile), 0, _same_tile)
    return total


@triton.jit
def best_of(score, label, kept):
    """Return the label of the largest score of those that are kept; the least label on a tie."""
    if score.dtype == tl.float32:
        key = key_of(tl.where(kept, score, float("-inf")))
        both = (key.to(tl.int64) << 32) | (label ^ INT32_MAX).to(tl.int64)  # the lower the label, the larger
        best = (tl.max(both, 0) & _LOW_WORD).to(tl.int32) ^ INT32_MAX
    else:
        largest = tl.max(tl.where(kept, score, float("-inf")), 0)
        best = tl.min(tl.where(kept & (score == largest), label, INT32_MAX), 0)
    return best


@triton.jit
def draw_candidate(score, weight, kept, token, key, of_token, of_tile, FP64: tl.constexpr):
    """Return the token that is drawn from candidates [N] in registers, tile by tile.

    :param score: the logarithms of the weights, up to a constant.
    :param weight: 0 of what is not kept.
    """
    tile = token // TILE_SIZE
    noise = gumbel(key, tile, of_tile, FP64)
    own_noise = gumbel(key, token, of_token, FP64)
    total = tl.where(kept, running_sums(weight, tile), 1.0)
    chosen = best_of(tl.log(total.to(noise.dtype)) + noise, tile, kept)
    return best_of(score + own_noise, token, kept & (tile == chosen))


@triton.jit
def draw_candidate_in_turns(score, weight, kept, token, key, of_token, of_tile, FP64: tl.constexpr):
    """Return the same token with one copy of the noise, which for many candidates is most of the code."""
    tile = token // TILE_SIZE
    total = tl.where(kept, running_sums(weight, tile), 1.0)
    best = tl.full((), -1, tl.int32)
    level = 0
    while level < 2:
        by_tile = level == 0
        label = tl.where(by_tile, tile, token)
        noise = gumbel(key, label, tl.where(by_tile, of_tile, of_token), FP64)
        value = tl.where(by_tile, tl.log(total.to(noise.dtype)), score)
        best = best_of(value + noise, label, kept & (by_tile | (tile == best)))
        level += 1
    return best


@triton.jit
def draw_in_tile(row, chosen, floor, top, inverse, greedy, key, stream, FP64: tl.constexpr):
    """Return the token of a row whose tile is known, among the logits from ``floor`` upwards."""
    members = chosen * TILE_SIZE + tl.arange(0, TILE_SIZE)
    x = tl.load(row.base + members, mask=members < row.vocab_size, other=float("-inf")).to(tl.float32)
    x = tl.where((x == x) & (x >= floor), x, float("-inf"))
    score = scaled(x, top, inverse, FP64) + gumbel(key, members, stream, FP64)
    score = tl.where(greedy, tl.where(x == top, 0.0, float("-inf")).to(score.dtype), score)
    return chosen * TILE_SIZE + tl.argmax(score, 0)
