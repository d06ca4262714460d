"""The launches for log-probabilities: ranks, the N best tokens, given ids, and scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokendraw import SamplingMetadata
from tokendraw.plugin import LogprobsMode, best_token_ids, pad_logprobs
from tokendraw_triton_gumbel.kernels.row_candidates import (
    bound_by_tiles,
    list_candidates,
    list_granules,
    load_candidates,
)
from tokendraw_triton_gumbel.kernels.rows import (
    NORMALISED,
    PROCESSED,
    SCALED,
    SMALL_CANDIDATES,
    TEMPERED,
    RowAddress,
    TileStatistics,
    inverse_temperature,
    mode_temperature,
)
from tokendraw_triton_gumbel.kernels.tile_pass import TileLaunches
from tokendraw_triton_gumbel.kernels.values import (
    GRANULE_LANES,
    GRANULE_SIZE,
    GRANULES_PER_HALF,
    GRANULES_PER_TILE,
    INT32_MAX,
    LANES,
    LARGEST,
    LOG2_E,
    LOWEST,
    TILE_SIZE,
    element_ids,
    granule_ids,
    key_of,
    lane_sums,
    scaled,
    steady,
    value_of,
)
from tokendraw_triton_gumbel.launch import Launch, LaunchArguments, Step, group
from tokendraw_triton_gumbel.plan import Scratch, Variant


class LogprobsConfig(NamedTuple):
    """Constants of launch 4, the log-probabilities of a row."""

    VECTOR: int
    TILES: int
    MAXIMA: int
    """0: the maxima of the tiles bound the N-th value; else those of at most so many groups of granules do."""
    GRANULES: int
    """Granules a group."""
    WIDTH: int
    """Upper limit of N."""
    CANDIDATES: int
    """Room for candidates."""
    GRANULES_AT_ONCE: int
    """Granules read at once."""


# Computes the values of a logprobs mode: logits themselves, or ``(x - max x) / T`` less the logarithm of a mass.
#
# The mass comes from what the pass over the logits has left of the tiles.


@triton.jit
def lowest_visible(max_logit, temperature, flags):
    """Return the least logit whose ``(x - max x) / T`` float32 holds: lower logits have the value -inf."""
    lowest = (max_logit.to(tl.float64) - LARGEST * temperature).to(tl.float32)
    return tl.where((flags & SCALED) != 0, lowest, float("-inf"))


@triton.jit
def log_mass(maximum, weight, max_logit, inverse, flags):
    """Return the logarithm of the sum of ``exp((x - max x) / T)``; 0 where the mode does not normalise.

    :param maximum: [TILES] of the tiles, -inf beyond them; ``weight`` the sums relative to it, or less than 0.
    """
    distance = tl.where(maximum == max_logit, 0.0, maximum - max_logit)
    y = (distance.to(tl.float64) * inverse * LOG2_E).to(tl.float32)
    shift = tl.log(tl.sum(tl.abs(weight) * tl.exp2(y), 0))
    return tl.where((flags & NORMALISED) != 0, shift, 0.0)


class ModeScale(NamedTuple):
    """How a logprobs mode shows the logits of a row."""

    peak: Any
    """The largest logit or, of shares of what is kept below a ceiling, the ceiling: from a larger logit a tiny T would
    leave no difference."""
    inverse: Any
    """``1 / T``."""
    shift: Any
    """What is subtracted."""
    lowest: Any
    """The least visible logit."""
    greedy: Any


@triton.jit
def row_scale(maximum, sums, draws, row, temperature, slot, flags):
    """Return the :class:`ModeScale` of a row.

    :param maximum: [TILES] of the tiles, like ``sums``; ``draws`` :class:`RowDraws`.
    :param temperature: [slots] in memory, or None.
    """
    temperature, inverse, greedy = mode_temperature(temperature, slot, flags)
    peak = tl.max(maximum, 0)
    shift = log_mass(maximum, sums, peak, inverse, flags)
    if (flags & PROCESSED) != 0:
        shift += tl.where((flags & NORMALISED) != 0, tl.load(draws.log_kept + row), 0.0)
        if draws.ceiling is not None:
            ceiling = tl.load(draws.ceiling + row)
            if ceiling < peak:
                shift = tl.load(draws.log_masses + row)
                peak = ceiling
    lowest = lowest_visible(peak, temperature, flags)
    if (flags & PROCESSED) != 0:
        lowest = tl.maximum(lowest, tl.load(draws.threshold + row))
    return ModeScale(peak, inverse, shift, lowest, greedy)


@triton.jit
def visible_value(x, scale, flags):
    """Return ``(x - max x) / T - shift``, at most 0 and -inf below ``lowest``; or x itself."""
    max_logit, inverse, shift = scale.peak, scale.inverse, scale.shift
    y = tl.where(x == max_logit, 0.0, x.to(tl.float64) - max_logit.to(tl.float64)) * inverse - shift.to(
        tl.float64
    )
    y = tl.where(x >= scale.lowest, tl.minimum(y, 0.0), float("-inf"))  # a rounded shift may lie below 0
    y = tl.where(max_logit > float("-inf"), y, float("-inf")).to(tl.float32)
    return tl.where((flags & SCALED) != 0, y, x)


@triton.jit
def visible_of_token(base, token, scale, flags):
    """Return the drawn token's value in the logprobs mode: 0 in greedy rows."""
    x = tl.load(base + token).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    greedy_value = tl.where(scale.peak > float("-inf"), 0.0, float("-inf"))
    return tl.where(scale.greedy, greedy_value, visible_value(x, scale, flags))


# Finds the N best logits of a row in a list of granules: bounds the N-th value, and orders candidates.

_PIVOTS = tl.constexpr(8)
_SPARE_MAXIMA = tl.constexpr(8)
"""Spare maxima, beyond N, of a good enough bound."""
_MIN_BRACKET_KEYS = tl.constexpr(1 << 13)
"""Stop when the bracket spans at most 2^13 float32 keys (one float16 step)."""


@triton.jit
def order_key(x, token):
    """Return logit and id in one int64: larger is better, and among equal logits the lower id."""
    return (key_of(x).to(tl.int64) << 32) | (token ^ INT32_MAX).to(tl.int64)


@triton.jit
def _pivots_of(low_key, high_key):
    """Return keys [_PIVOTS] in (low_key, high_key]: first the next key, in case of ties, then evenly spaced."""
    j = tl.arange(0, _PIVOTS)
    return low_key + tl.where(j == 0, 1, ((high_key - low_key) * j + _PIVOTS - 1) // _PIVOTS)


@triton.jit
def _narrow_bracket(low_key, high_key, count, pivots, counts, n):
    """Return the bracket [first, last) of the key of the N-th value, and how many reach ``low_key``."""
    is_enough = counts >= n
    low_key = tl.maximum(low_key, tl.max(tl.where(is_enough, pivots, low_key), 0))
    high_key = tl.minimum(high_key, tl.min(tl.where(is_enough, high_key, pivots), 0))
    fewest = tl.min(tl.where(is_enough, counts, INT32_MAX), 0)
    return low_key, high_key, tl.where(fewest < INT32_MAX, fewest, count)


@triton.jit
def bound_by_maxima(maxima, max_logit, n):
    """Return about the largest value that at least N maxima reach; -inf if fewer than N are above -inf.

    :param maxima: a block in registers; ``max_logit`` the largest of them.
    """
    finite = maxima > float("-inf")
    count = tl.sum(finite.to(tl.int32), 0)
    has_bound = count >= n
    lowest = tl.min(tl.where(finite, maxima, float("inf")), 0)
    low_key = key_of(lowest).to(tl.int64)
    high_key = key_of(max_logit).to(tl.int64) + 1
    while (count > n + _SPARE_MAXIMA).to(tl.int32) * (high_key - low_key > _MIN_BRACKET_KEYS).to(
        tl.int32
    ) > 0:
        pivots = _pivots_of(low_key, high_key)
        counts = tl.sum((maxima[:, None] >= value_of(pivots.to(tl.int32))[None, :]).to(tl.int32), 0)
        low_key, high_key, count = _narrow_bracket(low_key, high_key, count, pivots, counts, n)
    low = value_of(low_key.to(tl.int32))
    return tl.where(has_bound, tl.min(tl.where(maxima >= low, maxima, float("inf")), 0), float("-inf"))


@triton.jit
def group_maxima(granules, number, MAXIMA: tl.constexpr, GRANULES: tl.constexpr):
    """Return the maxima [MAXIMA] of groups of neighbouring granules, -inf beyond them.

    :param granules: [number] maxima, in memory.
    """
    i = tl.arange(0, MAXIMA)[:, None] * GRANULES
    i += tl.arange(0, GRANULES)[None, :]
    maxima = tl.load(granules + i, mask=i < number).to(tl.float32)
    return tl.max(tl.where(i < number, maxima, float("-inf")), 1)


@triton.jit
def _load_granules(row, granule_list, start, count, VECTOR: tl.constexpr, AT_ONCE: tl.constexpr):
    """Return the logits of the listed granules from ``start`` on, [AT_ONCE, 64], and their ids.

    What is none is -inf. NaN is left as it is: it reaches nothing.
    """
    index = start + tl.arange(0, AT_ONCE)
    granule = tl.load(granule_list + index, mask=index < count, other=0)
    token = granule_ids(granule[:, None], tl.arange(0, GRANULE_SIZE)[None, :], VECTOR)
    inside = (index < count)[:, None] & (token < row.vocab_size)
    x = tl.load(row.base + token, mask=inside).to(tl.float32)
    return tl.where(inside, x, float("-inf")), token


@triton.jit
def search_edge(
    row,
    granule_list,
    count,
    low,
    max_logit,
    n,
    VECTOR: tl.constexpr,
    CANDIDATES: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Search for the N-th value where more than ``CANDIDATES`` logits reach ``low``.

    Returns (the value from which upwards to collect at most ``CANDIDATES``, the one whose ties fill up to N or -inf).
    """
    low_key = key_of(low).to(tl.int64)
    high_key = key_of(max_logit).to(tl.int64) + 1
    number = tl.full((), CANDIDATES + 1, tl.int32)
    while (number > CANDIDATES).to(tl.int32) * (high_key - low_key > 1).to(tl.int32) > 0:
        pivots = _pivots_of(low_key, high_key)
        counts = tl.zeros((_PIVOTS,), tl.int32)
        start = 0
        while start < count:
            x, _ = _load_granules(row, granule_list, start, count, VECTOR, AT_ONCE)
            # A block of all pivots makes code around it slow: N = 65 to 1,024 of bfloat16 by up to 32 % on an H200.
            for i in range(_PIVOTS):
                is_pivot = tl.arange(0, _PIVOTS) == i
                value = value_of(tl.sum(tl.where(is_pivot, pivots, 0), 0).to(tl.int32))
                counts += tl.where(is_pivot, tl.sum(tl.sum((x >= value).to(tl.int32), 1), 0), 0)
            start += AT_ONCE
        low_key, high_key, number = _narrow_bracket(low_key, high_key, number, pivots, counts, n)
    edge = value_of(low_key.to(tl.int32))
    above = value_of((low_key + 1).to(tl.int32))  # NaN above inf: nothing is
    return tl.where(number > CANDIDATES, above, edge), tl.where(number > CANDIDATES, edge, float("-inf"))


@triton.jit
def fill_ties(row, maximum, tiles, tied_value, threshold, rank, n, value, out, TILES: tl.constexpr):
    """Write the lowest ids of the logits equal to ``tied_value``, from ``rank`` to N."""
    tile = tl.arange(0, TILES)
    start = tl.min(tl.where(maximum >= tied_value, tile, TILES), 0)
    while (start < tiles).to(tl.int32) * (rank < n).to(tl.int32) > 0:
        token = start * TILE_SIZE + tl.arange(0, TILE_SIZE)
        inside = token < row.vocab_size
        x = tl.load(row.base + token, mask=inside).to(tl.float32)
        hidden = (x != x) | (x == float("-inf")) | (x < threshold)
        equal = inside & tl.where(tied_value > float("-inf"), x == tied_value, hidden)
        index = rank + tl.cumsum(equal.to(tl.int32), 0) - 1
        tl.store(out.ids + index, token.to(tl.int64), mask=equal & (index < n))
        tl.store(out.logprobs + index, tl.zeros_like(x) + value, mask=equal & (index < n))
        rank += tl.sum(equal.to(tl.int32), 0)
        start = tl.min(tl.where((maximum >= tied_value) & (tile > start), tile, TILES), 0)


# Finds and sorts the candidates for the N best logits of a row.
#
# Reads the maxima of all granules, the granules that reach a bound on the N-th value, and the candidates among their
# logits. Writes, as scratch, a list of granules and one of candidates.


@triton.jit
def find_candidates(
    row, granules, maximum, tiles, granule_list, candidates, lowest, max_logit, n, config: tl.constexpr
):
    """List candidates, the logits from a bound upwards; return (their number, the value whose ties fill up to N).

    The value is -inf where the candidates contain the N best, or all logits that are shown.

    :param granules: [tiles, 16] maxima, in memory; ``maximum`` [TILES] those of the tiles.
    :param granule_list: [tiles * 16] int32 of scratch.
    :param candidates: [CANDIDATES] int32 of scratch, written for :func:`sort_candidates`.
    :param lowest: the least logit that is shown.
    """
    CANDIDATES: tl.constexpr = config.CANDIDATES
    AT_ONCE: tl.constexpr = config.GRANULES_AT_ONCE
    num_granules = tiles * GRANULES_PER_TILE
    if config.MAXIMA > 0:
        maxima = group_maxima(granules, num_granules, config.MAXIMA, config.GRANULES)
        least = tl.min(tl.where(maxima > float("-inf"), maxima, float("inf")), 0)
        low = bound_by_maxima(maxima, max_logit, n)
    else:
        is_finite = maximum > float("-inf")
        least = tl.min(tl.where(is_finite, maximum, float("inf")), 0)
        low = bound_by_tiles(maximum, max_logit, least, tl.sum(is_finite.to(tl.int32), 0), n, config.TILES)
    # The least maximum is a guess where fewer than N are finite: more logits than maxima reach it.
    lowest = tl.maximum(lowest, LOWEST)
    low = tl.maximum(tl.where(low > float("-inf"), low, least), lowest)
    tied_value = tl.full((), float("-inf"), tl.float32)
    if config.WIDTH <= 64:
        # Where enough tiles hold the largest logit, its ties are the N best. Of a larger N the bound shows it, too.
        tied_value = tl.where(tl.sum((maximum == max_logit).to(tl.int32), 0) >= n, max_logit, tied_value)
    num_candidates = tl.zeros((), tl.int32)
    is_searching = (tied_value == float("-inf")).to(tl.int32)
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


# Computes one row's log-probabilities, and its N best without a sort of the row.
#
# A granule is 64 logits of one tile; launch 1 wrote the maximum of each. The N best lie in granules that reach a
# bound on the N-th value, so about N granules are read. Candidates are the logits that reach the bound; they are
# sorted.
#
# If more logits reach the bound, by ties or because the best lie close together, the listed granules are read again:
# a search by 8 pivots at a time ends at that many candidates or at the N-th value itself, whose ties are then taken
# in the order of their ids, from tile to tile. At most 11 rounds; ties of the bound itself take one.
#
# Writes the result, and as scratch a list of granules and the candidates, which it reads back.


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
    """[rows] float32, like ``log_masses``, of :class:`~.interval.KeptInterval`; None unless the
    values are shares of what is kept."""
    log_masses: Any


class LogprobScratch(NamedTuple):
    """Scratch of each row."""

    granules: Any
    """[rows, tiles * 16] int32."""
    candidates: Any
    """[rows, CANDIDATES] int32: places of candidates."""


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

    :param width: N, at most ``WIDTH``.
    :param granules: [rows, tiles, 16] of the logits' dtype: the maxima of the granules.
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
    scale = row_scale(maximum, sums, draws, row, requested.temperature, slot, flags)
    token_logprob = visible_of_token(source.base, token, scale, flags)
    tl.store(ids, token)
    tl.store(values, token_logprob)

    # A greedy row has one token, so its N best are known; other rows need a search.
    num_searched = tl.where(scale.greedy, 0, n)
    if num_searched > 0:
        granules += row * tiles * GRANULES_PER_TILE
        candidates = scratch.candidates + row * config.CANDIDATES
        granule_list = scratch.granules + row * tiles * GRANULES_PER_TILE
        num_candidates, tied_value = find_candidates(
            source,
            granules,
            maximum,
            tiles,
            granule_list,
            candidates,
            scale.lowest,
            scale.peak,
            num_searched,
            config,
        )
        candidate, id_of = sort_candidates(
            source, candidates, num_candidates, config.VECTOR, config.CANDIDATES
        )
        rank = tl.arange(0, config.CANDIDATES)
        value = visible_value(candidate, scale, flags)
        is_best = rank < tl.minimum(num_candidates, num_searched)
        tl.store(ids + 1 + rank, id_of, mask=is_best)
        tl.store(values + 1 + rank, value, mask=is_best)
        if num_candidates < num_searched:
            edge = visible_value(tied_value, scale, flags)
            fill_ties(
                source,
                maximum,
                tiles,
                tied_value,
                scale.lowest,
                num_candidates,
                num_searched,
                edge,
                BestTokens(ids + 1, values + 1),
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


# Computes the log-probabilities of ids that requests give.
#
# Reads 8 bytes a tile and one logit an id.


class GivenIds(NamedTuple):
    """The ids of each slot."""

    ids: Any
    """[slots, ``count``] integer, one id behind the other; an id outside [0, V) is padding."""
    row_stride: Any
    count: Any


@triton.jit(
    do_not_specialize=["tiles", "flags"],
    # Scalar reads, or reads and writes at addresses without alignment.
    do_not_specialize_on_alignment=["requested", "draws", "given", "out"],
)
def given_logprobs(
    logits, tiles, requested, draws, given, out, flags, IDS: tl.constexpr, TILES: tl.constexpr
):
    """Each program computes the log-probabilities of ``IDS`` ids of one row. Grid (rows, parts of the ids).

    :param out: :class:`BestTokens` with ids and values [rows, ``count``], written.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = row
    if requested.row_index is not None:
        slot = tl.load(requested.row_index + row).to(tl.int64)
    source = RowAddress(logits.base + row * logits.row_stride, logits.vocab_size)
    tile = tl.arange(0, TILES)
    maximum = tl.load(draws.maxima + row * tiles + tile, mask=tile < tiles, other=float("-inf"))
    sums = tl.load(draws.sums + row * tiles + tile, mask=tile < tiles, other=0.0)
    scale = row_scale(maximum, sums, draws, row, requested.temperature, slot, flags)
    token = tl.load(draws.token_ids + row)
    place = tl.program_id(1) * IDS + tl.arange(0, IDS)
    inside = place < given.count
    given_id = tl.load(given.ids + slot * given.row_stride + place, mask=inside, other=-1).to(tl.int64)
    is_id = (given_id >= 0) & (given_id < source.vocab_size)
    x = tl.load(source.base + given_id, mask=is_id, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    value = visible_value(x, scale, flags)
    of_token = tl.where(scale.peak > float("-inf"), 0.0, float("-inf"))
    value = tl.where(scale.greedy, tl.where(given_id == token, of_token, float("-inf")), value)
    index = row * given.count + place
    tl.store(out.ids + index, tl.where(is_id, given_id, -1), mask=inside)
    tl.store(out.logprobs + index, tl.where(is_id, value, float("-inf")), mask=inside)


# The rank of a token: how many are shown with at least its value, counted over groups of tiles.
#
# Reads of a row the granules whose maximum reaches the token's logit, each once: all of a flat row, next to nothing
# of a peaked one. Adds to one integer a row.

RANK_SPAN = 8
"""Tiles a program."""
_MAXIMA_AT_ONCE = tl.constexpr(256)
_TINY, _HUGE = tl.constexpr(1e-30), tl.constexpr(1e30)
"""Float32 may not hold the value of a drawn token below this temperature, or of a logit below the negative."""


@triton.jit
def _largest_of(maxima, tiles):
    """Return the largest of the maxima [tiles] in memory."""
    largest = tl.full((), float("-inf"), tl.float32)
    start = tl.zeros((), tl.int32)
    while start < tiles:
        tile = start + tl.arange(0, _MAXIMA_AT_ONCE)
        maximum = tl.load(maxima + tile, mask=tile < tiles, other=float("-inf"))
        largest = tl.maximum(largest, tl.max(maximum, 0))
        start += _MAXIMA_AT_ONCE
    return largest


@triton.jit(
    do_not_specialize=["tiles", "rows", "flags"],
    # Scalar reads and writes.
    do_not_specialize_on_alignment=["requested", "token_ids", "maxima", "ceiling", "ranks"],
)
def count_ranks(
    logits,
    tiles,
    rows,
    requested,
    token_ids,
    maxima,
    granules,
    ceiling,
    ranks,
    flags,
    SPAN: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Each program counts in ``SPAN`` neighbouring tiles of a row. Grid (rows * groups of tiles).

    :param token_ids: [rows] int64; an id outside [0, V) leaves its rank 0.
    :param maxima: [rows, tiles], as :class:`~.rows.TileStatistics` has them, and ``granules`` [rows, tiles, 16].
    :param ceiling: [rows] float32: the greatest logit that is shown; None: all are.
    :param ranks: [rows] int64, 0 at first; V where the token's value is -inf.
    """
    groups = (tiles + SPAN - 1) // SPAN
    # The last rows first: launch 1 read them last, so a part of them is still in the cache.
    row = (rows - 1 - tl.program_id(0) // groups).to(tl.int64)
    group = tl.program_id(0) % groups
    base = logits.base + row * logits.row_stride
    tile = group * SPAN + tl.arange(0, SPAN)
    maximum = tl.load(maxima + row * tiles + tile, mask=tile < tiles, other=float("-inf"))
    token = tl.load(token_ids + row)
    is_token = (token >= 0) & (token < logits.vocab_size)
    x = tl.load(base + token, mask=is_token, other=float("-inf")).to(tl.float32)
    slot = row
    if requested.row_index is not None:
        slot = tl.load(requested.row_index + row).to(tl.int64)
    temperature, _, greedy = mode_temperature(requested.temperature, slot, flags)
    if (temperature < _TINY).to(tl.int32) + (x < -_HUGE).to(tl.int32) > 0:
        peak = _largest_of(maxima + row * tiles, tiles)
        if ceiling is not None:
            is_lower = (tl.load(ceiling + row) < peak) & ((flags & NORMALISED) != 0)
            peak = tl.where(is_lower, tl.load(ceiling + row), peak)
        x = tl.where(x < lowest_visible(peak, temperature, flags), float("-inf"), x)
    if (x > float("-inf")) & (greedy == 0):
        if tl.max(maximum, 0) >= x:
            CHUNKS: tl.constexpr = TILE_SIZE // (LANES * VECTOR)
            offset = tl.arange(0, LANES)[:, None, None] // GRANULE_LANES
            offset += tl.arange(0, CHUNKS)[None, None, :] // (CHUNKS // 2) * GRANULES_PER_HALF
            offset += tile[None, :, None] * GRANULES_PER_TILE
            granule_max = tl.load(
                granules + row * tiles * GRANULES_PER_TILE + offset,
                mask=(tile < tiles)[None, :, None],
                other=float("-inf"),
            )
            is_read = (granule_max.to(tl.float32) >= x)[:, :, :, None]
            ids = group * (SPAN * TILE_SIZE) + element_ids(SPAN, VECTOR)
            if (group + 1) * (SPAN * TILE_SIZE) <= logits.vocab_size:
                logit = tl.load(base + ids, mask=is_read, other=float("-inf"))
            else:
                logit = tl.load(base + ids, mask=is_read & (ids < logits.vocab_size), other=float("-inf"))
            logit = logit.to(tl.float32)
            is_counted = logit >= x
            if ceiling is not None:
                is_counted &= logit <= tl.load(ceiling + row)
            number = lane_sums(is_counted.to(tl.int32))
            tl.atomic_add(ranks + row, tl.sum(tl.sum(number, 1), 0).to(tl.int64), sem="relaxed")
    elif group == 0:
        # A greedy row shows its token alone.
        rank = tl.where(x > float("-inf"), 1, logits.vocab_size).to(tl.int64)
        tl.store(ranks + row, rank, mask=is_token)


# Computes the log-probability of one given token a row, and the entropy of the row.
#
# Reads 12 bytes a tile and one logit. Where filters drop tokens that the mode does not show, the entropy is that of
# the candidates that the draw has left; of a row without any, the tiles that reach the threshold are read again.

_LN_2 = tl.constexpr(0.6931471805599453)
_LARGEST_DISTANCE = tl.constexpr(3e38)


class RowCandidates(NamedTuple):
    """The candidates of each row that the draw has left; both None where the entropies of the tiles are summed up."""

    logits: Any = None
    """[rows, CANDIDATES] float32."""
    count: Any = None
    """[rows] int32: their number, -1 for none."""


class Scores(NamedTuple):
    """The result."""

    ids: Any
    """[rows, 1 + N] int64, like ``logprobs``, float32: the first column is written."""
    logprobs: Any
    ranks: Any
    """[rows] int64, as if every token were shown; written where not. None without ranks."""
    entropy: Any
    """[rows] float32."""
    least_kept: Any
    """[rows] float32, written where no row was drawn; else None."""


@triton.jit(
    do_not_specialize=["tiles", "width", "flags"],
    # Scalar reads and writes at addresses without alignment.
    do_not_specialize_on_alignment=["requested", "draws", "token_ids", "ceiling", "out"],
)
def score_rows(
    logits,
    tiles,
    requested,
    draws,
    token_ids,
    entropy_sums,
    candidates,
    ceiling,
    width,
    out,
    flags,
    AT_ONCE: tl.constexpr,
    CANDIDATES: tl.constexpr,
    TILES: tl.constexpr,
):
    """Each program scores the token of one row. Grid (rows).

    :param draws: :class:`RowDraws`, whose token counts in greedy rows alone.
    :param token_ids: [rows] int64; an id outside [0, V) is padding.
    :param entropy_sums: [rows, tiles], as :class:`~.rows.TileStatistics` has them; None: the kept logits are weighed,
        those of ``AT_ONCE`` tiles at once.
    :param ceiling: [rows] float32: the greatest kept logit, at least the largest one where XTC drops nothing; or None.
    :param width: 1 + N, columns of the result.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = row
    if requested.row_index is not None:
        slot = tl.load(requested.row_index + row).to(tl.int64)
    source = RowAddress(logits.base + row * logits.row_stride, logits.vocab_size)
    tile = tl.arange(0, TILES)
    inside = tile < tiles
    maximum = tl.load(draws.maxima + row * tiles + tile, mask=inside, other=float("-inf"))
    sums = tl.abs(tl.load(draws.sums + row * tiles + tile, mask=inside, other=0.0))
    scale = row_scale(maximum, sums, draws, row, requested.temperature, slot, flags)
    has_tokens = scale.peak > float("-inf")
    token = tl.load(token_ids + row)
    is_token = (token >= 0) & (token < source.vocab_size)
    x = tl.load(source.base + token, mask=is_token, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    value = visible_value(x, scale, flags)
    peak = scale.peak
    if ceiling is not None:
        greatest = tl.load(ceiling + row)
        peak = tl.where(greatest < scale.peak, greatest, scale.peak)  # NaN in a row without tokens
        value = tl.where((x > peak) & ((flags & PROCESSED) != 0), float("-inf"), value)
    of_argmax = tl.where(has_tokens, 0.0, float("-inf"))
    is_argmax = token == tl.load(draws.token_ids + row)
    value = tl.where(scale.greedy, tl.where(is_argmax, of_argmax, float("-inf")), value)
    tl.store(out.ids + row * width, tl.where(is_token, token, -1))
    tl.store(out.logprobs + row * width, tl.where(is_token, value, float("-inf")))
    if out.ranks is not None:
        # Every value is at least one of -inf; a greedy row shows no other than its token's.
        rank = tl.where(value > float("-inf"), 1, source.vocab_size).to(tl.int64)
        tl.store(out.ranks + row, rank, mask=is_token & (scale.greedy | (value == float("-inf"))))

    if entropy_sums is not None:
        distance = tl.where(maximum == scale.peak, 0.0, maximum - scale.peak)
        exponent = tl.maximum(
            (distance.to(tl.float64) * scale.inverse * LOG2_E).to(tl.float32), -_LARGEST_DISTANCE
        )
        weight = tl.exp2(exponent)
        entropies = tl.load(entropy_sums + row * tiles + tile, mask=inside, other=0.0)
        mass = tl.sum(sums * weight, 0)
        total = tl.sum(weight * entropies + (sums * weight) * exponent, 0)
    else:
        own_inverse, _ = inverse_temperature(requested.temperature, slot)
        threshold = tl.load(draws.threshold + row)
        num_candidates = tl.load(candidates.count + row)
        if num_candidates >= 0:
            listed = candidates.logits + row * CANDIDATES
            mass, total = _candidate_sums(listed, num_candidates, peak, threshold, own_inverse, CANDIDATES)
        else:
            mass, total = _kept_sums(
                source, draws.maxima + row * tiles, tiles, peak, threshold, own_inverse, AT_ONCE
            )
    entropy = tl.maximum(tl.log(mass) - _LN_2 * (total / mass), 0.0)
    entropy = tl.where(scale.greedy, 0.0, entropy)
    tl.store(out.entropy + row, tl.where(has_tokens, entropy, float("nan")))
    if out.least_kept is not None:
        least = tl.where(scale.peak < float("inf"), float("-inf"), float("inf"))
        tl.store(out.least_kept + row, tl.where(has_tokens, least, float("nan")))


@triton.jit
def _weights(x, peak, inverse):
    """Return the weights w of logits, and ``w log2 w``: 0 for -inf, and 1 and 0 for +inf."""
    y = tl.maximum(scaled(x, peak, inverse, False) * LOG2_E, -_LARGEST_DISTANCE)
    weight = tl.exp2(y)
    return weight, weight * y


@triton.jit
def _candidate_sums(listed, count, peak, threshold, inverse, CANDIDATES: tl.constexpr):
    """Return the sums of :func:`_kept_sums` from the list of a row's candidates."""
    i = tl.arange(0, CANDIDATES)
    x = tl.load(listed + i, mask=i < count, other=float("-inf"))
    weight, entropies = _weights(tl.where((x >= threshold) & (x <= peak), x, float("-inf")), peak, inverse)
    return tl.sum(weight, 0), tl.sum(entropies, 0)


@triton.jit
def _kept_sums(source, maxima, tiles, peak, threshold, inverse, AT_ONCE: tl.constexpr):
    """Return the sums of weights w and of ``w log2 w`` of the kept logits of a row, ``AT_ONCE`` tiles at once.

    :param peak: the greatest kept logit; the weights are relative to it.
    """
    masses = tl.zeros((AT_ONCE, TILE_SIZE), tl.float32)
    totals = tl.zeros((AT_ONCE, TILE_SIZE), tl.float32)
    lowest = tl.maximum(threshold, LOWEST)
    is_steady = steady(peak, inverse * LOG2_E) * (peak < float("inf")).to(tl.int32)
    start = tl.zeros((), tl.int32)
    while start < tiles:
        tile = start + tl.arange(0, AT_ONCE)
        is_read = tl.load(maxima + tile, mask=tile < tiles, other=float("-inf")) >= lowest
        if tl.max(is_read.to(tl.int32), 0) > 0:
            ids = tile[:, None] * TILE_SIZE + tl.arange(0, TILE_SIZE)[None, :]
            inside = is_read[:, None] & (ids < source.vocab_size)
            x = tl.load(source.base + ids, mask=inside, other=float("-inf")).to(tl.float32)
            kept = (x >= lowest) & (x <= peak)
            if is_steady > 0:
                y = (x - peak) * (inverse * LOG2_E)
                weight = tl.where(kept, tl.exp2(y), 0.0)
                masses += weight
                totals += tl.where(kept, weight * y, 0.0)
            else:
                weight, entropies = _weights(tl.where(kept, x, float("-inf")), peak, inverse)
                masses += weight
                totals += entropies
        start += AT_ONCE
    return tl.sum(tl.sum(masses, 1), 0), tl.sum(tl.sum(totals, 1), 0)


# The host side where N is larger than what a kernel orders: ``torch.topk``.

_LOGITS_AT_ONCE = 1 << 23
"""Upper limit of logits that PyTorch gets at once: 40 bytes of scratch each, as measured on a CPU."""
_INF = float("inf")
_LARGEST = torch.finfo(torch.float32).max


def topk_logprobs(
    logits: Tensor, m: SamplingMetadata, draws: RowDraws, mode: LogprobsMode, out: BestTokens
) -> None:
    """Fill in ids and values [rows, 1 + N] of logits [rows, V] for any N, some rows at a time. Waits for nothing.

    :param draws: the tensors of the draw; its maxima and sums [rows, tiles] are those of the mode.
    """
    logits = logits.detach()
    rows, num_best = logits.shape[0], out.ids.shape[1] - 1
    temperatures, requested = m.per_row("temperature"), m.per_row("logprobs")
    if temperatures is None or mode.startswith("raw"):
        temperatures = torch.ones(rows, dtype=torch.float64, device=logits.device)
    every_id = torch.arange(logits.shape[1], device=logits.device)
    step = max(1, _LOGITS_AT_ONCE // logits.shape[1])  # few enough rows to be ordered at once
    for start in range(0, rows, step):
        part = slice(start, start + step)
        # Nothing is read at what a failed draw left.
        token = draws.token_ids[part, None].clamp(0, logits.shape[1] - 1)
        temperature = temperatures[part, None].to(torch.float64)
        is_greedy = ~(temperature > 0)
        temperature = torch.where(is_greedy, 1.0, temperature)
        inverse = temperature.clamp(max=1.7e308).reciprocal().clamp(max=1.7e308)
        max_logit = peak = draws.maxima[part].amax(-1, keepdim=True)
        if draws.ceiling is not None:
            peak = torch.fmin(max_logit, draws.ceiling[part, None])
        lowest = torch.full_like(max_logit, -_INF)
        if mode != "raw_logits":  # what float32 shows as -inf is -inf to the order, too
            lowest = (peak - _LARGEST * temperature).to(torch.float32)
        if mode.startswith("processed"):
            lowest = torch.maximum(lowest, draws.threshold[part, None])
        x = logits[part].to(torch.float32, copy=True)
        x.nan_to_num_(nan=-_INF, posinf=_INF, neginf=-_INF)
        # Hidden are logits below ``lowest`` and, in greedy rows, all but the drawn token.
        x = torch.where((x >= lowest) & (~is_greedy | (every_id == token)), x, -_INF)
        columns = torch.cat((token, best_token_ids(x, num_best)), -1)
        x = x.gather(-1, columns)
        if mode != "raw_logits":
            y = _scaled(x, peak, inverse)
            if mode.endswith("logprobs"):
                weights = draws.sums[part].abs() * _scaled(draws.maxima[part], max_logit, inverse).exp()
                log_mass = weights.sum(-1, keepdim=True).log()
                if mode == "processed_logprobs":
                    log_mass += draws.log_kept[part, None]
                if draws.log_masses is not None:
                    log_mass = torch.where(peak < max_logit, draws.log_masses[part, None], log_mass)
                y -= log_mass
            y.clamp_(max=0.0)  # rounded sums may leave more
            x = torch.where(is_greedy & (columns == token), 0.0, y)
        x = torch.where(max_logit > -_INF, x, -_INF)
        asked = None if requested is None else requested[part]
        out.ids[part], out.logprobs[part] = pad_logprobs(columns, x, asked)


def _scaled(x: Tensor, max_logit: Tensor, inverse: Tensor) -> Tensor:
    """``(x - max x) / T`` in float64: 0 at the maximum, even if infinite."""
    return torch.where(x == max_logit, 0.0, (x.to(torch.float64) - max_logit) * inverse)


# The host side: the launches for logprobs of drawn or scored tokens, from the statistics of the draw in scratch.
#
# The launch over groups of tiles counts ranks. The launch over rows reads 8 bytes a tile, the maximum of every 64
# logits, and the few logits that matter. The draw of rows without filters fills in the drawn token's column itself,
# so that N = 0 takes a launch for its ranks alone.
#
# An N above :data:`MOST_LOGPROBS` is left to ``torch.topk``.


class BestSearch(NamedTuple):
    """Constants of the search for the N best, for an N up to a limit."""

    width: int
    """Upper limit of N."""
    candidates: int
    """Room for candidates."""
    warps: int
    granules_at_once: int
    """Granules read at once."""

    def config(self, tiles: TileLaunches, vector: int, num_best: int) -> LogprobsConfig:
        """Return the constants of the kernel."""
        maxima, granules = _MAXIMA, tiles.count_limit * GRANULES_PER_TILE.value // _MAXIMA
        if self.width <= _FEW:
            # Maxima of fewer than 2 N tiles say little about the N-th value.
            maxima, granules = (_QUARTERS if tiles.count < 2 * num_best else 0), 4
        return LogprobsConfig(
            VECTOR=vector,
            TILES=tiles.count_limit,
            MAXIMA=maxima,
            GRANULES=granules,
            WIDTH=self.width,
            CANDIDATES=self.candidates,
            GRANULES_AT_ONCE=self.granules_at_once,
        )


SEARCHES = (
    BestSearch(width=64, candidates=128, warps=4, granules_at_once=16),
    BestSearch(width=256, candidates=1024, warps=8, granules_at_once=64),
    BestSearch(width=1024, candidates=2048, warps=8, granules_at_once=64),
)
MOST_LOGPROBS = SEARCHES[-1].width
"""The largest N that a kernel orders."""
_FEW = SEARCHES[0].width
"""Upper limit of N that maxima of tiles bound, or of quarters of tiles; above, those of granules do."""
_QUARTERS = 512
"""Upper limit of quarters of tiles."""
_MAXIMA = 4096
"""Upper limit of maxima of one granule or of groups of granules."""
_OPTIONS = {"num_warps": 4}
_IDS_AT_ONCE = 64
"""Given ids of a program."""
_SCORED_TILES = 8
"""Tiles of kept logits read at once for an entropy, and warps of the program."""


class ShownTokens(NamedTuple):
    """Arguments for the logprobs of a call's tokens: first the tensors, as kernels get them, None if not wanted."""

    requested: Any
    """[slots]: how many of the N; None: all N."""
    token_ids: Any
    """[rows] int64: the tokens, drawn or given to be scored."""
    ranks: Any
    """[rows] int64, to be filled in; of scored tokens 0."""
    ids: Any
    """[rows, 1 + N], to be filled in, like ``logprobs``."""
    logprobs: Any
    given: Any
    """The fields of :class:`GivenIds`, of which two stand last; ids and logprobs [rows, M] are to be filled in."""
    given_ids: Any
    given_logprobs: Any
    entropy: Any
    """[rows] float32 of scored tokens, to be filled in."""
    given_stride: Any = 0
    num_given: Any = 0
    complete: Callable[[], None] | None = None
    """Does in torch what kernels do not, behind the launches but for that of scores."""


class LogprobsLaunches:
    """The launches for the logprobs of a variant, and the scratch between launches."""

    def __init__(
        self,
        variant: Variant,
        mode: LogprobsMode,
        scratch: Scratch,
        tiles: TileLaunches,
        row_candidates: Callable[[Sequence[Any]], Any],
        log_masses: int | None,
    ) -> None:
        """Reserve scratch and configure the kernels.

        :param row_candidates: returns the fields of ``RowCandidates``, which the draw leaves if scores read any.
        :param log_masses: index of the buffer of kept masses of rows that may keep intervals.
        """
        self._tiles, self._variant, self._flags = tiles, variant, mode_flags(mode)
        self._row_candidates = row_candidates
        self.mode, self.num_best = mode, variant.num_best or 0
        self.is_masked = variant.has_ceiling and mode.startswith("processed")
        """Whether the logits shown are others than those that the pass has read."""
        self.log_masses = log_masses if self.is_masked and mode == "processed_logprobs" else None
        """The index, if the values are shares of what is kept below a ceiling."""
        self.counts_ranks = variant.wants_ranks and (self.is_masked or not variant.is_scored)
        """Whether a launch counts ranks. Those of scored tokens come with the first pass, which knows no ceiling."""
        self.by_kernel = self.num_best <= (0 if self.is_masked else MOST_LOGPROBS)
        """Whether the kernel orders the best tokens."""
        # The draw writes the logprob of the drawn token where no more is wanted, and a score that of its own.
        is_alone = variant.draws_logprobs or (variant.is_scored and self.num_best == 0)
        self._is_searched = self.by_kernel and not is_alone
        search = next((search for search in SEARCHES if self.num_best <= search.width), SEARCHES[-1])
        config = search.config(tiles, variant.logits.vector, self.num_best)
        is_searched = self.num_best > 0 and self.by_kernel
        granules = tiles.count * GRANULES_PER_TILE.value if is_searched else 0
        candidates = search.candidates if is_searched else 0
        self._scratch = scratch.fields((torch.int32, granules), (torch.int32, candidates))
        ranking = {"SPAN": RANK_SPAN, "VECTOR": variant.logits.vector}
        self._count_ranks = Launch(count_ranks, ranking, _OPTIONS)
        self._search = Launch(row_logprobs, {"config": config}, {"num_warps": search.warps})
        self._score = Launch(
            score_rows,
            {"AT_ONCE": _SCORED_TILES, "CANDIDATES": SMALL_CANDIDATES, "TILES": config.TILES},
            {"num_warps": 4 if variant.has_entropy_sums else _SCORED_TILES},
        )
        self._given = Launch(given_logprobs, {"IDS": _IDS_AT_ONCE, "TILES": config.TILES}, _OPTIONS)

    def steps(self, arguments: LaunchArguments, results: Sequence[Any], shown: ShownTokens) -> Iterator[Step]:
        """Yield the launches, behind those of the draw, whose results are given."""
        geometry, logits, params, _, scratch, _, interval = arguments
        tiles, variant, rows = self._tiles, self._variant, geometry.size.rows
        statistics = group(TileStatistics, tiles.statistics(scratch))
        maxima, granules = statistics.maxima, statistics.granules
        ceiling = None if interval is None else interval.ceiling
        requested = group(RequestedLogprobs, (*tiles.slots(params), shown.requested))
        kept = (None, None) if self.log_masses is None else (ceiling, scratch[self.log_masses])
        token_ids, _, threshold, log_kept, least_kept = results
        of_rows = token_ids, maxima, scratch[tiles.mode_sums], threshold, log_kept
        draws, best = group(RowDraws, (*of_rows, *kept)), group(BestTokens, (shown.ids, shown.logprobs))
        if self.counts_ranks:
            below = ceiling if self.is_masked else None
            ranked = shown.token_ids, maxima, granules, below, shown.ranks
            grid = rows * -(-tiles.count // RANK_SPAN), 1, 1
            yield self._count_ranks, grid, (logits, tiles.count, rows, requested, *ranked, self._flags)
        if shown.num_given:
            given = group(GivenIds, (shown.given, shown.given_stride, shown.num_given))
            out = group(BestTokens, (shown.given_ids, shown.given_logprobs))
            grid = rows, -(-shown.num_given // _IDS_AT_ONCE), 1
            yield self._given, grid, (logits, tiles.count, requested, draws, given, out, self._flags)
        if self._is_searched:
            work = group(LogprobScratch, self._scratch(scratch))
            # Without best tokens no granule is read, so the maxima stand in.
            found = maxima if granules is None else granules, work, best, self._flags
            of_row = logits, tiles.count, self.num_best, requested, draws
            yield self._search, (rows, 1, 1), (*of_row, *found)
        if shown.complete is not None:
            shown.complete()
        if variant.is_scored:
            candidates = group(RowCandidates, self._row_candidates(scratch))
            bound = None if variant.is_drawn else least_kept
            scores = group(Scores, (*best, shown.ranks, shown.entropy, bound))
            of_draw = shown.token_ids, statistics.entropy_sums, candidates, ceiling, 1 + self.num_best
            scored = logits, tiles.count, requested, draws, *of_draw
            yield self._score, (rows, 1, 1), (*scored, scores, self._flags)


def mode_flags(mode: LogprobsMode) -> int:
    """Return the steps of a mode as bits for the kernels."""
    flags: int = 0 if mode == "raw_logits" else SCALED.value
    flags += NORMALISED.value if mode.endswith("logprobs") else 0
    flags += 0 if mode.startswith("raw") else TEMPERED.value
    return flags + (PROCESSED.value if mode.startswith("processed") else 0)
