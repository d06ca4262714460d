"""The random numbers of the contract, inside a kernel: see :mod:`tokendraw.philox`.

Reads and writes nothing. Philox comes from Triton itself; what follows it keeps every bit that decides a draw.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.row_params import DRAFT

TOKEN = tl.constexpr(0)
TILE = tl.constexpr(1)
"""The streams of the draw."""
ACCEPT = tl.constexpr(2)
RESIDUAL_TOKEN = tl.constexpr(3)
RESIDUAL_TILE = tl.constexpr(4)
XTC = tl.constexpr(7)
_DRAFTS = tl.constexpr(5)
"""Offset from a stream of the draw to the same stream of the draft's draw."""
_HALF_32 = tl.constexpr(0x80000000)
_LAST_32 = tl.constexpr(0xFFFFFFFF)
_HALF_53 = tl.constexpr(1 << 52)
_LAST_53 = tl.constexpr((1 << 53) - 1)
_ULP_32 = tl.constexpr(2.3283064365386963e-10)
"""2 ** -32: from 32 random bits to a number below 1."""
_ULP_53 = tl.constexpr(1.1102230246251565e-16)
"""2 ** -53."""
_BELOW_ONE = tl.constexpr(0.9999999999999999)


@triton.jit
def streams_of(flags):
    """Return the streams of a draw: (for tokens, for tiles)."""
    first = ((flags & DRAFT) != 0).to(tl.int32) * _DRAFTS
    return first + TOKEN, first + TILE


@triton.jit
def _words(key, index, stream):
    c0 = index.to(tl.uint32, bitcast=True)
    zero = c0 * 0
    c1 = zero + key.position.to(tl.uint32)  # the low words: integers are cut, not saturated
    c2 = zero + (key.position >> 32).to(tl.uint32)
    c3 = zero + stream
    k0 = zero + key.seed.to(tl.uint32)
    k1 = zero + (key.seed >> 32).to(tl.uint32)
    w0, w1, _, _ = tl.philox_impl(c0, c1, c2, c3, k0, k1)
    return w0, w1


@triton.jit
def _bits_53(w0, w1):
    return (w0.to(tl.uint64) << 21) | (w1.to(tl.uint64) >> 11)


@triton.jit
def uniform(key, index, stream, FP64: tl.constexpr):
    """Return uniform variates in (0, 1) at (seed, position, index, stream): float64, from 32 bits or from 53.

    :param key: of int64 blocks.
    :param index: int32 block.
    """
    w0, w1 = _words(key, index, stream)
    if FP64:
        u = (_bits_53(w0, w1).to(tl.float64) + 0.5) * _ULP_53
    else:
        u = (w0.to(tl.float64) + 0.5) * _ULP_32
    return tl.minimum(u, _BELOW_ONE)  # a sum with too many bits rounds up


@triton.jit
def gumbel(key, index, stream, FP64: tl.constexpr):
    """Return Gumbel variates at (seed, position, index, stream): float32, or float64 from 53 bits.

    :param key: of int64 scalars.
    :param index: int32 block.
    """
    w0, w1 = _words(key, index, stream)
    if FP64:
        bits = _bits_53(w0, w1)
        lower = bits < _HALF_53
        distance = (tl.where(lower, bits, _LAST_53 - bits).to(tl.float64) + 0.5) * _ULP_53
    else:
        lower = w0 < _HALF_32
        distance = (tl.where(lower, w0, _LAST_32 - w0).to(tl.float32) + 0.5) * _ULP_32
    # u itself below one half, 1 - u above it: the exponential variate is -log1p(-u) there and -log(1 - u) here. Below,
    # log(w) * u / (1 - w) undoes the rounding of w = 1 - u, to a few ulp (Kahan).
    w = tl.where(lower, 1.0 - distance, distance)
    exponential = -tl.log(w)
    exponential *= tl.where(lower & (w < 1.0), distance / tl.where(lower & (w < 1.0), 1.0 - w, 1.0), 1.0)
    exponential = tl.where(w == 1.0, distance, exponential)
    return -tl.log(exponential)
