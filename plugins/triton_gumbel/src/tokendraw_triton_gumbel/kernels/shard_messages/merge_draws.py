"""The token of a row from the draws of all ranks, defined by :mod:`tokendraw.vocab_parallel.merging`.

Reads the words of all ranks, and the parts of shared tiles. Writes 9 bytes a row. One program a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shard_messages.words import distance, load_float, load_score, row_words
from tokendraw_triton_gumbel.kernels.shared.float_keys import INT32_MAX
from tokendraw_triton_gumbel.kernels.shared.noise import TILE, gumbel
from tokendraw_triton_gumbel.kernels.shared.row_params import TEMPERED, noise_key, slot_of
from tokendraw_triton_gumbel.kernels.shared.temperature import mode_temperature


@triton.jit(do_not_specialize=["sizes", "fields", "shared_sizes", "flags"])
def merge_draws(words, sizes, fields, shared, shared_sizes, row_params, flags, out, config: tl.constexpr):
    """Each program merges a row. :mod:`.argument_groups` defines the groups of arguments.

    :param words: [ranks, rows, width] int32.
    :param sizes: :class:`~.argument_groups.Sizes`; ``fields`` :class:`~.argument_groups.DrawFields`.
    :param shared: :class:`~.argument_groups.SharedTiles`; ``shared_sizes`` :class:`~.argument_groups.SharedSizes`.
    :param row_params: :class:`~..shared.argument_groups.RowParams`; ``flags`` say which of them are there.
    :param out: :class:`~.argument_groups.MergedDraws`.
    :param config: :class:`~..shared.configs.MergeConfig`.
    """
    row = tl.program_id(0)
    rank = tl.arange(0, config.RANKS)
    mask = rank < sizes.ranks
    pointers = row_words(words, sizes, rank, row)
    maximum = load_float(pointers + fields.max, mask)
    has_nan = tl.max(tl.load(pointers + fields.has_nan, mask=mask, other=0), 0)
    ids = tl.load(pointers + fields.ids, mask=mask, other=INT32_MAX)
    max_logit = tl.max(maximum, 0)
    token = tl.min(tl.where(maximum == max_logit, ids, INT32_MAX), 0)
    if config.MAY_SAMPLE:
        slot = slot_of(row, flags, row_params)
        _, inverse, greedy = mode_temperature(row_params.temperature, slot, TEMPERED)
        score = load_score(pointers + fields.score, mask, config.FP64)
        score += _shift(maximum, max_logit, inverse, fields.is_relative)
        best_score = tl.max(score, 0)
        if config.SHARED_TILES > 0:
            key = noise_key(row, slot, flags, row_params)
            shared_score, shared_ids = _shared_tiles(
                words, sizes, fields, shared, shared_sizes, row, max_logit, inverse, key, config
            )
            best_score = tl.maximum(best_score, tl.max(shared_score, 0))
            drawn_token = tl.min(tl.where(shared_score == best_score, shared_ids, INT32_MAX), 0)
            drawn_token = tl.minimum(
                drawn_token, tl.min(tl.where(mask & (score == best_score), ids, INT32_MAX), 0)
            )
        else:
            drawn_token = tl.min(tl.where(mask & (score == best_score), ids, INT32_MAX), 0)
        token = tl.where(greedy, token, drawn_token)
    has_tokens = max_logit > float("-inf")
    token = tl.where(has_tokens, tl.minimum(tl.maximum(token, 0), sizes.vocab_size - 1), 0)
    tl.store(out.token_ids + row, token.to(tl.int64))
    tl.store(out.valid + row, has_tokens.to(tl.int32) * (has_nan == 0).to(tl.int32) > 0)


@triton.jit
def _shift(maximum, max_logit, inverse, is_relative):
    """Return the offset from scores relative to a rank's maximum to scores relative to the row's."""
    return tl.where(is_relative > 0, distance(maximum, max_logit, inverse), 0.0)


@triton.jit
def _shared_tiles(
    words, sizes, fields, shared, shared_sizes, row, max_logit, inverse, key, config: tl.constexpr
):
    """Return the score and the best token of each tile that several ranks share: [SHARED_TILES] each."""
    SHARED_TILES: tl.constexpr = config.SHARED_TILES
    PARTS: tl.constexpr = config.PARTS
    REAL_WORDS: tl.constexpr = 2 if config.FP64 else 1
    index = tl.arange(0, SHARED_TILES)
    is_tile = index < shared_sizes.count
    column = tl.arange(0, PARTS)[None, :]
    is_listed = is_tile[:, None] & (column < shared_sizes.most)
    offset = index[:, None] * shared_sizes.most + column
    part = tl.load(shared.parts + offset, mask=is_listed, other=2 * sizes.ranks).to(tl.int32)
    mask = part < 2 * sizes.ranks
    part = tl.where(mask, part, 0)
    pointers = row_words(words, sizes, part // 2, row)
    side = part % 2
    shift = _shift(load_float(pointers + fields.max, mask), max_logit, inverse, fields.is_relative)
    log_sum = load_score(pointers + fields.log_sum + side * REAL_WORDS, mask, config.FP64) + shift
    score = load_score(pointers + fields.key + side * REAL_WORDS, mask, config.FP64) + shift
    ids = tl.load(pointers + fields.ids + 1 + side, mask=mask, other=INT32_MAX)
    largest = tl.max(log_sum, 1)
    origin = tl.where(largest > float("-inf"), largest, 0.0)
    log_weight = origin + tl.log(tl.sum(tl.exp(log_sum - origin[:, None]), 1))
    tile = tl.load(shared.tiles + index, mask=is_tile, other=0).to(tl.int32)
    # Parts come in the order of their ids, so that of equal keys the lowest id is the best.
    best_ids = tl.min(tl.where(mask & (score == tl.max(score, 1)[:, None]), ids, INT32_MAX), 1)
    noise = gumbel(key, tile, TILE, config.FP64)
    return tl.where(is_tile, log_weight + noise, float("-inf")), best_ids
