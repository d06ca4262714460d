"""Launch S: the threshold of a row from the surveys of all ranks, as :mod:`tokendraw.vocab_parallel.thresholds` says.

Reads the words of all ranks. Writes 20 bytes a row, and 16 where a search by digits begins. One program a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shard_messages.words import (
    distance,
    load_double,
    load_float,
    load_long,
    row_words,
)
from tokendraw_triton_gumbel.kernels.shared.float_keys import key_of, value_of
from tokendraw_triton_gumbel.kernels.shared.row_params import TEMPERED, load_filters, slot_of
from tokendraw_triton_gumbel.kernels.shared.temperature import shown_temperature
from tokendraw_triton_gumbel.kernels.shared.weights import min_p_floor

_LEAST = tl.constexpr(2.2250738585072014e-308)
"""The least normal float64: the least mass that a nucleus has."""


@triton.jit(do_not_specialize=["sizes", "fields", "flags"])
def find_thresholds(words, sizes, fields, row_params, flags, search, fresh, config: tl.constexpr):
    """One program finds the threshold of one row. The groups are those of :mod:`.argument_groups`.

    :param words: [ranks, rows, width] int32.
    :param sizes: :class:`~.argument_groups.Sizes`; ``fields`` :class:`~.argument_groups.SurveyFields`.
    :param row_params: :class:`~..shared.argument_groups.RowParams`; ``flags`` say which of them are there.
    :param search: :class:`~.argument_groups.RowSearch`, written.
    :param fresh: [rows] int64, written: the seeds of rank 0. Or None.
    :param config: :class:`~..shared.configs.ThresholdConfig`.
    """
    row = tl.program_id(0)
    slot = slot_of(row, flags, row_params)
    k, p, min_p, joint = load_filters(slot, sizes.vocab_size, flags, row_params)
    temperature, inverse, _ = shown_temperature(row_params.temperature, slot, TEMPERED)
    number = tl.arange(0, config.N)
    rank = number // fields.count
    there = rank < sizes.ranks
    place = row_words(words, sizes, rank, row) + fields.x + number % fields.count
    x = value_of(tl.sort(key_of(load_float(place, there)), descending=True))
    top = tl.max(x, 0)
    base = tl.where(min_p > 0, top, float("-inf"))
    if (tl.abs(top) < float("inf")).to(tl.int32) > 0:
        base = min_p_floor(top, temperature, min_p)
    if config.HAS_KTH:
        last = tl.minimum(k, fields.count * sizes.ranks) - 1
        kth = tl.max(tl.where(number >= last, x, float("-inf")), 0)
        base = tl.where(k > 0, tl.maximum(base, kth), base)
    threshold = base
    is_settled = (p >= 1).to(tl.int32)
    counts_all = joint | (base == float("-inf"))
    if config.MASSES > 0:
        mass = _row_masses(words, sizes, fields, row, top, inverse, config)
        whole = p * tl.sum(mass, 0)
        if config.MASSES > 1:
            digit, target = _first_digit(mass, whole, fields.bits, config.MASSES)
            tl.store(search.prefix + row, digit)
            tl.store(search.target + row, target)
    if config.HAS_NUCLEUS:
        from_above = tl.cumsum(tl.exp(distance(x, top, inverse)), 0)
        from_above += _ties(words, sizes, fields, row, x, top, inverse, config)
        goal = p * tl.max(tl.where(x >= base, from_above, 0.0), 0)
        if config.MASSES > 0:
            goal = tl.where(counts_all, whole, goal)
        is_found = tl.full((), 1, tl.int32)
        if config.IS_WIDE:
            known = _complete_from(words, sizes, fields, row, config.RANKS_AT_ONCE)
            reached = tl.max(tl.where(x >= known, from_above, 0.0), 0)
            is_found = (known == float("-inf")).to(tl.int32) | (reached >= goal).to(tl.int32)
            is_found *= counts_all.to(tl.int32) | (base >= known).to(tl.int32)
        goal = tl.maximum(tl.minimum(goal, tl.max(from_above, 0)), _LEAST)
        found = tl.max(tl.where(from_above >= goal, x, float("-inf")), 0)
        threshold = tl.where((p < 1) & (is_found > 0), tl.maximum(base, found), base)
        is_settled |= is_found
    tl.store(search.max + row, top)
    tl.store(search.threshold + row, tl.minimum(threshold, top))
    floor = tl.where(counts_all, float("-inf"), base)
    tl.store(search.floor + row, tl.where(is_settled > 0, float("inf"), floor))
    if fresh is not None:
        own = row_words(words, sizes, row * 0, row) + fields.fresh
        tl.store(fresh + row, load_long(own, row >= 0))


@triton.jit
def _ties(words, sizes, fields, row, x, top, inverse, config: tl.constexpr):
    """Return what weighs, from each of ``x`` [N] upwards, that no rank lists: ties with the last value of each."""
    N: tl.constexpr = config.N
    AT_ONCE: tl.constexpr = config.RANKS_AT_ONCE
    total = tl.zeros((N,), tl.float64)
    first = row * 0
    while first < sizes.ranks:
        rank = first + tl.arange(0, AT_ONCE)
        there = rank < sizes.ranks
        place = row_words(words, sizes, rank, row)
        last = load_float(place + fields.x + fields.count - 1, there)
        ties = tl.load(place + fields.ties, mask=there, other=0).to(tl.float64)
        weight = ties * tl.exp(distance(last, top, inverse))
        total += tl.sum(tl.where(last[None, :] >= x[:, None], weight[None, :], 0.0), 1)
        first += AT_ONCE
    return total


@triton.jit
def _complete_from(words, sizes, fields, row, AT_ONCE: tl.constexpr):
    """Return the value from which every one of the row is listed; -inf if all are."""
    known = tl.full((), float("-inf"), tl.float32)
    first = row * 0
    while first < sizes.ranks:
        rank = first + tl.arange(0, AT_ONCE)
        last = row_words(words, sizes, rank, row) + fields.x + fields.count - 1
        known = tl.maximum(known, tl.max(load_float(last, rank < sizes.ranks), 0))
        first += AT_ONCE
    return known


@triton.jit
def _row_masses(words, sizes, fields, row, top, inverse, config: tl.constexpr):
    """Add up the masses of all ranks: [MASSES] float64, those of the largest values first."""
    MASSES: tl.constexpr = config.MASSES
    AT_ONCE: tl.constexpr = config.RANKS_AT_ONCE
    place = fields.mass + 2 * (MASSES - 1 - tl.arange(0, MASSES))
    total = tl.zeros((MASSES,), tl.float64)
    first = row * 0
    while first < sizes.ranks:
        rank = first + tl.arange(0, AT_ONCE)
        there = rank < sizes.ranks
        own = row_words(words, sizes, rank, row)
        share = tl.exp(distance(load_float(own + fields.x, there), top, inverse))
        mass = load_double(own[:, None] + place[None, :], there[:, None] & (place >= 0)[None, :])
        total += tl.sum(mass * share[:, None], 0)
        first += AT_ONCE
    return total


@triton.jit
def _first_digit(mass, whole, bits, MASSES: tl.constexpr):
    """Return the first digit of the least value of a nucleus, and what is left to reach among those that have it."""
    from_above = tl.cumsum(mass, 0)
    place = tl.arange(0, MASSES)
    goal = tl.maximum(tl.minimum(whole, tl.max(from_above, 0)), _LEAST)
    first = tl.min(tl.where(from_above >= goal, place, MASSES - 1), 0)
    above = tl.sum(tl.where(place == first, from_above - mass, 0.0), 0)
    units = (tl.full((), 1, tl.int64) << bits).to(tl.float64)
    return (MASSES - 1 - first).to(tl.int64), tl.ceil((whole - above) * units).to(tl.int64)
