"""Histograms of a rank's columns by 8 bits of the values' keys: see :mod:`tokendraw.vocab_parallel.radix`.

Reads 4 bytes a tile, and the logits of those tiles that may hold a value which counts. Adds integers, so that the
result does not depend on the order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.float_keys import key_of
from tokendraw_triton_gumbel.kernels.shared.row_address import is_inside
from tokendraw_triton_gumbel.kernels.shared.row_values import RowAddress
from tokendraw_triton_gumbel.kernels.shared.temperature import inverse_temperature
from tokendraw_triton_gumbel.kernels.shared.tile_layout import TILE_SIZE
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, share_of

TILES_AT_ONCE = 4
"""Tiles a program, one after the other."""
_SPAN = tl.constexpr(TILES_AT_ONCE)
_BINS = tl.constexpr(256)
_DIGIT_BITS = tl.constexpr(8)
_SIGN = tl.constexpr(-2147483648)
_TURNS = tl.constexpr(8)
"""Digits of a tile summed before the addition, probably the most frequent; values of other digits are added singly."""


@triton.jit(do_not_specialize=["shard", "rows", "step"])
def add_by_digit(
    logits, lead, shard, rows, step, slots, statistics, digit_filter, histogram, config: tl.constexpr
):
    """Each program adds some tiles of one row to its histogram. Grid (groups of tiles, rows / z, z).

    :param logits: :class:`~..shared.argument_groups.Logits`, whose ``vocab_size`` counts the columns with the lead.
    :param lead: of :class:`.argument_groups.Shard`. A separate argument, since the alignment of tiles depends on it.
    :param shard: :class:`.argument_groups.Shard`; ``step`` :class:`.argument_groups.Digit`, ``slots``
        :class:`.argument_groups.SlotTemperatures`, ``digit_filter`` :class:`.argument_groups.DigitFilter`.
    :param statistics: :class:`~..shared.argument_groups.TileStatistics` of the columns.
    :param histogram: [rows, 256] int64, added to.
    :param config: :class:`~..shared.configs.DigitConfig`.
    """
    row_number = tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)
    if row_number < rows:
        row = row_number.to(tl.int64)
        slot = row
        if slots.row_index is not None:
            slot = tl.load(slots.row_index + row).to(tl.int64)
        inverse, _ = inverse_temperature(slots.temperature, slot)
        max_logit = tl.full((), 0.0, tl.float32)
        threshold = tl.full((), float("-inf"), tl.float32)
        prefix = tl.full((), 0, tl.int32)
        if digit_filter.max_logit is not None:
            max_logit = tl.load(digit_filter.max_logit + row)
            threshold = tl.load(digit_filter.threshold + row)
        elif config.BY_WEIGHT:
            tile = tl.arange(0, config.TILES)
            pointers = statistics.maxima + row * shard.tiles + tile
            max_logit = tl.max(tl.load(pointers, mask=tile < shard.tiles, other=float("-inf")), 0)
        if digit_filter.prefixes is not None:
            prefix = tl.load(digit_filter.prefixes + row).to(tl.int32)
        source = RowAddress(logits.base + row * logits.row_stride - lead, logits.vocab_size)
        start = tl.program_id(0) * _SPAN
        tile = start
        while tile < tl.minimum(start + _SPAN, shard.tiles):
            maximum = tl.load(statistics.maxima + row * shard.tiles + tile)
            reaches = (maximum >= threshold).to(tl.int32)
            if digit_filter.prefixes is not None:
                reaches *= (_upper_bits(maximum, step.shift + _DIGIT_BITS) >= prefix).to(tl.int32)
            if reaches > 0:
                _add_tile(
                    source,
                    lead,
                    tile,
                    (max_logit, threshold, inverse * LOG2_E),
                    step,
                    prefix,
                    digit_filter,
                    histogram + row * _BINS,
                    config,
                )
            tile += 1


@triton.jit
def _upper_bits(x, missing):
    """Return the bits of a key of :func:`tokendraw.vocab_parallel.keys` above its ``missing`` lower bits."""
    key = (key_of(x) ^ _SIGN).to(tl.uint32, bitcast=True)
    return (key >> missing.to(tl.uint32)).to(tl.int32)


@triton.jit
def _add_tile(source, lead, tile, weighing, step, prefix, digit_filter, histogram, config: tl.constexpr):
    """Add the weights of a tile's values to the bins of their digits."""
    max_logit, threshold, scale = weighing
    element = tl.arange(0, TILE_SIZE)
    column = tile * TILE_SIZE + element
    inside = is_inside(column, source, lead)
    x = tl.load(source.base + column, mask=inside, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    counts = inside & (x >= threshold)
    digit = _upper_bits(x, step.shift) & (_BINS - 1)
    if digit_filter.prefixes is not None:
        counts = counts & (_upper_bits(x, step.shift + _DIGIT_BITS) == prefix)
    units = counts.to(tl.int64)
    weight = counts.to(tl.float32)
    if config.BY_WEIGHT:
        unit = (tl.full((), 1, tl.int64) << step.bits).to(tl.float32)
        weight = tl.where(counts, tl.floor(share_of(x, max_logit, scale) * unit + 0.5), 0.0)
        units = weight.to(tl.int64)
        counts = weight > 0
    remaining = tl.where(counts, ((TILE_SIZE - 1 - element) << _DIGIT_BITS) | digit, -1)
    leader = tl.max(remaining, 0)  # its digit is probably frequent
    turn = 0
    while (leader >= 0) & (turn < _TURNS):
        leader_digit = leader & (_BINS - 1)
        has_leader_digit = (remaining >= 0) & (digit == leader_digit)
        if config.BY_WEIGHT and digit_filter.max_logit is None:
            total = tl.sum(tl.where(has_leader_digit, weight, 0.0), 0).to(
                tl.int64
            )  # as exact as the resulting masses
        else:
            total = tl.sum(tl.where(has_leader_digit, units, 0), 0)
        tl.atomic_add(histogram + leader_digit, total, sem="relaxed")
        remaining = tl.where(has_leader_digit, -1, remaining)
        leader = tl.max(remaining, 0)
        turn += 1
    if leader >= 0:
        tl.atomic_add(histogram + digit, units, mask=remaining >= 0, sem="relaxed")
