"""Lists keys of one row's N best, in any order, where N is too large for a program to order them.

Reads what :mod:`.row_logprobs` reads. Writes N or more keys, and the least key to the rest of the room.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logprobs.best_candidates import LOWEST_KEY, fill_ties, order_key
from tokendraw_triton_gumbel.kernels.logprobs.mode_values import lowest_visible
from tokendraw_triton_gumbel.kernels.logprobs.row_logprobs import BestTokens
from tokendraw_triton_gumbel.kernels.logprobs.sorted_candidates import find_candidates
from tokendraw_triton_gumbel.kernels.row_draw.candidates import load_candidates
from tokendraw_triton_gumbel.kernels.shared.row_params import PROCESSED
from tokendraw_triton_gumbel.kernels.shared.row_values import RowAddress
from tokendraw_triton_gumbel.kernels.shared.temperature import mode_temperature
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE

_KEYS_AT_ONCE = tl.constexpr(1024)


@triton.jit(
    do_not_specialize=["tiles", "n", "flags"],
    # Scalar reads, or at addresses without alignment.
    do_not_specialize_on_alignment=["requested", "draws"],
)
def list_best_keys(logits, tiles, n, requested, draws, granules, scratch, keys, flags, config: tl.constexpr):
    """Each program lists the keys of one row; of a greedy row none but the least key. Grid (rows).

    :param logits: :class:`~..shared.argument_groups.Logits`.
    :param n: N, at most V and CANDIDATES.
    :param requested: :class:`.row_logprobs.RequestedLogprobs`; ``draws`` :class:`.row_logprobs.RowDraws`, ``scratch``
        :class:`.row_logprobs.LogprobScratch`.
    :param granules: [rows, tiles, 16] of the logits' dtype: the maxima of the granules.
    :param keys: [rows, CANDIDATES] int64, written: see :func:`.best_candidates.order_key`.
    :param flags: what the mode shows of logits: see :mod:`~..shared.row_params`.
    :param config: :class:`~..shared.configs.LogprobsConfig`.
    """
    TILES: tl.constexpr = config.TILES
    row = tl.program_id(0).to(tl.int64)
    slot = row
    if requested.row_index is not None:
        slot = tl.load(requested.row_index + row).to(tl.int64)
    source = RowAddress(logits.base + row * logits.row_stride, logits.vocab_size)
    tile = tl.arange(0, TILES)
    maximum = tl.load(draws.maxima + row * tiles + tile, mask=tile < tiles, other=float("-inf"))
    max_logit = tl.max(maximum, 0)
    temperature, _, greedy = mode_temperature(requested.temperature, slot, flags)
    lowest = lowest_visible(max_logit, temperature, flags)
    if (flags & PROCESSED) != 0:
        lowest = tl.maximum(lowest, tl.load(draws.threshold + row))
    keys += row * config.CANDIDATES
    number = tl.zeros((), tl.int32)
    if greedy == 0:
        candidates = scratch.candidates + row * config.CANDIDATES
        granule_list = scratch.granules + row * tiles * GRANULES_PER_TILE
        granules += row * tiles * GRANULES_PER_TILE
        number, tied_value = find_candidates(
            source, granules, tiles, granule_list, candidates, lowest, max_logit, n, config
        )
        if number < n:
            # Ids first, then keys in their place.
            fill_ties(
                source, maximum, tiles, tied_value, lowest, number, n, 0.0, BestTokens(keys, None), TILES
            )
            tl.debug_barrier()
        start = tl.zeros((), tl.int32)
        while start < tl.maximum(number, n):
            i = start + tl.arange(0, _KEYS_AT_ONCE)
            x, token = load_candidates(
                source.base, candidates + start, number - start, config.VECTOR, _KEYS_AT_ONCE
            )
            is_tie = (i >= number) & (i < n)
            tied_id = tl.load(keys + i, mask=is_tie, other=0).to(tl.int32)
            key = order_key(tl.where(is_tie, tied_value, x), tl.where(is_tie, tied_id, token))
            tl.store(keys + i, key, mask=(i < number) | is_tie)
            start += _KEYS_AT_ONCE
        number = tl.maximum(number, n)
    while number < config.CANDIDATES:
        i = number + tl.arange(0, _KEYS_AT_ONCE)
        tl.store(keys + i, tl.full((_KEYS_AT_ONCE,), LOWEST_KEY, tl.int64), mask=i < config.CANDIDATES)
        number += _KEYS_AT_ONCE
