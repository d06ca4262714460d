"""Loads the tiles of rows that begin at any address. Reads a vector beside each, for the words between two."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.tile_layout import LANES, TILE_SIZE
from tokendraw_triton_gumbel.kernels.shared.unaligned_rows import (
    WORDS,
    aligned_base,
    load_inside,
    load_logits,
    shifted_words,
    word_ids,
)

PAIRS_PER_TILE = tl.constexpr(512)
PAIRS_PER_LANE = tl.constexpr(4)
"""Pairs in 16 bytes: one of a lane's four vectors of a tile."""
PAIRS_PER_CHUNK = tl.constexpr(128)


@triton.jit
def load_shifted(source, group, is_inner, config: tl.constexpr):
    """Load the tiles of a group of a row at any address: float32 [LANES, SPAN, chunks, VECTOR], -inf outside."""
    SPAN: tl.constexpr = config.SPAN
    words = group * (SPAN * TILE_SIZE // config.VECTOR * WORDS) + word_ids(SPAN, config.VECTOR)
    return load_logits(source, words, is_inner, config.IS_NVIDIA)


@triton.jit
def load_shifted_pairs(source, group, is_inner, SPAN: tl.constexpr):
    """Load the four vectors of each lane's tiles in a full group, of a row of bfloat16 at any address."""
    offset = tl.arange(0, LANES)[:, None, None, None] * WORDS + tl.arange(0, WORDS)[None, None, None, :]
    offset += (group * SPAN + tl.arange(0, SPAN)[None, :, None, None]) * PAIRS_PER_TILE
    base, _ = aligned_base(source)
    a0, a1 = tl.load(base + offset), tl.load(base + offset + WORDS)
    offset += PAIRS_PER_CHUNK
    b0, b1 = tl.load(base + offset), tl.load(base + offset + WORDS)
    offset += PAIRS_PER_CHUNK
    c0, c1 = tl.load(base + offset), tl.load(base + offset + WORDS)
    offset += PAIRS_PER_CHUNK
    d0 = tl.load(base + offset)
    if is_inner:
        d1 = tl.load(base + offset + WORDS)
    else:
        d1 = load_inside(source, offset + WORDS)
    return (
        _shifted_pairs(a0, a1, source, SPAN),
        _shifted_pairs(b0, b1, source, SPAN),
        _shifted_pairs(c0, c1, source, SPAN),
        _shifted_pairs(d0, d1, source, SPAN),
    )


@triton.jit
def _shifted_pairs(first, second, source, SPAN: tl.constexpr):
    return tl.reshape(shifted_words(first, second, source, True), (LANES, SPAN, PAIRS_PER_LANE))
