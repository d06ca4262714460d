"""Loads the tiles of one step of a pass, ahead of their use.

bfloat16 stays in words of two until its use: the compiler unpacks single values right after the load, which waits for
the memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.bits import halves
from tokendraw_triton_gumbel.kernels.shared.tile_layout import LANES, TILE_SIZE, element_ids

_WORDS = tl.constexpr(4)
"""Words of 32 bits in a vector of 16 bytes."""
_TWO_LOWEST = tl.constexpr(-8323200)
"""Two bfloat16 of -inf."""
_UPPER_LOWEST = tl.constexpr(-8388608)
"""A bfloat16 of -inf in the upper half."""


@triton.jit
def load_group(row, group, config: tl.constexpr):
    """Return the logits of ``WARPS`` neighbouring tiles as :func:`as_logits` takes them; -inf behind the row."""
    SPAN: tl.constexpr = config.WARPS
    if config.LOADS_PAIRS:
        offset = group * (SPAN * TILE_SIZE // 2) + _word_ids(SPAN)
        words = row.base.to(tl.pointer_type(tl.int32)) + offset
        if (group + 1) * (SPAN * TILE_SIZE) <= row.vocab_size:
            block = tl.load(words)
        else:
            block = tl.load(words, mask=2 * offset + 1 < row.vocab_size, other=_TWO_LOWEST)
            # The word of the last logit of an odd number holds a value outside the row.
            last_bits = (
                tl.load(row.base + row.vocab_size - 1).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
            )
            block = tl.where(2 * offset + 1 == row.vocab_size, last_bits | _UPPER_LOWEST, block)
    else:
        ids = group * (SPAN * TILE_SIZE) + element_ids(SPAN, config.VECTOR)
        if (group + 1) * (SPAN * TILE_SIZE) <= row.vocab_size:
            block = tl.load(row.base + ids)
        else:
            block = tl.load(row.base + ids, mask=ids < row.vocab_size, other=float("-inf"))
    return block


@triton.jit
def load_granules(row, group, is_wanted, config: tl.constexpr):
    """Return a group of which only the wanted lanes, [LANES, WARPS], are sure to hold logits; others hold -inf."""
    SPAN: tl.constexpr = config.WARPS
    if (group + 1) * (SPAN * TILE_SIZE) > row.vocab_size:
        block = load_group(row, group, config)
    elif config.LOADS_PAIRS:
        words = row.base.to(tl.pointer_type(tl.int32)) + group * (SPAN * TILE_SIZE // 2) + _word_ids(SPAN)
        block = tl.load(words, mask=is_wanted[:, :, None, None], other=_TWO_LOWEST)
    else:
        ids = group * (SPAN * TILE_SIZE) + element_ids(SPAN, config.VECTOR)
        block = tl.load(row.base + ids, mask=is_wanted[:, :, None, None], other=float("-inf"))
    return block


@triton.jit
def as_logits(block, config: tl.constexpr):
    """Convert a loaded group to float32: [LANES, WARPS, chunks, VECTOR]."""
    if config.LOADS_PAIRS:
        SPAN: tl.constexpr = config.WARPS
        CHUNKS: tl.constexpr = TILE_SIZE // (LANES * config.VECTOR)
        low, high = halves(block)
        x = tl.reshape(tl.join(low, high), (LANES, SPAN, CHUNKS, config.VECTOR))
    else:
        x = block.to(tl.float32)
    return x


@triton.jit
def _word_ids(SPAN: tl.constexpr):
    """Return the words of :func:`element_ids` where a vector holds 8 logits: [LANES, SPAN, chunks, 4]."""
    lane = tl.arange(0, LANES)[:, None, None, None]
    tile = tl.arange(0, SPAN)[None, :, None, None]
    chunk = tl.arange(0, TILE_SIZE // (2 * LANES * _WORDS))[None, None, :, None]
    word = tl.arange(0, _WORDS)[None, None, None, :]
    return tile * (TILE_SIZE // 2) + chunk * (LANES * _WORDS) + lane * _WORDS + word
