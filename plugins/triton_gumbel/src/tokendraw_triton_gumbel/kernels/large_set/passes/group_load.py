"""Loads the tiles of one step of a pass, ahead of their use.

bfloat16 stays in words of two until its use: the compiler unpacks single values right after the load, which waits for
the memory. Rows at any address stay in the two vectors of each lane for the same reason.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.tile_layout import (
    GRANULE_SIZE,
    GRANULES_PER_TILE,
    LANES,
    TILE_SIZE,
    element_ids,
    granule_ids,
)
from tokendraw_triton_gumbel.kernels.shared.unaligned_rows import (
    WORDS,
    load_inside,
    load_vectors,
    logits_of_words,
    shifted_words,
    word_ids,
)

_TWO_LOWEST = tl.constexpr(-8323200)
"""Two bfloat16 of -inf."""
_UPPER_LOWEST = tl.constexpr(-8388608)
"""A bfloat16 of -inf in the upper half."""


@triton.jit
def load_group(row, group, config: tl.constexpr):
    """Return the logits of ``WARPS`` neighbouring tiles as :func:`as_logits` takes them; -inf behind the row."""
    SPAN: tl.constexpr = config.WARPS
    if not config.IS_ALIGNED:
        offset = group * (SPAN * TILE_SIZE // config.VECTOR * WORDS) + word_ids(SPAN, config.VECTOR)
        end = (group + 1) * (SPAN * TILE_SIZE)
        first, second = load_vectors(row, offset, end + config.VECTOR <= row.vocab_size)
        block = tl.join(first, second)
    elif row.base.dtype.element_ty == tl.bfloat16:
        offset = group * (SPAN * TILE_SIZE // 2) + word_ids(SPAN, config.VECTOR)
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
def load_half_granules(row, numbers, half, count, first_tile, config: tl.constexpr):
    """Return the logits of listed granules as :func:`as_logits` takes them; anything beyond the list.

    :param numbers: [count] int32: numbers of granules from ``first_tile`` on, ascending, at least one.
    :param half: [LANES, WARPS] int32: which half granule each lane gets, every second vector of a granule.
    """
    granule = tl.load(numbers + half // 2, mask=half < 2 * count, other=0)
    granule = (first_tile * GRANULES_PER_TILE + granule)[:, :, None, None]
    vector = tl.arange(0, GRANULE_SIZE // config.VECTOR // 2)[None, None, :, None]
    token = granule_ids(granule, (2 * vector + (half % 2)[:, :, None, None]) * config.VECTOR, config.VECTOR)
    words = token // config.VECTOR * WORDS + tl.arange(0, WORDS)[None, None, None, :]
    last = tl.load(numbers + tl.minimum(count, config.WARPS * LANES // 2) - 1)
    end = (first_tile + last // GRANULES_PER_TILE + 1) * TILE_SIZE
    if not config.IS_ALIGNED:
        first, second = load_vectors(row, words, end + config.VECTOR <= row.vocab_size)
        block = tl.join(first, second)
    elif end <= row.vocab_size:
        block = tl.load(row.base.to(tl.pointer_type(tl.int32)) + words)
    else:
        block = load_inside(row, words)
    return block


@triton.jit
def as_logits(block, row, config: tl.constexpr):
    """Convert a loaded group of a row to float32: [LANES, WARPS, chunks, VECTOR]."""
    if not config.IS_ALIGNED:
        first, second = tl.split(block)
        x = logits_of_words(shifted_words(first, second, row, config.IS_NVIDIA), row.base.dtype.element_ty)
    elif block.dtype == tl.int32:
        x = logits_of_words(block, row.base.dtype.element_ty)
    else:
        x = block.to(tl.float32)
    return x
