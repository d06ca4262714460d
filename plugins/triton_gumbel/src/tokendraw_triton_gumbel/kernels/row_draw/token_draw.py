"""Draws on two levels: a tile by the logarithm of its weight plus noise, then a token in this tile."""

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
    """Return the running sum of the weights in each tile: the tile's full weight at its last element."""
    total, _ = tl.associative_scan((weight, tile), 0, _same_tile)
    return total


@triton.jit
def best_of(score, label, kept):
    """Return the label of the largest kept score; the least label on a tie."""
    if score.dtype == tl.float32:
        key = key_of(tl.where(kept, score, float("-inf")))
        packed = (key.to(tl.int64) << 32) | (label ^ INT32_MAX).to(
            tl.int64
        )  # the lower the label, the larger
        best_label = (tl.max(packed, 0) & _LOW_WORD).to(tl.int32) ^ INT32_MAX
    else:
        largest = tl.max(tl.where(kept, score, float("-inf")), 0)
        best_label = tl.min(tl.where(kept & (score == largest), label, INT32_MAX), 0)
    return best_label


@triton.jit
def draw_candidate(score, weight, kept, token, key, of_token, of_tile, FP64: tl.constexpr):
    """Draw a token from candidates [N] in registers, tile by tile.

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
    """Draw the same token with a single copy of the noise's code, which is long for many candidates."""
    tile = token // TILE_SIZE
    total = tl.where(kept, running_sums(weight, tile), 1.0)
    best_label = tl.full((), -1, tl.int32)
    level = 0
    while level < 2:
        by_tile = level == 0
        label = tl.where(by_tile, tile, token)
        noise = gumbel(key, label, tl.where(by_tile, of_tile, of_token), FP64)
        value = tl.where(by_tile, tl.log(total.to(noise.dtype)), score)
        best_label = best_of(value + noise, label, kept & (by_tile | (tile == best_label)))
        level += 1
    return best_label


@triton.jit
def draw_in_tile(row, chosen, threshold, max_logit, inverse, greedy, key, stream, FP64: tl.constexpr):
    """Draw a token of a row in a given tile, among the logits from ``threshold`` upwards."""
    members = chosen * TILE_SIZE + tl.arange(0, TILE_SIZE)
    x = tl.load(row.base + members, mask=members < row.vocab_size, other=float("-inf")).to(tl.float32)
    x = tl.where((x == x) & (x >= threshold), x, float("-inf"))
    score = scaled(x, max_logit, inverse, FP64) + gumbel(key, members, stream, FP64)
    score = tl.where(greedy, tl.where(x == max_logit, 0.0, float("-inf")).to(score.dtype), score)
    return chosen * TILE_SIZE + tl.argmax(score, 0)
