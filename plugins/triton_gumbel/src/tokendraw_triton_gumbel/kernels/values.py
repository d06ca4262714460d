"""Device functions on numbers and on the memory of a row: bits, keys, weights, tiles, and vectors at any address."""

from __future__ import annotations

import triton
import triton.language as tl

# Bits of int32: marks of the hits among a thread's elements, and words of two bfloat16. Reads and writes nothing.

_UPPER_HALF = tl.constexpr(-65536)
"""The upper 16 bits of 32: a bfloat16 as float32."""


@triton.jit
def lowest_bit(mask):
    """Return the index of the lowest set bit: the exponent of a power of two."""
    return (((mask & -mask).to(tl.float32).to(tl.int32, bitcast=True) >> 23) & 255) - 127


@triton.jit
def count_bits(mask):
    """Return how many bits are set."""
    mask -= (mask >> 1) & 0x55555555
    mask = (mask & 0x33333333) + ((mask >> 2) & 0x33333333)
    mask = (mask + (mask >> 4)) & 0x0F0F0F0F
    mask += mask >> 8
    return (mask + (mask >> 16)) & 63


@triton.jit
def halves(pairs):
    """Return two bfloat16 in an int32 as float32."""
    return (pairs << 16).to(tl.float32, bitcast=True), (pairs & _UPPER_HALF).to(tl.float32, bitcast=True)


# Compares values with results 1.0 or 0.0 as factors, so that a sum over hits costs two instructions an element.
#
# Reads and writes nothing. On NVIDIA one instruction compares and makes the factor; no expression of Triton compiles
# to it: a comparison whose result is summed takes two, and a third for the sum.


@triton.jit
def reaches(x, bound, IS_NVIDIA: tl.constexpr):
    """Return 1.0 where ``x`` is at least ``bound``, else 0.0, also of NaN."""
    if IS_NVIDIA:
        return tl.inline_asm_elementwise(
            "set.ge.f32.f32 $0, $1, $2;", "=f,f,f", [x, bound], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return (x >= bound).to(tl.float32)


@triton.jit
def exceeds(x, bound, IS_NVIDIA: tl.constexpr):
    """Return 1.0 where ``x`` is greater than ``bound``, else 0.0, also of NaN."""
    if IS_NVIDIA:
        return tl.inline_asm_elementwise(
            "set.gt.f32.f32 $0, $1, $2;", "=f,f,f", [x, bound], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return (x > bound).to(tl.float32)


# Maps float32 to int32 keys of the same order, for searches by halving. Reads and writes nothing.

LOWEST = tl.constexpr(-3.4028234663852886e38)
LARGEST = tl.constexpr(3.4028234663852886e38)
"""The ends of the finite float32."""
INT32_MAX = tl.constexpr(2147483647)
"""Stands for no id, above all ids; and as a mask takes the sign off a key."""


@triton.jit
def key_of(x):
    """Map float32 to int32 in the same order; both zeros map to 0."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & INT32_MAX)


@triton.jit
def value_of(key):
    """Map a key back to float32."""
    return (key ^ ((key >> 31) & INT32_MAX)).to(tl.float32, bitcast=True)


# Weights and scaled logits of a row: ``exp((x - max x) / T)`` and ``(x - max x) / T``. Reads and writes nothing.

LOG2_E = tl.constexpr(1.4426950408889634)
COARSEST_OFFSET = tl.constexpr(16777216.0)
"""Magnitude from which float32 values are 2 apart: a rounded offset is too inaccurate there."""
_MIN_SCALE = tl.constexpr(1e-30)
"""Least scale: below it, at huge temperatures, an offset times the scale may lose all its bits."""
_TINY_FACTOR = tl.constexpr(18446744073709551616.0)
"""2 ** 64: a negative scale represents its magnitude times this factor."""


@triton.jit
def times(distance, scale):
    """Return ``distance * scale``; a negative scale represents ``-scale * 2 ** 64``, which may exceed float32."""
    return distance * tl.where(scale < 0, _TINY_FACTOR, 1.0) * tl.abs(scale)


@triton.jit
def steady(max_logit, scale):
    """Return 1 if ``exp2(x * scale - max_logit * scale)``, one multiplication a logit, is an accurate weight."""
    return (tl.abs(max_logit * scale) < COARSEST_OFFSET).to(tl.int32) * (scale > _MIN_SCALE).to(tl.int32)


@triton.jit
def exp2(x, IS_NVIDIA: tl.constexpr):
    """Return ``2 ** x`` to 2 ulp, subnormal results as 0."""
    if IS_NVIDIA:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(x)


@triton.jit
def weigh(x, max_logit, scale):
    """Return ``exp((x - top) / T)``, 0 for -inf; ``max_logit`` is finite, ``scale`` is ``log2(e) / T``."""
    finite = x > float("-inf")
    return tl.where(finite, tl.exp2(times(tl.where(finite, x, max_logit) - max_logit, scale)), 0.0)


@triton.jit
def scaled(x, max_logit, inverse, FP64: tl.constexpr):
    """Return ``(x - max_logit) / T``: 0 at the maximum, even an infinite one, and -inf where x is -inf.

    :param inverse: ``1 / T`` as :func:`times` takes it.
    """
    is_below_max = (x < max_logit) & (x > float("-inf"))
    shift = tl.where(max_logit < float("inf"), max_logit, 0.0)
    if FP64:
        y = times(
            tl.where(is_below_max, x, shift).to(tl.float64) - shift.to(tl.float64), inverse.to(tl.float64)
        )
    else:
        y = times(tl.where(is_below_max, x, shift) - shift, inverse)
    extreme = tl.where(x == max_logit, 0.0, float("-inf")).to(y.dtype)
    return tl.where(max_logit < float("inf"), tl.where(is_below_max, y, extreme), extreme)


@triton.jit
def lowest_kept(max_logit, temperature, min_p, floor):
    """Return the least float32 that min-p and a floor in y keep; -inf without both.

    :param temperature: float64, like ``min_p``, which is 0 if off.
    :param floor: float32, at most 0: keep ``(x - max_logit) / temperature >= floor``; -inf if off.
    """
    lowest = tl.full((), float("-inf"), tl.float32)
    y = floor.to(tl.float64)
    if min_p > 0:
        y = tl.maximum(y, tl.log(min_p))
    if y > float("-inf"):
        # The product of 0 would be NaN at an infinite temperature.
        limit = max_logit.to(tl.float64) + tl.where(y < 0, temperature * y, 0.0)
        lowest = limit.to(tl.float32)
        # x >= exact is the same as x >= the next float32 that is not below exact
        if (lowest.to(tl.float64) < limit).to(tl.int32) * (lowest > float("-inf")).to(tl.int32) > 0:
            lowest = value_of(key_of(lowest) + 1)
    return lowest


# Divides a row into tiles of 1024 ids, each of 16 granules of 64.
#
# A warp owns a tile, and a block of tiles has the dimensions [lane, tile, chunk, vector], in the order in which the
# compiler hands out lanes, warps and registers: so every reduction of a tile stays in registers and shuffles. A
# granule is what four neighbouring lanes hold of one half of the tile: runs of four vectors, one of every chunk of
# that half. Four vectors are the 64 bytes that memory is read in.

TILE_SIZE = tl.constexpr(1024)
"""Ids a tile."""
GRANULES_PER_TILE = tl.constexpr(16)
GRANULE_SIZE = tl.constexpr(64)
"""Ids a granule."""
GRANULE_LANES = tl.constexpr(4)
"""Neighbouring lanes that hold a granule."""
GRANULES_PER_HALF = tl.constexpr(8)
"""Granules of the first half of a tile, which come before those of the second."""
LANES = tl.constexpr(32)
"""Threads of a tile; on AMD too, where 32 threads are half a wavefront."""
VECTORS = {"float32": 4, "bfloat16": 8, "float16": 8}
"""Neighbouring logits a lane, 16 bytes, by dtype. Fixed: it decides the logits of a granule."""


@triton.jit
def element_ids(SPAN: tl.constexpr, VECTOR: tl.constexpr):
    """Return the ids within ``SPAN`` neighbouring tiles: [LANES, SPAN, chunks, VECTOR]."""
    lane = tl.arange(0, LANES)[:, None, None, None]
    tile = tl.arange(0, SPAN)[None, :, None, None]
    chunk = tl.arange(0, TILE_SIZE // (LANES * VECTOR))[None, None, :, None]
    element = tl.arange(0, VECTOR)[None, None, None, :]
    return tile * TILE_SIZE + chunk * (LANES * VECTOR) + lane * VECTOR + element


@triton.jit
def granule_ids(granule, element, VECTOR: tl.constexpr):
    """Return the id of an element in [0, 64) of a granule."""
    RUN: tl.constexpr = GRANULE_LANES * VECTOR
    first = (granule // GRANULES_PER_HALF) * (TILE_SIZE // 2) + (granule % GRANULES_PER_HALF) * RUN
    return first + (element // RUN) * (LANES * VECTOR) + element % RUN


@triton.jit
def lane_sums(block):
    """Sum [LANES, SPAN, chunks, VECTOR] to [LANES, SPAN]."""
    return tl.sum(tl.sum(block, 3), 2)


@triton.jit
def tile_sums(block):
    """Sum [LANES, SPAN, chunks, VECTOR] to [SPAN]."""
    return tl.sum(lane_sums(block), 0)


# Reads rows that begin at any address in vectors of 16 bytes at multiples of 16: two of them hold a vector of the
# row.
#
# The second of a lane is the first of the next lane, so the memory is read once and the L1 twice. How far the words of
# a lane are moved is a number of the row, so one kernel serves every address; the ids of a lane and the order of every
# sum are those of an aligned row, so the same row has the same maxima, sums and tokens at every address, bit for bit.
# Of the memory around a row only the vector that holds its first logit is read, in which an allocation cannot begin;
# the last vector is read word by word, and half a word at the end as one logit. Where ``IS_ALIGNED``, nothing of this
# is compiled.

WORDS = tl.constexpr(4)
"""Words of 32 bits in a vector of 16 bytes."""


@triton.jit
def word_ids(SPAN: tl.constexpr, VECTOR: tl.constexpr):
    """Return the words of :func:`element_ids`: [LANES, SPAN, chunks, WORDS]."""
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


# Finds the least kept logit of a row from a bound: what a call reports as the row's threshold.
#
# Reads 4 bytes a tile and one tile of logits, mostly. A row that keeps nearly all of its logits is read up to the
# first tile with a dropped one; where the bound is no logit of the row, the entire row is read once more.

_AT_ONCE = tl.constexpr(4096)
"""Logits compared at once where the entire row is read: fewer would wait for the memory more often."""


@triton.jit
def _any_dropped(x, bound):
    return tl.max(((x > float("-inf")) & (x < bound)).to(tl.int32), 0)


@triton.jit(noinline=True)
def least_reaching(source, bound):
    """Return the least logit of a row from ``bound`` upwards that is above -inf; +inf without one. Reads the row."""
    lowest = tl.full((_AT_ONCE,), float("inf"), tl.float32)
    start = 0
    while start < source.vocab_size:
        i = start + tl.arange(0, _AT_ONCE)
        x = tl.load(source.base + i, mask=i < source.vocab_size, other=float("-inf")).to(tl.float32)
        lowest = tl.minimum(lowest, tl.where((x >= bound) & (x > float("-inf")), x, float("inf")))
        start += _AT_ONCE
    return tl.min(lowest, 0)


@triton.jit(noinline=True)
def least_kept(source, maxima, tiles, bound, is_value):
    """Return the least logit that reaches a bound, or -inf if every logit above -inf does.

    :param source: the :class:`~.rows.RowAddress`; ``maxima`` [tiles] float32 of the row, in memory.
    :param bound: reached by some logit, and above -inf.
    :param is_value: 1 if a logit of the row equals the bound, else 0.
    """
    least = bound
    if is_value == 0:
        least = least_reaching(source, bound)
    is_dropped = tl.full((), 0, tl.int32)
    tile = 0
    while (tile < tiles).to(tl.int32) * (1 - is_dropped) > 0:
        maximum = tl.load(maxima + tile)
        if maximum < bound:
            is_dropped = (maximum > float("-inf")).to(tl.int32)
        if maximum >= bound:
            i = tile * TILE_SIZE + tl.arange(0, TILE_SIZE)
            x = tl.load(source.base + i, mask=i < source.vocab_size, other=float("-inf")).to(tl.float32)
            is_dropped = _any_dropped(x, bound)
        tile += 1
    return tl.where(is_dropped > 0, least, float("-inf"))
