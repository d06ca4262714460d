"""Finds and sorts the candidates for the N best logits of a row, for an N above what comparing all with all serves.

Reads the maxima of all granules, the granules that reach a bound on the N-th value, and the candidates among their
logits. Writes, as scratch, a list of granules and one of candidates.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logprobs.best_candidates import (
    bound_by_maxima,
    group_maxima,
    order_key,
    search_edge,
)
from tokendraw_triton_gumbel.kernels.row_draw.candidates import (
    list_candidates,
    list_granules,
    load_candidates,
)
from tokendraw_triton_gumbel.kernels.shared.float_keys import INT32_MAX, LOWEST, value_of
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE


@triton.jit
def find_candidates(
    row, granules, tiles, granule_list, candidates, lowest, max_logit, n, config: tl.constexpr
):
    """List candidates, the logits from a bound upwards; return (their number, the value whose ties fill up to N).

    The value is -inf where the candidates contain the N best, or all logits that are shown.

    :param granules: [tiles, 16] maxima; ``granule_list`` [tiles * 16] int32 of scratch.
    :param candidates: [CANDIDATES] int32 of scratch, written for :func:`sort_candidates`.
    :param lowest: the least logit that is shown.
    :param config: :class:`~..shared.configs.LogprobsConfig`.
    """
    CANDIDATES: tl.constexpr = config.CANDIDATES
    AT_ONCE: tl.constexpr = config.GRANULES_AT_ONCE
    num_granules = tiles * GRANULES_PER_TILE
    maxima = group_maxima(granules, num_granules, config.MAXIMA, config.GRANULES)
    low = bound_by_maxima(maxima, max_logit, n)
    # The least maximum is a guess where fewer than N are finite: more logits than maxima reach it.
    least = tl.min(tl.where(maxima > float("-inf"), maxima, float("inf")), 0)
    lowest = tl.maximum(lowest, LOWEST)
    low = tl.maximum(tl.where(low > float("-inf"), low, least), lowest)
    tied_value = tl.full((), float("-inf"), tl.float32)
    num_candidates = tl.zeros((), tl.int32)
    is_searching = tl.full((), 1, tl.int32)
    while is_searching > 0:
        count = list_granules(granules, tiles, low, granule_list, num_granules)
        num_candidates = list_candidates(
            row, granule_list, count, low, candidates, config.VECTOR, CANDIDATES, AT_ONCE
        )
        if num_candidates > CANDIDATES:
            low, tied_value = search_edge(
                row, granule_list, count, low, max_logit, n, config.VECTOR, CANDIDATES, AT_ONCE
            )
            tl.debug_barrier()  # all threads have read the list
        else:
            is_complete = (num_candidates >= n) | (low <= lowest) | (tied_value > float("-inf"))
            is_searching = 1 - is_complete.to(tl.int32)
            low = lowest
    return num_candidates, tied_value


@triton.jit
def sort_candidates(row, candidates, num_candidates, VECTOR: tl.constexpr, CANDIDATES: tl.constexpr):
    """Return logits and ids of the candidates [CANDIDATES] in descending order, the lowest id first on a tie."""
    x, token = load_candidates(row.base, candidates, num_candidates, VECTOR, CANDIDATES)
    key = tl.sort(order_key(x, token), descending=True)
    return value_of((key >> 32).to(tl.int32)), (key & INT32_MAX) ^ INT32_MAX
