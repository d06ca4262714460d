"""The threshold of a row from the surveys of all ranks, by :mod:`tokendraw.vocab_parallel.thresholds`.

Reads the words of all ranks. Writes 20 bytes a row, and 16 if a search by digits begins. One program a row.
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
from tokendraw_triton_gumbel.kernels.shared.row_params import HAS_FLOOR, TEMPERED, load_filters, slot_of
from tokendraw_triton_gumbel.kernels.shared.temperature import mode_temperature
from tokendraw_triton_gumbel.kernels.shared.weights import lowest_kept

_MIN_MASS = tl.constexpr(2.2250738585072014e-308)
"""The least normal float64: lower limit of a nucleus's mass."""


@triton.jit(do_not_specialize=["sizes", "fields", "flags"])
def find_thresholds(words, sizes, fields, row_params, flags, search, fresh, config: tl.constexpr):
    """Each program finds the threshold of a row. :mod:`.argument_groups` defines the groups of arguments.

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
    temperature, inverse, _ = mode_temperature(row_params.temperature, slot, TEMPERED)
    index = tl.arange(0, config.N)
    rank = index // fields.count
    mask = rank < sizes.ranks
    pointers = row_words(words, sizes, rank, row) + fields.x + index % fields.count
    x = value_of(tl.sort(key_of(load_float(pointers, mask)), descending=True))
    max_logit = tl.max(x, 0)
    least_y = tl.load(row_params.floor + row, mask=(flags & HAS_FLOOR) != 0, other=float("-inf"))
    base = tl.where((min_p > 0) | (least_y > float("-inf")), max_logit, float("-inf"))
    if (tl.abs(max_logit) < float("inf")).to(tl.int32) > 0:
        base = lowest_kept(max_logit, temperature, min_p, least_y)
    if config.HAS_KTH:
        last_index = tl.minimum(k, fields.count * sizes.ranks) - 1
        kth = tl.max(tl.where(index >= last_index, x, float("-inf")), 0)
        base = tl.where(k > 0, tl.maximum(base, kth), base)
    threshold = base
    is_settled = (p >= 1).to(tl.int32)
    counts_all = joint | (base == float("-inf"))
    if config.MASSES > 0:
        mass = _sum_masses(words, sizes, fields, row, max_logit, inverse, config)
        row_target = p * tl.sum(mass, 0)
        if config.MASSES > 1:
            digit, target = _first_digit(mass, row_target, fields.bits, config.MASSES)
            tl.store(search.prefix + row, digit)
            tl.store(search.target + row, target)
    if config.HAS_NUCLEUS:
        from_above = tl.cumsum(tl.exp(distance(x, max_logit, inverse)), 0)
        from_above += _ties(words, sizes, fields, row, x, max_logit, inverse, config)
        goal = p * tl.max(tl.where(x >= base, from_above, 0.0), 0)
        if config.MASSES > 0:
            goal = tl.where(counts_all, row_target, goal)
        is_found = tl.full((), 1, tl.int32)
        if config.MAY_MISS_NUCLEUS:
            listed_from = _listed_from(words, sizes, fields, row, config.RANKS_AT_ONCE)
            listed_mass = tl.max(tl.where(x >= listed_from, from_above, 0.0), 0)
            is_found = (listed_from == float("-inf")).to(tl.int32) | (listed_mass >= goal).to(tl.int32)
            is_found *= counts_all.to(tl.int32) | (base >= listed_from).to(tl.int32)
        goal = tl.maximum(tl.minimum(goal, tl.max(from_above, 0)), _MIN_MASS)
        nucleus_value = tl.max(tl.where(from_above >= goal, x, float("-inf")), 0)
        threshold = tl.where((p < 1) & (is_found > 0), tl.maximum(base, nucleus_value), base)
        is_settled |= is_found
    tl.store(search.max + row, max_logit)
    tl.store(search.threshold + row, tl.minimum(threshold, max_logit))
    floor = tl.where(counts_all, float("-inf"), base)
    tl.store(search.floor + row, tl.where(is_settled > 0, float("inf"), floor))
    if fresh is not None:
        fresh_words = row_words(words, sizes, row * 0, row) + fields.fresh
        tl.store(fresh + row, load_long(fresh_words, row >= 0))


@triton.jit
def _ties(words, sizes, fields, row, x, max_logit, inverse, config: tl.constexpr):
    """Return the mass, from each ``x`` [N] upwards, of the unlisted ties with the last value of each rank."""
    N: tl.constexpr = config.N
    AT_ONCE: tl.constexpr = config.RANKS_AT_ONCE
    total = tl.zeros((N,), tl.float64)
    first_rank = row * 0
    while first_rank < sizes.ranks:
        rank = first_rank + tl.arange(0, AT_ONCE)
        mask = rank < sizes.ranks
        pointers = row_words(words, sizes, rank, row)
        last_value = load_float(pointers + fields.x + fields.count - 1, mask)
        ties = tl.load(pointers + fields.ties, mask=mask, other=0).to(tl.float64)
        weight = ties * tl.exp(distance(last_value, max_logit, inverse))
        total += tl.sum(tl.where(last_value[None, :] >= x[:, None], weight[None, :], 0.0), 1)
        first_rank += AT_ONCE
    return total


@triton.jit
def _listed_from(words, sizes, fields, row, AT_ONCE: tl.constexpr):
    """Return the least value from which upwards the ranks list every value of the row; -inf if they list all."""
    listed_from = tl.full((), float("-inf"), tl.float32)
    first_rank = row * 0
    while first_rank < sizes.ranks:
        rank = first_rank + tl.arange(0, AT_ONCE)
        pointers = row_words(words, sizes, rank, row) + fields.x + fields.count - 1
        listed_from = tl.maximum(listed_from, tl.max(load_float(pointers, rank < sizes.ranks), 0))
        first_rank += AT_ONCE
    return listed_from


@triton.jit
def _sum_masses(words, sizes, fields, row, max_logit, inverse, config: tl.constexpr):
    """Sum the masses of all ranks by digit: [MASSES] float64, the largest values first."""
    MASSES: tl.constexpr = config.MASSES
    AT_ONCE: tl.constexpr = config.RANKS_AT_ONCE
    offset = fields.mass + 2 * (MASSES - 1 - tl.arange(0, MASSES))
    total = tl.zeros((MASSES,), tl.float64)
    first_rank = row * 0
    while first_rank < sizes.ranks:
        rank = first_rank + tl.arange(0, AT_ONCE)
        mask = rank < sizes.ranks
        pointers = row_words(words, sizes, rank, row)
        share = tl.exp(distance(load_float(pointers + fields.x, mask), max_logit, inverse))
        mass = load_double(pointers[:, None] + offset[None, :], mask[:, None] & (offset >= 0)[None, :])
        total += tl.sum(mass * share[:, None], 0)
        first_rank += AT_ONCE
    return total


@triton.jit
def _first_digit(mass, row_target, bits, MASSES: tl.constexpr):
    """Return (the first digit of the least value of a nucleus, the remaining target among values with this digit)."""
    from_above = tl.cumsum(mass, 0)
    rank_from_top = tl.arange(0, MASSES)
    goal = tl.maximum(tl.minimum(row_target, tl.max(from_above, 0)), _MIN_MASS)
    first_bin = tl.min(tl.where(from_above >= goal, rank_from_top, MASSES - 1), 0)
    above = tl.sum(tl.where(rank_from_top == first_bin, from_above - mass, 0.0), 0)
    units = (tl.full((), 1, tl.int64) << bits).to(tl.float64)
    return (MASSES - 1 - first_bin).to(tl.int64), tl.ceil((row_target - above) * units).to(tl.int64)
