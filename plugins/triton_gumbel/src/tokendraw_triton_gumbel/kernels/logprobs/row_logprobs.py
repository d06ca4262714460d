"""Computes one row's log-probabilities, and its N best without a sort of the row.

A granule is 64 logits of one tile; launch 1 wrote the maximum of each. The N best lie in granules that reach a bound on
the N-th value, so about N granules are read. Candidates are the logits that reach the bound; comparing each with all
others gives its rank. For a large N, they are sorted.

If more logits reach the bound, by ties or because the best lie close together, the listed granules are read again: a
search by 8 pivots at a time ends at that many candidates or at the N-th value itself, whose ties are then taken in the
order of their ids, from tile to tile. At most 11 rounds; ties of the bound itself take one.

Writes the result, and as scratch a list of granules and the candidates, which it reads back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logprobs.best_candidates import (
    bound_by_maxima,
    collect_best,
    fill_ties,
    group_maxima,
    order_candidates,
    search_edge,
)
from tokendraw_triton_gumbel.kernels.logprobs.mode_values import row_scale, visible_of_token, visible_value
from tokendraw_triton_gumbel.kernels.logprobs.sorted_candidates import find_candidates, sort_candidates
from tokendraw_triton_gumbel.kernels.row_draw.bounds import bound_by_tiles
from tokendraw_triton_gumbel.kernels.row_draw.candidates import list_granules
from tokendraw_triton_gumbel.kernels.shared.float_keys import LOWEST
from tokendraw_triton_gumbel.kernels.shared.row_values import RowAddress
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE


class RequestedLogprobs(NamedTuple):
    """The parameters of the rows."""

    temperature: Any
    """[slots] floating point, or None."""
    row_index: Any
    """[rows] integer: the slot of each row, or None."""
    num_logprobs: Any
    """[slots] integer: how many of the N each row asked for; below 0: all. Or None."""


class RowDraws(NamedTuple):
    """The results of the draw for each row."""

    token_ids: Any
    """[rows] int64."""
    maxima: Any
    """[rows, tiles] float32, like ``sums``: the statistics by which the mode normalises."""
    sums: Any
    threshold: Any
    """[rows] float32: logits with ``x >= threshold`` are kept; and ``log_kept`` [rows] float32."""
    log_kept: Any
    ceiling: Any
    """[rows] float32, like ``log_masses``, of :class:`~..kept_interval.argument_groups.KeptInterval`; None unless the
    values are shares of what is kept."""
    log_masses: Any


class LogprobScratch(NamedTuple):
    """Scratch of each row."""

    granules: Any
    """[rows, tiles * 16] int32."""
    candidates: Any
    """[rows, CANDIDATES]: keys int64, or places int32 where candidates are sorted."""


class BestTokens(NamedTuple):
    """The result."""

    ids: Any
    """[rows, 1 + N] int64."""
    logprobs: Any
    """[rows, 1 + N] float32."""


@triton.jit(
    do_not_specialize=["tiles", "width", "flags"],
    # Scalar reads and writes, or at addresses without alignment.
    do_not_specialize_on_alignment=["requested", "draws", "out"],
)
def row_logprobs(
    logits,
    tiles,
    width,
    requested,
    draws,
    granules,
    scratch,
    out,
    flags,
    config: tl.constexpr,
):
    """Each program computes the log-probabilities of one row: the drawn token's, and the N best.

    :param logits: :class:`~.argument_groups.Logits`.
    :param width: N, at most ``WIDTH``.
    :param requested: :class:`RequestedLogprobs`; ``draws`` :class:`RowDraws`.
    :param granules: [rows, tiles, 16] of the logits' dtype: the maxima of the granules.
    :param scratch: :class:`LogprobScratch`; ``out`` :class:`BestTokens`.
    :param flags: what the mode shows of logits: see :mod:`.row_params`.
    :param config: :class:`~.configs.LogprobsConfig`.
    """
    TILES: tl.constexpr = config.TILES
    row = tl.program_id(0).to(tl.int64)
    slot = row
    if requested.row_index is not None:
        slot = tl.load(requested.row_index + row).to(tl.int64)
    num_requested = width
    if requested.num_logprobs is not None:
        num_requested = tl.load(requested.num_logprobs + slot).to(tl.int32)
    source = RowAddress(logits.base + row * logits.row_stride, logits.vocab_size)
    ids = out.ids + row * (1 + width)
    values = out.logprobs + row * (1 + width)
    token = tl.load(draws.token_ids + row)
    tile = tl.arange(0, TILES)
    inside = tile < tiles
    maximum = tl.load(draws.maxima + row * tiles + tile, mask=inside, other=float("-inf"))
    n = tl.minimum(width, logits.vocab_size)
    n = tl.where((num_requested >= 0) & (num_requested < n), num_requested, n).to(tl.int32)
    sums = tl.load(draws.sums + row * tiles + tile, mask=inside, other=0.0)
    max_logit, inverse, shift, lowest, greedy = row_scale(
        maximum, sums, draws, row, requested.temperature, slot, flags
    )
    token_logprob = visible_of_token(source.base, token, max_logit, inverse, shift, lowest, greedy, flags)
    tl.store(ids, token)
    tl.store(values, token_logprob)

    # A greedy row has one token, so its N best are known; other rows need a search.
    num_searched = tl.where(greedy, 0, n)
    if num_searched > 0:
        granules += row * tiles * GRANULES_PER_TILE
        candidates = scratch.candidates + row * config.CANDIDATES
        granule_list = scratch.granules + row * tiles * GRANULES_PER_TILE
        if config.IS_SORTED:
            num_candidates, tied_value = find_candidates(
                source, granules, tiles, granule_list, candidates, lowest, max_logit, num_searched, config
            )
            candidate, id_of = sort_candidates(
                source, candidates, num_candidates, config.VECTOR, config.CANDIDATES
            )
            rank = tl.arange(0, config.CANDIDATES)
        else:
            num_candidates, tied_value = _collect_candidates(
                source,
                granules,
                tiles,
                maximum,
                granule_list,
                candidates,
                lowest,
                max_logit,
                num_searched,
                config,
            )
            candidate, id_of, rank = order_candidates(candidates, num_candidates, config.CANDIDATES)
        value = visible_value(candidate, max_logit, inverse, shift, lowest, flags)
        is_best = (tl.arange(0, config.CANDIDATES) < num_candidates) & (rank < num_searched)
        tl.store(ids + 1 + rank, id_of, mask=is_best)
        tl.store(values + 1 + rank, value, mask=is_best)
        if num_candidates < num_searched:
            edge = visible_value(tied_value, max_logit, inverse, shift, lowest, flags)
            best_out = BestTokens(ids + 1, values + 1)
            fill_ties(
                source,
                maximum,
                tiles,
                tied_value,
                lowest,
                num_candidates,
                num_searched,
                edge,
                best_out,
                TILES,
            )
    rank = tl.arange(0, config.WIDTH)
    if num_searched < n:
        other_ids = rank - (rank <= token).to(tl.int32)
        greedy_ids = tl.where(rank == 0, token, other_ids.to(tl.int64))
        tl.store(ids + 1 + rank, greedy_ids, mask=rank < n)
        tl.store(values + 1 + rank, tl.where(rank == 0, token_logprob, float("-inf")), mask=rank < n)
    is_padding = (rank >= n) & (rank < width)
    tl.store(ids + 1 + rank, tl.full((config.WIDTH,), -1, tl.int64), mask=is_padding)
    tl.store(values + 1 + rank, tl.full((config.WIDTH,), float("-inf"), tl.float32), mask=is_padding)


@triton.jit
def _collect_candidates(
    source, granules, tiles, maximum, granule_list, keys, lowest, max_logit, n, config: tl.constexpr
):
    """Write the keys of candidates, as :func:`.sorted_candidates.find_candidates` lists them; return the same."""
    low = tl.maximum(_bound_of(granules, tiles, maximum, max_logit, n, config), lowest)
    low = tl.maximum(low, LOWEST)
    tied_value = tl.full((), float("-inf"), tl.float32)
    count = tl.zeros((), tl.int32)
    num_candidates = tl.zeros((), tl.int32)
    if tl.sum((maximum == max_logit).to(tl.int32), 0) * (max_logit > float("-inf")).to(tl.int32) >= n:
        tied_value = max_logit  # enough tiles hold the largest logit to fill the N best
    else:
        count = list_granules(granules, tiles, low, granule_list, tiles * GRANULES_PER_TILE)
        num_candidates = collect_best(
            source, granule_list, count, low, keys, config.VECTOR, config.CANDIDATES
        )
    if num_candidates > config.CANDIDATES:
        low, tied_value = search_edge(
            source, granule_list, count, low, max_logit, n, config.VECTOR, config.CANDIDATES
        )
        tl.debug_barrier()  # all threads have read the previous list
        count = list_granules(granules, tiles, low, granule_list, tiles * GRANULES_PER_TILE)
        num_candidates = collect_best(
            source, granule_list, count, low, keys, config.VECTOR, config.CANDIDATES
        )
    return num_candidates, tied_value


@triton.jit
def _bound_of(granules, tiles, maximum, max_logit, n, config: tl.constexpr):
    """Return a lower bound of the row's ``n``-th largest logit, or -inf."""
    if config.MAXIMA > 0:
        maxima = group_maxima(granules, tiles * GRANULES_PER_TILE, config.MAXIMA, config.GRANULES)
        low = bound_by_maxima(maxima, max_logit, n)
    else:
        finite = maximum > float("-inf")
        lowest = tl.min(tl.where(finite, maximum, float("inf")), 0)
        low = bound_by_tiles(maximum, max_logit, lowest, tl.sum(finite.to(tl.int32), 0), n, config.TILES)
    return low
