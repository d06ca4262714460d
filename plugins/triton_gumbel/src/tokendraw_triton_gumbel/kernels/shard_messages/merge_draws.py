"""Launch M: the token of a row from what all ranks drew, as :mod:`tokendraw.vocab_parallel.merging` defines it.

Reads the words of all ranks, and the parts of tiles that lie on several. Writes 9 bytes a row. One program a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shard_messages.words import distance, load_float, load_score, row_words
from tokendraw_triton_gumbel.kernels.shared.float_keys import INT32_MAX
from tokendraw_triton_gumbel.kernels.shared.noise import TILE, gumbel
from tokendraw_triton_gumbel.kernels.shared.row_params import TEMPERED, noise_key, slot_of
from tokendraw_triton_gumbel.kernels.shared.temperature import shown_temperature


@triton.jit(do_not_specialize=["sizes", "fields", "shared_sizes", "flags"])
def merge_draws(words, sizes, fields, shared, shared_sizes, row_params, flags, out, config: tl.constexpr):
    """One program merges one row. The groups are those of :mod:`.argument_groups`.

    :param words: [ranks, rows, width] int32.
    :param sizes: :class:`~.argument_groups.Sizes`; ``fields`` :class:`~.argument_groups.DrawFields`.
    :param shared: :class:`~.argument_groups.SharedTiles`; ``shared_sizes`` :class:`~.argument_groups.SharedSizes`.
    :param row_params: :class:`~..shared.argument_groups.RowParams`; ``flags`` say which of them are there.
    :param out: :class:`~.argument_groups.MergedDraws`.
    :param config: :class:`~..shared.configs.MergeConfig`.
    """
    row = tl.program_id(0)
    rank = tl.arange(0, config.RANKS)
    there = rank < sizes.ranks
    place = row_words(words, sizes, rank, row)
    maximum = load_float(place + fields.max, there)
    has_nan = tl.max(tl.load(place + fields.has_nan, mask=there, other=0), 0)
    ids = tl.load(place + fields.ids, mask=there, other=INT32_MAX)
    top = tl.max(maximum, 0)
    token = tl.min(tl.where(maximum == top, ids, INT32_MAX), 0)
    if config.DRAWN:
        slot = slot_of(row, flags, row_params)
        _, inverse, greedy = shown_temperature(row_params.temperature, slot, TEMPERED)
        score = load_score(place + fields.score, there, config.FP64)
        score += _shift(maximum, top, inverse, fields.is_relative)
        best = tl.max(score, 0)
        if config.SHARED > 0:
            key = noise_key(row, slot, flags, row_params)
            shared_score, shared_ids = _shared_tiles(
                words, sizes, fields, shared, shared_sizes, row, top, inverse, key, config
            )
            best = tl.maximum(best, tl.max(shared_score, 0))
            drawn = tl.min(tl.where(shared_score == best, shared_ids, INT32_MAX), 0)
            drawn = tl.minimum(drawn, tl.min(tl.where(there & (score == best), ids, INT32_MAX), 0))
        else:
            drawn = tl.min(tl.where(there & (score == best), ids, INT32_MAX), 0)
        token = tl.where(greedy, token, drawn)
    some = top > float("-inf")
    token = tl.where(some, tl.minimum(tl.maximum(token, 0), sizes.vocab_size - 1), 0)
    tl.store(out.token_ids + row, token.to(tl.int64))
    tl.store(out.valid + row, some.to(tl.int32) * (has_nan == 0).to(tl.int32) > 0)


@triton.jit
def _shift(maximum, top, inverse, is_relative):
    """Return what makes scores relative to the largest value of the row."""
    return tl.where(is_relative > 0, distance(maximum, top, inverse), 0.0)


@triton.jit
def _shared_tiles(words, sizes, fields, shared, shared_sizes, row, top, inverse, key, config: tl.constexpr):
    """Return the scores of the tiles that several ranks hold parts of, and the best token of each: [SHARED]."""
    SHARED: tl.constexpr = config.SHARED
    PARTS: tl.constexpr = config.PARTS
    REAL_WORDS: tl.constexpr = 2 if config.FP64 else 1
    number = tl.arange(0, SHARED)
    is_tile = number < shared_sizes.count
    column = tl.arange(0, PARTS)[None, :]
    is_listed = is_tile[:, None] & (column < shared_sizes.most)
    listed = number[:, None] * shared_sizes.most + column
    part = tl.load(shared.parts + listed, mask=is_listed, other=2 * sizes.ranks).to(tl.int32)
    there = part < 2 * sizes.ranks
    part = tl.where(there, part, 0)
    place = row_words(words, sizes, part // 2, row)
    side = part % 2
    shift = _shift(load_float(place + fields.max, there), top, inverse, fields.is_relative)
    log_sum = load_score(place + fields.log_sum + side * REAL_WORDS, there, config.FP64) + shift
    score = load_score(place + fields.key + side * REAL_WORDS, there, config.FP64) + shift
    ids = tl.load(place + fields.ids + 1 + side, mask=there, other=INT32_MAX)
    largest = tl.max(log_sum, 1)
    origin = tl.where(largest > float("-inf"), largest, 0.0)
    log_weight = origin + tl.log(tl.sum(tl.exp(log_sum - origin[:, None]), 1))
    tile = tl.load(shared.tiles + number, mask=is_tile, other=0).to(tl.int32)
    # Parts come in the order of their ids, so that of equal keys the lowest id is the best.
    best_ids = tl.min(tl.where(there & (score == tl.max(score, 1)[:, None]), ids, INT32_MAX), 1)
    noise = gumbel(key, tile, TILE, config.FP64)
    return tl.where(is_tile, log_weight + noise, float("-inf")), best_ids
