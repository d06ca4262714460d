"""Reads rows that begin at any address in vectors of 16 bytes at multiples of 16: two of them hold a vector of the row.

The second of a lane is the first of the next lane, so the memory is read once and the L1 twice. Of the memory around a
row only the vector with its first logit is read.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.bits import halves
from tokendraw_triton_gumbel.kernels.shared.tile_layout import LANES, TILE_SIZE

WORDS = tl.constexpr(4)
"""Words of 32 bits in a vector of 16 bytes."""


@triton.jit
def word_ids(SPAN: tl.constexpr, VECTOR: tl.constexpr):
    """Return the words of :func:`.element_ids`: [LANES, SPAN, chunks, WORDS]."""
    lane = tl.arange(0, LANES)[:, None, None, None]
    tile = tl.arange(0, SPAN)[None, :, None, None]
    chunk = tl.arange(0, TILE_SIZE // (LANES * VECTOR))[None, None, :, None]
    word = tl.arange(0, WORDS)[None, None, None, :]
    return tile * (TILE_SIZE // VECTOR * WORDS) + chunk * (LANES * WORDS) + lane * WORDS + word


@triton.jit
def aligned_base(row):
    """Return (pointer to words at the last multiple of 16 bytes up to a row; bytes from there to the row)."""
    ITEM_BYTES: tl.constexpr = row.base.dtype.element_ty.primitive_bitwidth // 8
    shift = (row.base.to(tl.int64) & 15).to(tl.int32)
    return tl.multiple_of(row.base - shift // ITEM_BYTES, 16).to(tl.pointer_type(tl.int32)), shift


@triton.jit
def load_logits(row, words, is_inner, IS_NVIDIA: tl.constexpr):
    """Load logits of a row as float32 [A, B, C, VECTOR]; -inf behind the row.

    :param words: [A, B, C, WORDS] numbers of words of the row; ``is_inner`` as in :func:`load_vectors`.
    """
    first, second = load_vectors(row, words, is_inner)
    return logits_of_words(shifted_words(first, second, row, IS_NVIDIA), row.base.dtype.element_ty)


@triton.jit
def load_vectors(row, words, is_inner):
    """Return the two vectors that hold each vector of a row, as :func:`shifted_words` takes them; -inf behind the row.

    :param words: numbers of words of the row; the last dimension is a vector.
    :param is_inner: whether the row goes on for a vector behind all of these.
    """
    if is_inner:
        base, _ = aligned_base(row)
        first = tl.load(base + words)
        second = tl.load(base + words + WORDS)
    else:
        first = load_inside(row, words)
        second = load_inside(row, words + WORDS)
    return first, second


@triton.jit
def load_inside(row, words):
    """Return words counted from :func:`aligned_base`; -inf behind the row."""
    PER_WORD: tl.constexpr = 32 // row.base.dtype.element_ty.primitive_bitwidth
    base, shift = aligned_base(row)
    start = shift // (4 // PER_WORD)
    mask = words < (start + row.vocab_size) // PER_WORD
    if PER_WORD == 1:
        block = tl.load(base + words, mask=mask, other=-8388608)
    else:
        IS_BFLOAT16: tl.constexpr = row.base.dtype.element_ty == tl.bfloat16
        lowest: tl.constexpr = -8323200 if IS_BFLOAT16 else -67044352
        block = tl.load(base + words, mask=mask, other=lowest)
        # Of a word with the row's last logit in its lower half, the upper half may lie outside the memory.
        last_bits = tl.load(row.base + row.vocab_size - 1).to(tl.int16, bitcast=True).to(tl.int32)
        last_word = (last_bits & 0xFFFF) | (lowest & -65536)
        block = tl.where(2 * words + 1 == start + row.vocab_size, last_word, block)
    return block


@triton.jit
def shifted_words(first, second, row, IS_NVIDIA: tl.constexpr):
    """Return the row's words out of the two vectors that hold them: [A, B, C, WORDS].

    :param first: [A, B, C, WORDS], like ``second``, as :func:`load_vectors` returns them.
    """
    IS_16_BIT: tl.constexpr = row.base.dtype.element_ty.primitive_bitwidth == 16
    _, shift = aligned_base(row)
    w0, w1, w2, w3 = _split(first)
    w4, w5, w6, w7 = _split(second)
    by_two = (shift & 8) != 0
    w0, w1, w2 = tl.where(by_two, w2, w0), tl.where(by_two, w3, w1), tl.where(by_two, w4, w2)
    w3, w4 = tl.where(by_two, w5, w3), tl.where(by_two, w6, w4)
    by_one = (shift & 4) != 0
    if IS_16_BIT:
        w5 = tl.where(by_one, tl.where(by_two, w7, w5), w4)
    w0, w1 = tl.where(by_one, w1, w0), tl.where(by_one, w2, w1)
    w2, w3 = tl.where(by_one, w3, w2), tl.where(by_one, w4, w3)
    if IS_16_BIT:
        bits = (shift & 2) * 8
        w0, w1 = _from_bit(w0, w1, bits, IS_NVIDIA), _from_bit(w1, w2, bits, IS_NVIDIA)
        w2, w3 = _from_bit(w2, w3, bits, IS_NVIDIA), _from_bit(w3, w5, bits, IS_NVIDIA)
    return tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), first.shape)


@triton.jit
def _split(vectors):
    """Return the four words of vectors [A, B, C, WORDS]."""
    even, odd = tl.split(
        tl.reshape(vectors, (vectors.shape[0], vectors.shape[1], vectors.shape[2], WORDS // 2, 2))
    )
    w0, w2 = tl.split(even)
    w1, w3 = tl.split(odd)
    return w0, w1, w2, w3


@triton.jit
def _from_bit(low, high, bit, IS_NVIDIA: tl.constexpr):
    """Return the 32 bits of two words from bit 0 or 16 upwards."""
    if IS_NVIDIA:
        return tl.inline_asm_elementwise(
            "shf.r.wrap.b32 $0, $1, $2, $3;",
            "=r,r,r,r",
            [low, high, bit],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    else:
        return tl.where(bit == 0, low, ((low >> 16) & 0xFFFF) | (high << 16))


@triton.jit
def logits_of_words(words, dtype: tl.constexpr):
    """Convert words [A, B, C, WORDS] of logits to float32 [A, B, C, VECTOR]."""
    if dtype == tl.float32:
        return words.to(tl.float32, bitcast=True)
    else:
        if dtype == tl.bfloat16:
            low, high = halves(words)
        else:
            low = words.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            high = (words >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        return tl.reshape(
            tl.join(low, high), (words.shape[0], words.shape[1], words.shape[2], 2 * words.shape[3])
        )
