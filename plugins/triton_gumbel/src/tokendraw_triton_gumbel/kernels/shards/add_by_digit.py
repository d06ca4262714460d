"""Histograms of a rank's columns by 8 bits of the values' keys: see :mod:`tokendraw.vocab_parallel.radix`.

Reads 4 bytes a tile, and the logits of those tiles that may hold a value which counts. Adds integers, so that the
result does not depend on the order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.float_keys import key_of
from tokendraw_triton_gumbel.kernels.shared.row_address import is_inside
from tokendraw_triton_gumbel.kernels.shared.row_values import Row
from tokendraw_triton_gumbel.kernels.shared.temperature import inverse_temperature
from tokendraw_triton_gumbel.kernels.shared.tile_layout import TILE_SIZE
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, share_of

TILES_AT_ONCE = 4
"""Tiles that a program looks at, one after the other."""
_SPAN = tl.constexpr(TILES_AT_ONCE)
_BINS = tl.constexpr(256)
_DIGIT_BITS = tl.constexpr(8)
_SIGN = tl.constexpr(-2147483648)
_TURNS = tl.constexpr(8)
"""Digits of a tile whose values are added up first: those that most values have, likely. Others go one by one."""


@triton.jit(do_not_specialize=["shard", "rows", "step"])
def add_by_digit(
    logits, lead, shard, rows, step, slots, statistics, counted, histogram, config: tl.constexpr
):
    """One program adds up some tiles of one row. Grid (groups of tiles, rows / z, z).

    :param logits: :class:`~..shared.argument_groups.Logits`, whose ``vocab_size`` counts the columns with the lead.
    :param lead: of :class:`.argument_groups.Shard`. By itself, since it says how tiles are aligned.
    :param shard: :class:`.argument_groups.Shard`; ``step`` :class:`.argument_groups.Digit`, ``slots``
        :class:`.argument_groups.SlotTemperatures`, ``counted`` :class:`.argument_groups.Counted`.
    :param statistics: :class:`~..shared.argument_groups.TileStatistics` of the columns.
    :param histogram: [rows, 256] int64, added to.
    :param config: :class:`~..shared.configs.DigitConfig`.
    """
    number = tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)
    if number < rows:
        row = number.to(tl.int64)
        slot = row
        if slots.row_index is not None:
            slot = tl.load(slots.row_index + row).to(tl.int64)
        inverse, _ = inverse_temperature(slots.temperature, slot)
        top = tl.full((), 0.0, tl.float32)
        floor = tl.full((), float("-inf"), tl.float32)
        prefix = tl.full((), 0, tl.int32)
        if counted.tops is not None:
            top = tl.load(counted.tops + row)
            floor = tl.load(counted.floors + row)
        elif config.WEIGHED:
            tile = tl.arange(0, config.TILES)
            own = statistics.maxima + row * shard.tiles + tile
            top = tl.max(tl.load(own, mask=tile < shard.tiles, other=float("-inf")), 0)
        if counted.prefixes is not None:
            prefix = tl.load(counted.prefixes + row).to(tl.int32)
        source = Row(logits.base + row * logits.row_stride - lead, logits.vocab_size)
        start = tl.program_id(0) * _SPAN
        tile = start
        while tile < tl.minimum(start + _SPAN, shard.tiles):
            maximum = tl.load(statistics.maxima + row * shard.tiles + tile)
            reaches = (maximum >= floor).to(tl.int32)
            if counted.prefixes is not None:
                reaches *= (_upper_bits(maximum, step.shift + _DIGIT_BITS) >= prefix).to(tl.int32)
            if reaches > 0:
                _add_tile(
                    source,
                    lead,
                    tile,
                    (top, floor, inverse * LOG2_E),
                    step,
                    prefix,
                    counted,
                    histogram + row * _BINS,
                    config,
                )
            tile += 1


@triton.jit
def _upper_bits(x, missing):
    """Return the bits of a key of :func:`tokendraw.vocab_parallel.keys` above the lower ``missing`` ones, some."""
    key = (key_of(x) ^ _SIGN).to(tl.uint32, bitcast=True)
    return (key >> missing.to(tl.uint32)).to(tl.int32)


@triton.jit
def _add_tile(source, lead, tile, weighing, step, prefix, counted, histogram, config: tl.constexpr):
    """Add what the values of a tile weigh to the bins of their digits."""
    top, floor, scale = weighing
    place = tl.arange(0, TILE_SIZE)
    column = tile * TILE_SIZE + place
    inside = is_inside(column, source, lead)
    x = tl.load(source.base + column, mask=inside, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    counts = inside & (x >= floor)
    digit = _upper_bits(x, step.shift) & (_BINS - 1)
    if counted.prefixes is not None:
        counts = counts & (_upper_bits(x, step.shift + _DIGIT_BITS) == prefix)
    units = counts.to(tl.int64)
    weight = counts.to(tl.float32)
    if config.WEIGHED:
        one = (tl.full((), 1, tl.int64) << step.bits).to(tl.float32)
        weight = tl.where(counts, tl.floor(share_of(x, top, scale) * one + 0.5), 0.0)
        units = weight.to(tl.int64)
        counts = weight > 0
    left = tl.where(counts, ((TILE_SIZE - 1 - place) << _DIGIT_BITS) | digit, -1)
    first = tl.max(left, 0)  # its digit is one that many have, likely
    turn = 0
    while (first >= 0) & (turn < _TURNS):
        own = first & (_BINS - 1)
        is_own = (left >= 0) & (digit == own)
        if config.WEIGHED and counted.tops is None:
            total = tl.sum(tl.where(is_own, weight, 0.0), 0).to(
                tl.int64
            )  # as exact as the masses that it becomes
        else:
            total = tl.sum(tl.where(is_own, units, 0), 0)
        tl.atomic_add(histogram + own, total, sem="relaxed")
        left = tl.where(is_own, -1, left)
        first = tl.max(left, 0)
        turn += 1
    if first >= 0:
        tl.atomic_add(histogram + digit, units, mask=left >= 0, sem="relaxed")
