"""Writes -inf to the ids of a row that a mask leaves out, tile by tile."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _forbid_ids(base, words, size, all_of_them, TILE: tl.constexpr, VECTOR: tl.constexpr):
    """Write -inf to single forbidden ids of a tile.

    :param size: ids in the tile.
    :param all_of_them: whether to write also the ids of entirely forbidden vectors.

    A lane has the same bit of every word, and all its addresses differ by constants: a few instructions for 32 ids.
    """
    index = tl.arange(0, TILE)
    bit = 1 << (index & 31)
    vector = ((1 << VECTOR) - 1) << (index & (32 - VECTOR))
    bits = tl.load(words + (index >> 5), mask=index < size, other=-1)
    mask = ((bits & bit) == 0) & (((bits & vector) != 0) | all_of_them)
    tl.store(base + index, -float("inf"), mask=mask)


@triton.jit
def forbid_unset(part, parts, base, words, vocab_size, config: tl.constexpr):
    """Write -inf to every id whose mask bit is 0 and nothing to the others: tiles in turns with the other programs.

    An entirely forbidden vector of 16 bytes is one store. Memory writes full sectors, so the sectors of other vectors
    are prefetched into the cache before single ids are written; their logits are not written back, since another
    program may be editing them. The words of the next tile are loaded while one tile is written.
    """
    TILE: tl.constexpr = config.TILE
    VECTOR: tl.constexpr = 128 // base.dtype.element_ty.primitive_bitwidth
    ONES: tl.constexpr = (1 << VECTOR) - 1
    is_aligned = (base.to(tl.int64) & 15) == 0
    vectors = tl.arange(0, TILE // VECTOR)
    offset = vectors * VECTOR >> 5
    shift = vectors * VECTOR & 31
    elements = vectors[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    full = vocab_size // TILE
    step: tl.constexpr = TILE // 32
    bits = tl.load(words + part * step + offset, mask=part < full, other=-1)
    for tile in range(part, full, parts):
        later = tile + parts
        next_bits = tl.load(words + later * step + offset, mask=later < full, other=-1)
        start = base + tile * TILE
        allowed = (bits >> shift) & ONES
        is_whole = (allowed == 0) & is_aligned
        whole_vectors = tl.broadcast_to(is_whole[:, None], [TILE // VECTOR, VECTOR])
        tl.store(tl.multiple_of(start + elements, (16, 16)), -float("inf"), mask=whole_vectors)
        is_mixed = ((allowed != ONES) & (is_whole == 0)).to(tl.int32)
        if config.IS_NVIDIA:
            _fetch(start + vectors * VECTOR, is_mixed)
        if tl.max(is_mixed, 0) > 0:
            _forbid_ids(start, words + tile * step, TILE, is_aligned == 0, TILE, VECTOR)
        bits = next_bits
    if part == full % parts:
        _forbid_ids(base + full * TILE, words + full * step, vocab_size - full * TILE, True, TILE, VECTOR)


@triton.jit
def forbid_others(part, parts, base, forced, vocab_size, config: tl.constexpr):
    """Write -inf to every id but one: tiles in turns with the other programs."""
    for start in range(part * config.TILE, vocab_size, parts * config.TILE):
        index = start + tl.arange(0, config.TILE)
        tl.store(base + index, -float("inf"), mask=(index < vocab_size) & (index != forced))


@triton.jit
def _fetch(addresses, mask):
    """Have the sectors at some addresses brought into the L2, without waiting for them."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
        "=r,l,r",
        [addresses, mask],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
