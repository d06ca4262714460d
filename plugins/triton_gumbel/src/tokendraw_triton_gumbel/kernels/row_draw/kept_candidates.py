"""Finds the candidates that the filters keep. No sort, and ties are kept by construction.

All candidates are compared with each other: each gets the count and the mass of the strictly greater ones.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.comparisons import exceeds
from tokendraw_triton_gumbel.kernels.shared.float_keys import LARGEST
from tokendraw_triton_gumbel.kernels.shared.weights import weigh


@triton.jit
def _counts_whole_row(filters):
    """Return whether top-p counts the mass of all tokens: no other filter comes first, or the order is joint."""
    num_filters = (filters.k > 0).to(tl.int32) + (filters.floor > float("-inf")).to(tl.int32)
    return num_filters * (filters.joint == 0).to(tl.int32) == 0


@triton.jit
def _mass_above(x, others, weights, BY_FACTORS: tl.constexpr):
    """Return (number of greater values in ``others``, their mass), for each x."""
    greater = exceeds(others[:, None], x[None, :], BY_FACTORS)
    return tl.sum(greater, 0), tl.sum(greater * weights[:, None], 0)


@triton.jit
def _weigh_once(x, max_logit, scale, BY_FACTORS: tl.constexpr):
    """Return (x, its weight), from a loop of one turn: all readers share the results."""
    values, weight = x, x
    turn = 0
    while turn < 1:
        if BY_FACTORS:
            values = tl.minimum(x, LARGEST)  # otherwise each reader would convert bfloat16 again
        weight = weigh(x, max_logit, scale)
        turn += 1
    return values, weight


@triton.jit
def _halves(x, N: tl.constexpr):
    """Return the first half of x, and the second."""
    return tl.split(tl.trans(tl.reshape(x, (2, N // 2))))


@triton.jit
def keep_by_comparison(x, num_candidates, scale, filters, N: tl.constexpr, BY_FACTORS: tl.constexpr):
    """Return a mask of the kept candidates, [N], by comparing every candidate with all others.

    :param BY_FACTORS: whether to compare by factors: fewer instructions and more registers. NVIDIA.
    """
    x, weight = _weigh_once(x, scale.max_logit, scale.scale, BY_FACTORS)
    first_half, last_half = _halves(x, N)
    first_weight, last_weight = _halves(weight, N)
    count_above, mass_above = _mass_above(x, first_half, first_weight, BY_FACTORS)
    if num_candidates > N // 2:
        last_count, last_mass = _mass_above(x, last_half, last_weight, BY_FACTORS)
        count_above += last_count
        mass_above += last_mass
    k = filters.k
    kept = (x > float("-inf")) & (count_above < tl.where(k > 0, k, N).to(tl.float32)) & (x >= filters.floor)
    if filters.p < 1:
        total_mass = scale.mass
        if _counts_whole_row(filters) == 0:
            total_mass = tl.sum(tl.where(kept, weight, 0.0), 0)
        kept = kept & (
            (mass_above < (filters.p * total_mass.to(tl.float64)).to(tl.float32)) | (count_above == 0)
        )
    return kept
