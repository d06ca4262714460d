"""The random numbers of the contract, inside a kernel: see :mod:`tokendraw.philox`.

Reads and writes nothing. Philox comes from Triton itself; what follows it keeps every bit that decides a draw.
"""

from __future__ import annotations

import triton
import triton.language as tl

TOKEN = tl.constexpr(0)
TILE = tl.constexpr(1)
"""The streams of the draw."""


@triton.jit
def gumbel(seed, position, index, stream: tl.constexpr, FP64: tl.constexpr):
    """Gumbel variates at (seed, position, index, stream).

    :param seed: int64 scalar.
    :param position: int64 scalar.
    :param index: int32 block.
    :returns: a block of float32, or of float64 from 53 bits.
    """
    c0 = index.to(tl.uint32, bitcast=True)
    zero = c0 * 0
    c1 = zero + position.to(tl.uint32)  # the low words: integers are cut, not saturated
    c2 = zero + (position >> 32).to(tl.uint32)
    c3 = zero + stream
    k0 = zero + seed.to(tl.uint32)
    k1 = zero + (seed >> 32).to(tl.uint32)
    w0, w1, _, _ = tl.philox_impl(c0, c1, c2, c3, k0, k1)
    if FP64:
        bits = (w0.to(tl.uint64) << 21) | (w1.to(tl.uint64) >> 11)
        lower = bits < (1 << 52)
        distance = (tl.where(lower, bits, (1 << 53) - 1 - bits).to(tl.float64) + 0.5) * 1.1102230246251565e-16
    else:
        lower = w0 < 0x80000000
        distance = (tl.where(lower, w0, 0xFFFFFFFF - w0).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    # u itself below one half, 1 - u above it: the exponential variate is -log1p(-u) there and -log(1 - u) here. Below,
    # log(w) * u / (1 - w) undoes the rounding of w = 1 - u, to a few ulp (Kahan).
    w = tl.where(lower, 1.0 - distance, distance)
    exponential = -tl.log(w)
    exponential *= tl.where(lower & (w < 1.0), distance / tl.where(lower & (w < 1.0), 1.0 - w, 1.0), 1.0)
    exponential = tl.where(w == 1.0, distance, exponential)
    return -tl.log(exponential)
