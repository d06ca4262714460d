"""The launches for XTC and the filter order ``temperature_last``, whose kept set is an interval of values.

A row of ``temperature_last`` has two temperatures: the filters look at 1, the draw at its own. XTC drops the likeliest
tokens, so that the row keeps an interval of logits. In batches with such rows ``filter_params`` writes for each slot
the temperature and the min-p that the filters look at, which launches 1 to 3 take in place of the row's own;
``redraw_rows`` draws the rows that ask, from what these leave:

* of a row with few candidates the list of launch 2, 1 KB. The ceiling of XTC, the token and the kept mass follow in
  registers;
* of another row its exact threshold. Each program of the row looks for the ceiling in the tiles whose maxima are likely
  tokens, at most 1 / ``xtc_threshold`` of them, then weighs a part of the tiles between both ends, where granules reach
  the lower one. The program that is done last draws. Its other programs end at once in all other rows.

Only rows that ``redraw_rows`` draws need their exact thresholds; launch 2 marks them, and the others of the batch cost
what they cost without such neighbours. XTC drops nothing unless two tokens are likely. Where top-p alone filters, the
maxima of the tiles prove for most wide nuclei that the second token is not, and such rows are marked as done. A min-p
behind top-p raises the threshold in ``redraw_rows``: the mass that is left is then not known, and if XTC asks for it
too, one program of the row does all.

A verification takes the same launches, with the rows of drafts behind the target's. XTC leaves drafts alone; the
uniform of a row of the target is that of its own position. Where drafts are judged by probabilities, ``redraw_rows``
also writes the greatest kept logit of each row and the kept mass relative to that, which ``weigh_blocks`` and
``accept_drafts`` read in place of the largest logit and its mass. A score makes no fresh seeds, and XTC leaves rows
without a seed alone there. With log-probabilities launch 1 sums each tile at both temperatures, and ``redraw_rows``
leaves the sums as a draw at the row's own temperature would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokendraw import SamplingMetadata
from tokendraw_triton_gumbel.compilation import ANY_INT, any_pointer
from tokendraw_triton_gumbel.kernels.row_candidates import draw_candidate, weigh_tiles
from tokendraw_triton_gumbel.kernels.rows import (
    DRAFT,
    HAS_TOP_P,
    LEAST_KEPT,
    SMALL_CANDIDATES,
    XTC,
    RowParams,
    TileStatistics,
    gumbel,
    has_noise,
    inverse_temperature,
    load_filters,
    noise_key,
    row_logits,
    row_of,
    slot_of,
    streams_of,
    uniform,
)
from tokendraw_triton_gumbel.kernels.tile_pass import TileLaunches
from tokendraw_triton_gumbel.kernels.values import (
    GRANULE_LANES,
    GRANULES_PER_HALF,
    GRANULES_PER_TILE,
    INT32_MAX,
    LANES,
    LOG2_E,
    TILE_SIZE,
    least_kept,
    least_reaching,
    lowest_kept,
    scaled,
    weigh,
)
from tokendraw_triton_gumbel.launch import DrawArguments, Launch, LaunchArguments, Step, group
from tokendraw_triton_gumbel.plan import FIELDS, ParamTensors, Scratch, Target, Variant, interval_tensors


class IntervalConfig(NamedTuple):
    """Constants of ``redraw_rows``, the draw of rows with XTC or ``temperature_last``."""

    FP64: bool
    TILES: int
    TILES_AT_ONCE: int
    """Tiles of a row with many tokens that are read at once."""
    VECTOR: int
    SMALL_CANDIDATES: int
    HAS_LOGPROBS: bool
    """Whether kept masses at the row's temperature are wanted."""


# Groups of arguments of the launches for XTC and the filter order ``temperature_last``.


class IntervalParams(NamedTuple):
    """Parameters of the requests; each None where no request of a batch may use it."""

    temperature_last: Any = None
    """[slots] bool."""
    xtc_probability: Any = None
    """[slots] floating point, like ``xtc_threshold``."""
    xtc_threshold: Any = None


class FilterParams(NamedTuple):
    """The parameters that the filters look at, written by ``filter_params``.

    Each is None where the requests' own serve.
    """

    temperature: Any = None
    """[slots] floating point: 1 in slots of ``temperature_last`` that are not greedy, elsewhere the temperature."""
    other_temperature: Any = None
    """[slots] floating point: the other of 1 and the temperature."""
    min_p: Any = None
    """[slots] floating point: 0 where min-p stands behind top-p."""


class KeptInterval(NamedTuple):
    """Results and scratch of ``redraw_rows``; all None where no request of a batch may need the launch."""

    ceiling: Any = None
    """[rows] float32: the greatest kept logit of rows that ask for XTC, elsewhere +inf. None without XTC."""
    sums: Any = None
    """[rows, tiles] float32 of scratch: the weights of the tiles of a row."""
    arrivals: Any = None
    """[rows] int32 of scratch, written by launch 2: programs of a row that have weighed their part, or a mark."""
    log_masses: Any = None
    """[rows] float32 of scratch: of rows whose ceiling lies below their largest logit, the logarithm of the sum of
    ``exp((x - ceiling) / T)`` over the kept logits. None without log-probabilities."""


class KeptMasses(NamedTuple):
    """Kept masses for a verification by probabilities, of its target and of its drafts; all None elsewhere."""

    peaks: Any = None
    """[rows] float32: the greatest kept logit."""
    masses: Any = None
    """[rows] float32: ``masses * exp(log_shares)`` is the sum of ``exp((x - peak) / T)`` over the kept logits."""
    log_shares: Any = None
    """[rows] float32."""


# The temperature and the min-p that the filters of each slot look at. 256 slots a program.
#
# Reads and writes some numbers a slot.

SLOTS_PER_PROGRAM = tl.constexpr(256)


@triton.jit(
    do_not_specialize=["slots", "flags"],
    do_not_specialize_on_alignment=["row_params", "temperature_last"],
)
def filter_params(row_params, temperature_last, out, slots, flags):
    """Write the parameters that the filters look at. Grid (slots / 256).

    A filter order of ``temperature_last`` has its min-p behind top-p. Without top-p the places give the same tokens,
    and min-p stays with the other filters.
    """
    slot = tl.program_id(0) * SLOTS_PER_PROGRAM + tl.arange(0, SLOTS_PER_PROGRAM)
    inside = slot < slots
    is_last = tl.load(temperature_last + slot, mask=inside, other=0).to(tl.int32) != 0
    if out.temperature is not None:
        temperature = tl.load(row_params.temperature + slot, mask=inside, other=0.0)
        is_separate = is_last & (temperature > 0)
        one = tl.full((), 1.0, tl.float32).to(temperature.dtype)
        tl.store(out.temperature + slot, tl.where(is_separate, one, temperature), mask=inside)
        if out.other_temperature is not None:
            tl.store(out.other_temperature + slot, tl.where(is_separate, temperature, one), mask=inside)
    if out.min_p is not None:
        min_p = tl.load(row_params.min_p + slot, mask=inside, other=0.0)
        top_p = tl.load(row_params.top_p + slot, mask=inside & ((flags & HAS_TOP_P) != 0), other=1.0)
        zero = tl.full((), 0.0, tl.float32).to(min_p.dtype)
        tl.store(out.min_p + slot, tl.where(is_last & (top_p < 1), zero, min_p), mask=inside)


# Loads the part of a row's filters that stands behind top-p, and tells which rows ``redraw_rows`` has to draw.
#
# Reads a few numbers a row.

_DEFAULT_THRESHOLD = tl.constexpr(0.1)
_MAX_THRESHOLD = tl.constexpr(0.5)
_ROUNDING = tl.constexpr(1.001)
"""Margin for the error of a mass in float32."""
KEEPS_DRAW = tl.constexpr(-1)
"""Mark of a row among ``arrivals`` that ``redraw_rows`` leaves alone."""


class RowChain(NamedTuple):
    """The part of a row's filters that stands behind top-p; integers where no type is given."""

    is_last: Any
    """1 if the filters look at temperature 1 and the draw does not."""
    has_xtc: Any
    """1 if the row asks for XTC, and has noise to decide it."""
    applies: Any
    """1 if the uniform of the row applies XTC."""
    limit: Any
    """float64: the least probability of a token that XTC may drop."""


@triton.jit
def load_chain(slot, greedy, key, row_params, interval_params, flags, FP64: tl.constexpr):
    """Return the :class:`RowChain` of a row.

    :param flags: with the bit DRAFT of a draft's row, which XTC leaves alone.
    """
    is_sampled = (greedy == 0).to(tl.int32)
    is_last = tl.full((), 0, tl.int32)
    if interval_params.temperature_last is not None:
        is_last = (tl.load(interval_params.temperature_last + slot).to(tl.int32) != 0).to(tl.int32)
    has_xtc = tl.full((), 0, tl.int32)
    applies = has_xtc
    limit = tl.full((), _DEFAULT_THRESHOLD, tl.float64)
    if interval_params.xtc_probability is not None:
        probability = tl.load(interval_params.xtc_probability + slot).to(tl.float64)
        has_xtc = (probability > 0).to(tl.int32) * has_noise(slot, flags, row_params)
        u = tl.max(uniform(key, tl.zeros((1,), tl.int32), XTC, FP64), 0)
        if interval_params.xtc_threshold is not None:
            limit = tl.load(interval_params.xtc_threshold + slot).to(tl.float64)
        applies = has_xtc * (u < probability).to(tl.int32) * (limit <= _MAX_THRESHOLD).to(tl.int32)
        applies *= ((flags & DRAFT) == 0).to(tl.int32) * is_sampled
    return RowChain(is_last * is_sampled, has_xtc, applies, limit)


@triton.jit
def _second_weight(survey, scale):
    """Return an upper bound of the weight of the second token of a row, relative to the first, which weighs 1.

    The second token is the largest of another tile, or weighs no more than the first one's tile does without that.
    """
    is_first = survey.maximum == survey.max_logit
    weight = weigh(survey.maximum, survey.max_logit, scale)
    others = tl.max(tl.where(is_first, 0.0, weight), 0)
    rest = tl.sum(tl.where(is_first, tl.abs(survey.signed_sums), 0.0), 0) - 1.0
    return tl.maximum(others, rest)


@triton.jit
def is_redrawn(chain, survey, scale, k, p, floor):
    """Return 1 if ``redraw_rows`` has to draw a row, or 0 if the draw at hand is that of the row.

    XTC drops nothing unless two tokens are likely. Where top-p alone filters, the kept tokens weigh at least p of the
    mass.

    :param survey: the :class:`~.row_candidates.TileSurvey` at the temperature of the filters; ``scale`` is
        ``log2(e) / T``.
    :param k: of the row's :class:`~.rows.RowFilters`, like the others; 0 is off.
    """
    is_alone = (k == 0).to(tl.int32) * (floor == float("-inf")).to(tl.int32)
    mass = tl.sum(weigh_tiles(survey, scale), 0).to(tl.float64)
    kept_mass = tl.where(is_alone > 0, p * mass, 0.0)
    may_drop = (kept_mass * chain.limit <= _second_weight(survey, scale) * _ROUNDING).to(tl.int32)
    return tl.maximum(chain.is_last, chain.applies * may_drop)


# The kept interval of a row with many tokens: weighs its tiles, and draws from these weights.
#
# Reads the granules that reach the lower end, once for each weighing, and one tile for the draw.


class TiledRow(NamedTuple):
    """A row with many tokens, in memory."""

    source: Any
    """:class:`~.rows.RowAddress`."""
    maxima: Any
    """[tiles]; ``granules`` [tiles, 16]."""
    granules: Any
    sums: Any
    """[tiles] float32 of scratch; ``arrivals`` counts the programs of the row that are done."""
    arrivals: Any
    tiles: Any


class FilteredRow(NamedTuple):
    """What the filters before have left of a row, and what the draw needs to know of it."""

    threshold: Any
    """The least kept logit, behind a min-p that stands behind top-p."""
    is_raised: Any
    """1 if that min-p raised it, so that ``mass`` counts some dropped tokens too."""
    mass: Any
    """Of the kept tokens, at the temperature of the filters; of a row with many tokens."""
    max_logit: Any
    scale: Any
    """``log2(e) / T`` of the filters, as :func:`weigh` takes it."""
    inverse: Any
    """``1 / T`` of the draw."""


@triton.jit(noinline=True)
def _weigh_interval(row, first, end, low, high, origin, scale, config: tl.constexpr):
    """Write what each tile from ``first`` to before ``end`` weighs in an interval.

    :param low: tokens from here upwards count, up to ``high``.
    :param origin: a logit x weighs ``exp((x - origin) / T)``; ``scale`` is ``log2(e) / T``, see :func:`weigh`.
    """
    VECTOR: tl.constexpr = config.VECTOR
    TILES_AT_ONCE: tl.constexpr = config.TILES_AT_ONCE
    source, granules, sums = row.source, row.granules, row.sums
    VECTORS: tl.constexpr = TILE_SIZE // VECTOR
    vector = tl.arange(0, VECTORS)[None, :, None]
    granule = vector // (VECTORS // 2) * GRANULES_PER_HALF + vector % LANES // GRANULE_LANES
    start = first
    while start < end:
        tile = start + tl.arange(0, TILES_AT_ONCE)
        place = tile[:, None, None]
        maximum = tl.load(
            granules + place * GRANULES_PER_TILE + granule, mask=place < end, other=float("-inf")
        ).to(tl.float32)
        ids = place * TILE_SIZE + vector * VECTOR + tl.arange(0, VECTOR)[None, None, :]
        x = tl.load(source.base + ids, mask=(maximum >= low) & (ids < source.vocab_size), other=float("-inf"))
        x = x.to(tl.float32)
        x = tl.where((x >= low) & (x <= high), x, float("-inf"))
        tl.store(sums + tile, tl.sum(tl.sum(weigh(x, origin, scale), 2), 1), mask=tile < end)
        start += TILES_AT_ONCE
    tl.debug_barrier()  # the sums are read by other threads


@triton.jit
def is_likely(x, max_logit, scale, mass, limit):
    """Return whether each logit has at least the probability ``limit``, float64, and more than 0."""
    probability = weigh(x, max_logit, scale).to(tl.float64) / mass.to(tl.float64)
    return (probability >= limit) & (probability > 0)


@triton.jit(noinline=True)
def _least_likely(source, maxima, tiles, threshold, max_logit, scale, mass, limit, TILES: tl.constexpr):
    """Return (number of kept tokens with at least the probability ``limit``; the least logit of these, or +inf).

    Reads the tiles with such tokens, one at a time: at most ``1 / limit``, of the float64 ``limit``.
    """
    tile = tl.arange(0, TILES)
    maximum = tl.load(maxima + tile, mask=tile < tiles, other=float("-inf"))
    is_listed = is_likely(maximum, max_logit, scale, mass, limit) & (maximum >= threshold)
    count = tl.full((), 0, tl.int32)
    least = tl.full((), float("inf"), tl.float32)
    current = tl.min(tl.where(is_listed, tile, TILES), 0)
    while current < TILES:
        ids = current * TILE_SIZE + tl.arange(0, TILE_SIZE)
        x = tl.load(source.base + ids, mask=ids < source.vocab_size, other=float("-inf")).to(tl.float32)
        x = tl.where(x == x, x, float("-inf"))
        likely = is_likely(x, max_logit, scale, mass, limit) & (x >= threshold)
        count += tl.sum(likely.to(tl.int32), 0)
        least = tl.minimum(least, tl.min(tl.where(likely, x, float("inf")), 0))
        current = tl.min(tl.where(is_listed & (tile > current), tile, TILES), 0)
    return count, least


@triton.jit
def _draw_from_sums(row, threshold, peak, inverse, key, flags, config: tl.constexpr):
    """Draw a token of ``[threshold, peak]``: a tile by its sum, relative to ``peak``, then a token in the tile.

    Returns (token; what all tiles weigh).
    """
    source = row.source
    tile = tl.arange(0, config.TILES)
    weight = tl.load(row.sums + tile, mask=tile < row.tiles, other=0.0)
    of_token, of_tile = streams_of(flags)
    noise = gumbel(key, tile, of_tile, config.FP64)
    score = tl.where(
        weight > 0, tl.log(tl.where(weight > 0, weight, 1.0).to(noise.dtype)) + noise, float("-inf")
    )
    chosen = tl.argmax(score, 0)
    ids = chosen * TILE_SIZE + tl.arange(0, TILE_SIZE)
    x = tl.load(source.base + ids, mask=ids < source.vocab_size, other=float("-inf")).to(tl.float32)
    x = tl.where((x >= threshold) & (x <= peak), x, float("-inf"))
    score = scaled(x, peak, inverse, config.FP64) + gumbel(key, ids, of_token, config.FP64)
    return chosen * TILE_SIZE + tl.argmax(score, 0), tl.sum(weight, 0)


@triton.jit
def _part_of(tiles, TILES_AT_ONCE: tl.constexpr):
    """Return the tiles of this program's part of a row: (the first; the one behind the last)."""
    groups = (tiles + TILES_AT_ONCE - 1) // TILES_AT_ONCE
    span = (groups + tl.num_programs(1) - 1) // tl.num_programs(1) * TILES_AT_ONCE
    first = tl.program_id(1) * span
    return tl.minimum(first, tiles), tl.minimum(first + span, tiles)


@triton.jit(noinline=True)
def draw_tiles(row, filtered, chain, key, flags, config: tl.constexpr):
    """Draw a :class:`TiledRow`, of whose tiles each program of the row weighs a part.

    Returns (token, or -1 where the earlier draw holds; the greatest kept logit; the kept mass, relative to that one;
    1 in the program that has to write the results, else 0).
    """
    TILES: tl.constexpr = config.TILES
    threshold, max_logit = filtered.threshold, filtered.max_logit
    token = tl.full((), -1, tl.int32)
    peak = max_logit
    kept_mass = filtered.mass
    # Where the mass is not known, one program does all: few rows have this combination of filters.
    is_shared = 1 - filtered.is_raised * chain.applies
    is_finisher = (tl.program_id(1) == 0).to(tl.int32)
    if is_shared + is_finisher > 0:
        first, end = _part_of(row.tiles, config.TILES_AT_ONCE)
        if is_shared == 0:
            end = row.tiles
            _weigh_interval(row, first, end, threshold, max_logit, max_logit, filtered.scale, config)
            tile = tl.arange(0, TILES)
            kept_mass = tl.sum(tl.load(row.sums + tile, mask=tile < row.tiles, other=0.0), 0)
            tl.debug_barrier()  # the sums were read
        if chain.applies > 0:
            limit = chain.limit
            count, least = _least_likely(
                row.source,
                row.maxima,
                row.tiles,
                threshold,
                max_logit,
                filtered.scale,
                kept_mass,
                limit,
                TILES,
            )
            peak = tl.where(count > 1, least, max_logit)
        if chain.is_last + (peak < max_logit).to(tl.int32) > 0:
            _weigh_interval(row, first, end, threshold, peak, peak, filtered.inverse * LOG2_E, config)
            if is_shared > 0:
                # Releases this part's sums, and acquires those of the others in the program that is last.
                earlier = tl.atomic_add(row.arrivals, 1, sem="acq_rel")
                is_finisher = (earlier == tl.num_programs(1) - 1).to(tl.int32)
            if is_finisher > 0:
                token, kept_mass = _draw_from_sums(row, threshold, peak, filtered.inverse, key, flags, config)
    return token, peak, kept_mass, is_finisher


# The draw of rows with XTC or ``temperature_last`` from the thresholds of launches 2 and 3.
#
# A row with few candidates is drawn from their list by one program. The tiles of another are weighed by several, the
# last of which draws. Rows that ask for neither keep their token, and so do those that launch 2 has marked. Reads 1
# KB of a row with few candidates, and of another the granules that reach its threshold.


@triton.jit
def _draw_candidates(lists, row, num_candidates, filtered, chain, key, flags, config: tl.constexpr):
    """Draw a row from its candidates; return (token, the greatest kept logit, the kept mass relative to that one)."""
    threshold, max_logit, inverse = filtered.threshold, filtered.max_logit, filtered.inverse
    N: tl.constexpr = config.SMALL_CANDIDATES
    i = tl.arange(0, N)
    place = row.to(tl.int64) * N + i
    x = tl.load(lists.logits + place, mask=i < num_candidates, other=float("-inf"))
    ids = tl.load(lists.ids + place, mask=i < num_candidates, other=INT32_MAX)
    kept = (x >= threshold) & (x > float("-inf"))
    peak = max_logit
    if chain.applies > 0:
        weight = tl.where(kept, weigh(x, max_logit, filtered.scale), 0.0)
        likely = kept & is_likely(x, max_logit, filtered.scale, tl.sum(weight, 0), chain.limit)
        if tl.sum(likely.to(tl.int32), 0) > 1:
            peak = tl.min(tl.where(likely, x, float("inf")), 0)
            kept &= x <= peak
    of_token, of_tile = streams_of(flags)
    x = tl.where(kept, x, float("-inf"))
    weight = weigh(x, peak, inverse * LOG2_E)
    score = scaled(x, peak, inverse, config.FP64)
    token = draw_candidate(score, weight, kept, ids, key, of_token, of_tile, config.FP64)
    return token, peak, tl.sum(weight, 0)


@triton.jit
def _log_share(
    statistics, first_tile, tiles, is_last, kept_mass, peak, max_logit, inverse, config: tl.constexpr
):
    """Return the logarithm of the kept share of a row's mass at its temperature."""
    tile = tl.arange(0, config.TILES)
    inside = tile < tiles
    maximum = tl.load(statistics.maxima + first_tile + tile, mask=inside, other=float("-inf"))
    total = tl.load(statistics.sums + first_tile + tile, mask=inside, other=0.0)
    if statistics.raw_sums is not None:
        other = tl.load(statistics.raw_sums + first_tile + tile, mask=inside, other=0.0)
        total = tl.where(is_last > 0, other, total)
    mass = tl.sum(tl.abs(total) * weigh(maximum, max_logit, inverse * LOG2_E), 0)
    log_kept = tl.log(kept_mass) + scaled(peak, max_logit, inverse, False) - tl.log(mass)
    return tl.minimum(log_kept, 0.0)


@triton.jit
def _exchange_sums(statistics, first_tile, tiles, TILES: tl.constexpr):
    """Exchange the sums of a row's tiles at T = 1 with those at the row's temperature."""
    tile = tl.arange(0, TILES)
    inside = tile < tiles
    first = tl.load(statistics.sums + first_tile + tile, mask=inside, other=0.0)
    second = tl.load(statistics.raw_sums + first_tile + tile, mask=inside, other=0.0)
    tl.debug_barrier()  # both were read
    tl.store(statistics.sums + first_tile + tile, second, mask=inside)
    tl.store(statistics.raw_sums + first_tile + tile, first, mask=inside)


@triton.jit(
    do_not_specialize=["counts", "flags"],
    do_not_specialize_on_alignment=["interval_params", "interval"],
)
def redraw_rows(
    logits,
    drafts,
    counts,
    statistics,
    row_params,
    interval_params,
    flags,
    lists,
    summary,
    out,
    interval,
    kept,
    config: tl.constexpr,
):
    """Draw the rows again that ask for XTC or ``temperature_last``. Grid (rows, parts of a row with many tokens).

    :param drafts: rows of drafts, behind those of ``logits``, which XTC leaves alone.
    :param statistics: :class:`~.rows.TileStatistics` at the temperature of the filters; ``raw_sums`` are those at the
        other one of 1 and the row's temperature. Afterwards they are at T = 1, and ``sums`` at the row's temperature.
    :param summary: :class:`~.rows.RowSummary` as launch 2 left it, like ``lists``.
    """
    row, target_row = row_of(tl.program_id(0), drafts, counts)
    is_target = tl.full((), 1, tl.int32)
    chain_flags = flags
    if drafts.cu_num_logits is not None:
        if row < 0:
            return
        is_target = (row < counts.target_rows).to(tl.int32)
        chain_flags = tl.where(is_target > 0, flags, flags | DRAFT)
    slot = slot_of(target_row, flags, row_params)
    key = noise_key(target_row, slot, flags, row_params)
    inverse, greedy = inverse_temperature(row_params.temperature, slot)
    chain = load_chain(slot, greedy, key, row_params, interval_params, chain_flags, config.FP64)
    max_logit = tl.load(summary.max_logit + row)
    peak = max_logit
    first_tile = row.to(tl.int64) * counts.tiles
    is_finisher = (tl.program_id(1) == 0).to(tl.int32)
    token = tl.full((), -1, tl.int32)
    kept_mass = tl.full((), 0.0, tl.float32)
    is_bounded = (max_logit > float("-inf")).to(tl.int32) * (max_logit < float("inf")).to(tl.int32)
    is_bounded *= (tl.load(interval.arrivals + row) != KEEPS_DRAW).to(tl.int32)
    if (chain.is_last + chain.applies) * is_bounded > 0:
        source = row_logits(row, logits, drafts, counts)
        maxima = statistics.maxima + first_tile
        filter_scale = tl.where(chain.is_last > 0, 1.0, inverse) * LOG2_E
        earlier_threshold = tl.load(out.threshold + row)
        threshold = earlier_threshold
        if chain.is_last > 0:
            _, _, min_p, _ = load_filters(slot, logits.vocab_size, flags, row_params)
            one, off = tl.full((), 1.0, tl.float64), tl.full((), float("-inf"), tl.float32)
            threshold = tl.maximum(threshold, lowest_kept(max_logit, one, min_p, off))
        is_raised = (threshold > earlier_threshold).to(tl.int32)
        num_candidates = tl.load(summary.num_candidates + row)
        if num_candidates < 0:
            granules = statistics.granules + first_tile * GRANULES_PER_TILE
            mass = tl.load(summary.total_weight + row) * tl.exp(tl.load(out.log_kept + row))
            sums, arrivals = interval.sums + first_tile, interval.arrivals + row
            tiled = TiledRow(source, maxima, granules, sums, arrivals, counts.tiles)
            filtered = FilteredRow(threshold, is_raised, mass, max_logit, filter_scale, inverse)
            token, peak, kept_mass, is_finisher = draw_tiles(tiled, filtered, chain, key, flags, config)
        elif is_finisher > 0:
            filtered = FilteredRow(threshold, is_raised, None, max_logit, filter_scale, inverse)
            token, peak, kept_mass = _draw_candidates(
                lists, row, num_candidates, filtered, chain, key, flags, config
            )
        if token >= 0:
            tl.store(out.token_ids + row, token.to(tl.int64))
            if config.HAS_LOGPROBS:
                log_kept = _log_share(
                    statistics,
                    first_tile,
                    counts.tiles,
                    chain.is_last,
                    kept_mass,
                    peak,
                    max_logit,
                    inverse,
                    config,
                )
                tl.store(out.log_kept + row, log_kept)
                tl.store(interval.log_masses + row, tl.log(kept_mass))
        if is_raised * is_finisher > 0:
            tl.store(out.threshold + row, threshold)
        is_dropped_above = (peak < max_logit).to(tl.int32)
        is_wanted = ((flags & LEAST_KEPT) != 0).to(tl.int32) * is_finisher * is_target
        if is_wanted * (is_raised + is_dropped_above) > 0:
            least = least_reaching(source, threshold)
            if is_dropped_above == 0:
                is_value = tl.full((), 1, tl.int32)
                least = least_kept(source, maxima, counts.tiles, least, is_value)
            tl.store(out.least_kept + row, least)
    if config.HAS_LOGPROBS:
        if interval_params.temperature_last is not None:
            if statistics.raw_sums is not None:
                if chain.is_last * is_finisher > 0:
                    tl.debug_barrier()  # the sums were read
                    _exchange_sums(statistics, first_tile, counts.tiles, config.TILES)
    if kept.peaks is not None:
        if is_finisher > 0:
            # Where the earlier draw holds, its numbers do, bit for bit.
            earlier_mass, log_share = tl.load(summary.total_weight + row), tl.load(out.log_kept + row)
            tl.store(kept.peaks + row, peak)
            tl.store(kept.masses + row, tl.where(token >= 0, kept_mass, earlier_mass))
            tl.store(kept.log_shares + row, tl.where(token >= 0, 0.0, log_share))
    if interval.ceiling is not None:
        if is_finisher * is_target > 0:
            ceiling = tl.where(max_logit > float("-inf"), peak, float("nan"))
            tl.store(interval.ceiling + row, tl.where(chain.has_xtc > 0, ceiling, float("inf")))


# The host side: the tensors of a batch in which a row may ask, and a launch before the draw and one behind it.

_WARPS = 4
_TILES_AT_ONCE = 4
_PROGRAMS = 16
"""Programs a multiprocessor, about: a row has parts as long as there are no more."""


class IntervalArguments(NamedTuple):
    """Arguments of the launches."""

    params: IntervalParams
    filter_params: FilterParams
    """To be filled in."""
    ceiling: Any
    """[rows] float32, to be filled in; None without XTC."""
    slots: int

    @classmethod
    def of(cls, tensors: Sequence[Any], slots: int) -> IntervalArguments:
        """Group the arguments for the tensors of :meth:`IntervalLaunches.tensors`."""
        params, written = group(IntervalParams, tensors[:3]), group(FilterParams, tensors[3:6])
        return cls(params, written, tensors[6], slots)


class IntervalLaunches:
    """The launches of a variant, and the scratch for weights of tiles."""

    def __init__(self, variant: Variant, target: Target, scratch: Scratch, tiles: TileLaunches) -> None:
        self.log_masses = scratch.reserve(torch.float32) if variant.has_logprobs else None
        """Index of the buffer of :attr:`KeptInterval.log_masses`."""
        self._kept = scratch.fields((torch.float32, tiles.count), (torch.int32, 1), self.log_masses)
        self._max_parts, self._programs = -(-tiles.count // _TILES_AT_ONCE), _PROGRAMS * target.processors
        self._params, self._has_ceiling = variant.params.interval or (), variant.has_ceiling
        self._written: tuple[torch.dtype | None, ...] = (None, None, None)
        """Dtypes of ``FilterParams``."""
        if variant.is_tempered_last:
            temperature, min_p = (
                variant.params.dtypes[FIELDS.index(name)] for name in ("temperature", "min_p")
            )
            self._written = temperature, temperature if variant.has_second_sums else None, min_p
        config = IntervalConfig(
            FP64=target.fp64,
            TILES=tiles.count_limit,
            TILES_AT_ONCE=_TILES_AT_ONCE,
            VECTOR=variant.logits.vector,
            SMALL_CANDIDATES=SMALL_CANDIDATES,
            HAS_LOGPROBS=variant.has_logprobs,
        )
        self._filter_params = Launch(filter_params, {}, target.options(_WARPS))
        self._redraw = Launch(redraw_rows, {"config": config}, target.options(_WARPS))

    def tensors(self, m: SamplingMetadata, proto: Tensor, rows: int) -> ParamTensors:
        """Return the parameters of a batch, and new tensors for what launches write: by slot, and ceilings by row.

        :param proto: an empty float32 tensor on the device.
        """
        params = interval_tensors(m)
        slots = 0 if params[0] is None else len(params[0])
        written = [None if dtype is None else proto.new_empty(slots, dtype=dtype) for dtype in self._written]
        return *params, *written, proto.new_empty(rows) if self._has_ceiling else None

    def placeholders(self) -> IntervalArguments:
        dtypes = (*self._params, *self._written, torch.float32 if self._has_ceiling else None)
        return IntervalArguments.of([any_pointer(dtype) for dtype in dtypes], ANY_INT)

    def filter_step(self, arguments: LaunchArguments) -> Step:
        """Return the launch that fills in the parameters of the filters."""
        interval: IntervalArguments = arguments.interval
        grid = (-(-interval.slots // SLOTS_PER_PROGRAM.value), 1, 1)
        is_last, written = interval.params.temperature_last, interval.filter_params
        groups = arguments.params, is_last, written, interval.slots, arguments.flags
        return self._filter_params, grid, groups

    def results(self, arguments: LaunchArguments) -> KeptInterval:
        """Return the results and the scratch of the last launch; the draw of rows writes ``arrivals``."""
        return group(KeptInterval, (arguments.interval.ceiling, *self._kept(arguments.scratch)))

    def redraw_step(
        self, arguments: LaunchArguments, statistics: TileStatistics, draw: DrawArguments, kept: KeptMasses
    ) -> Step:
        """Return the launch that draws the rows again.

        :param kept: masses of the rows that a verification wants, to be filled in.
        """
        number, *_ = arguments.geometry.row_grid
        parts = max(1, min(self._max_parts, self._programs // number))
        of_rows = draw.logits, draw.drafts, draw.counts, statistics
        selected = arguments.params, draw.interval_params, draw.flags
        left = draw.lists, draw.summary, draw.results, draw.interval, kept
        return self._redraw, (number, parts, 1), (*of_rows, *selected, *left)


def params_of_filters(params: RowParams, written: FilterParams) -> RowParams:
    """Return the parameters of requests with those that the filters look at in their place."""
    temperature = params.temperature if written.temperature is None else written.temperature
    min_p = params.min_p if written.min_p is None else written.min_p
    return params._replace(temperature=temperature, min_p=min_p)
