"""The random numbers of the contract, inside a kernel: see :mod:`tokendraw.philox`.

Reads and writes nothing. Philox comes from Triton itself; what follows it keeps every bit that decides a draw.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.request import DRAFT

TOKEN = tl.constexpr(0)
TILE = tl.constexpr(1)
"""The streams of the draw."""
ACCEPT = tl.constexpr(2)
RESIDUAL_TOKEN = tl.constexpr(3)
RESIDUAL_TILE = tl.constexpr(4)
_DRAFTS = tl.constexpr(5)
"""From a stream of the draw to that of the draft's draw."""


@triton.jit
def streams_of(flags):
    """The streams of a draw: (of its tokens, of its tiles)."""
    first = ((flags & DRAFT) != 0).to(tl.int32) * _DRAFTS
    return first + TOKEN, first + TILE


@triton.jit
def _words(seed, position, index, stream):
    c0 = index.to(tl.uint32, bitcast=True)
    zero = c0 * 0
    c1 = zero + position.to(tl.uint32)  # the low words: integers are cut, not saturated
    c2 = zero + (position >> 32).to(tl.uint32)
    c3 = zero + stream
    k0 = zero + seed.to(tl.uint32)
    k1 = zero + (seed >> 32).to(tl.uint32)
    w0, w1, _, _ = tl.philox_impl(c0, c1, c2, c3, k0, k1)
    return w0, w1


@triton.jit
def uniform(seed, position, index, stream, FP64: tl.constexpr):
    """Uniform variates in (0, 1) at (seed, position, index, stream): float64, from 32 bits or from 53.

    :param seed: int64 block, like ``position``.
    :param index: int32 block.
    """
    w0, w1 = _words(seed, position, index, stream)
    if FP64:
        bits = (w0.to(tl.uint64) << 21) | (w1.to(tl.uint64) >> 11)
        u = (bits.to(tl.float64) + 0.5) * 1.1102230246251565e-16
    else:
        u = (w0.to(tl.float64) + 0.5) * 2.3283064365386963e-10
    return tl.minimum(u, 0.9999999999999999)  # where the sum takes a bit too many, it rounds up


@triton.jit
def gumbel(seed, position, index, stream, FP64: tl.constexpr):
    """Gumbel variates at (seed, position, index, stream).

    :param seed: int64 scalar.
    :param position: int64 scalar.
    :param index: int32 block.
    :returns: a block of float32, or of float64 from 53 bits.
    """
    w0, w1 = _words(seed, position, index, stream)
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
