"""Loads the tiles that a pass reads at once, so that they can be on their way while others are weighed.

bfloat16 stays in words of two until it is needed: the compiler takes single ones apart as soon as they are loaded,
which waits for the memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.bits import halves
from tokendraw_triton_gumbel.kernels.shared.tile_layout import LANES, TILE_SIZE, element_ids

_WORDS = tl.constexpr(4)
"""Words of 32 bits in a vector of 16 bytes."""
_TWO_LOWEST = tl.constexpr(-8323200)
"""Two bfloat16 that are -inf."""
_UPPER_LOWEST = tl.constexpr(-8388608)
"""One of them, in the upper half."""


@triton.jit
def load_group(row, group, config: tl.constexpr):
    """Return the logits of ``WARPS`` neighbouring tiles as :func:`as_logits` takes them; -inf behind the row."""
    SPAN: tl.constexpr = config.WARPS
    if config.PAIRED:
        place = group * (SPAN * TILE_SIZE // 2) + _word_ids(SPAN)
        words = row.base.to(tl.pointer_type(tl.int32)) + place
        if (group + 1) * (SPAN * TILE_SIZE) <= row.vocab_size:
            loaded = tl.load(words)
        else:
            loaded = tl.load(words, mask=2 * place + 1 < row.vocab_size, other=_TWO_LOWEST)
            # What follows the last of an odd number is not the row's.
            last = tl.load(row.base + row.vocab_size - 1).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
            loaded = tl.where(2 * place + 1 == row.vocab_size, last | _UPPER_LOWEST, loaded)
    else:
        ids = group * (SPAN * TILE_SIZE) + element_ids(SPAN, config.VECTOR)
        if (group + 1) * (SPAN * TILE_SIZE) <= row.vocab_size:
            loaded = tl.load(row.base + ids)
        else:
            loaded = tl.load(row.base + ids, mask=ids < row.vocab_size, other=float("-inf"))
    return loaded


@triton.jit
def as_logits(loaded, config: tl.constexpr):
    """Return what was loaded as float32: [LANES, WARPS, chunks, VECTOR]."""
    if config.PAIRED:
        SPAN: tl.constexpr = config.WARPS
        CHUNKS: tl.constexpr = TILE_SIZE // (LANES * config.VECTOR)
        low, high = halves(loaded)
        x = tl.reshape(tl.join(low, high), (LANES, SPAN, CHUNKS, config.VECTOR))
    else:
        x = loaded.to(tl.float32)
    return x


@triton.jit
def _word_ids(SPAN: tl.constexpr):
    """Return the words of :func:`element_ids` where a vector holds 8 logits: [LANES, SPAN, chunks, 4]."""
    lane = tl.arange(0, LANES)[:, None, None, None]
    tile = tl.arange(0, SPAN)[None, :, None, None]
    chunk = tl.arange(0, TILE_SIZE // (2 * LANES * _WORDS))[None, None, :, None]
    word = tl.arange(0, _WORDS)[None, None, None, :]
    return tile * (TILE_SIZE // 2) + chunk * (LANES * _WORDS) + lane * _WORDS + word
