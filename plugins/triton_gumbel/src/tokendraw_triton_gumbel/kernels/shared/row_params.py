"""Loads the parameters of a row in the program that draws the row: a few scalars."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.row_values import NoiseKey

HAS_INDEX = tl.constexpr(1)
HAS_SEEDS = tl.constexpr(2)
HAS_SEEDED = tl.constexpr(4)
HAS_FRESH = tl.constexpr(8)
HAS_POSITIONS = tl.constexpr(16)
HAS_TOP_K = tl.constexpr(32)
HAS_TOP_P = tl.constexpr(64)
HAS_MIN_P = tl.constexpr(128)
HAS_JOINT = tl.constexpr(256)
"""The tensors of :class:`~.argument_groups.RowParams` in the call."""
EXACT = tl.constexpr(512)
"""The draw writes thresholds and kept masses, not just tokens."""
DRAFT = tl.constexpr(1024)
"""The draw is for a draft: its noise comes from streams of its own."""
RANKED = tl.constexpr(2048)
"""The draw sets ranks to 0, for a later launch that counts."""
OWN = tl.constexpr(4096)
"""The draw writes the drawn token's value in the logprobs mode."""
SCALED = tl.constexpr(8192)
NORMALISED = tl.constexpr(16384)
TEMPERED = tl.constexpr(32768)
PROCESSED = tl.constexpr(65536)
"""Steps that a logprobs mode applies to logits: subtract the largest, subtract the logarithm of the mass, divide by the
temperature, drop what the filters drop."""
SHOWN = tl.constexpr(131072)
"""A verification writes the token of each row, for its logprobs."""

LEAST_KEPT = tl.constexpr(262144)
"""The draw writes the least kept logit of each row of the target, beside exact thresholds."""
HAS_FLOOR = tl.constexpr(524288)
"""Rows may have floors from moments."""
ROW_EXACT = tl.constexpr(1048576)
"""Rows may need exact thresholds for a later launch, though the call does not."""
MANY_EXACT = tl.constexpr(2097152)
"""Most rows of large sets are expected to need exact thresholds."""


@triton.jit
def slot_of(row, flags, params):
    """Return the parameter slot of a row of logits."""
    slot = tl.load(params.row_index + row, mask=(flags & HAS_INDEX) != 0, other=0).to(tl.int64)
    return tl.where((flags & HAS_INDEX) != 0, slot, row.to(tl.int64))


@triton.jit
def noise_key(row, slot, flags, params):
    """Return the seed and the position of a row, or of a block of rows."""
    position = tl.load(params.positions + row, mask=(flags & HAS_POSITIONS) != 0, other=0).to(tl.int64)
    seed = tl.load(params.seeds + slot, mask=(flags & HAS_SEEDS) != 0, other=0).to(tl.int64)
    is_seeded = tl.load(params.seeded + slot, mask=(flags & HAS_SEEDED) != 0, other=1).to(tl.int32)
    is_seeded *= ((flags & HAS_SEEDS) != 0).to(tl.int32)
    fresh_seed = tl.load(params.fresh + row, mask=(flags & HAS_FRESH) != 0, other=0)
    return NoiseKey(tl.where(is_seeded != 0, seed, fresh_seed), position)


@triton.jit
def has_noise(slot, flags, params):
    """Return 1 if a row has a seed, of its own or a fresh one; a score makes no fresh seeds."""
    is_seeded = tl.load(params.seeded + slot, mask=(flags & HAS_SEEDED) != 0, other=1).to(tl.int32)
    is_seeded *= ((flags & HAS_SEEDS) != 0).to(tl.int32)
    return tl.maximum((is_seeded != 0).to(tl.int32), ((flags & HAS_FRESH) != 0).to(tl.int32))


@triton.jit
def load_filters(slot, vocab_size, flags, params):
    """Return (k in [1, V) or 0; p or 1, float64; min-p or 0, float64; whether the order is joint).

    What is out of range is off.
    """
    k = tl.load(params.top_k + slot, mask=(flags & HAS_TOP_K) != 0, other=0).to(tl.int64)
    k = tl.where((k > 0) & (k < vocab_size), k, 0)
    p = tl.load(params.top_p + slot, mask=(flags & HAS_TOP_P) != 0, other=1).to(tl.float64)
    p = tl.where(p < 1, p, 1.0)  # NaN is off
    m = tl.load(params.min_p + slot, mask=(flags & HAS_MIN_P) != 0, other=0).to(tl.float64)
    is_joint = tl.load(params.joint + slot, mask=(flags & HAS_JOINT) != 0, other=0) != 0
    return k, p, tl.where(m > 0, m, 0.0), is_joint
