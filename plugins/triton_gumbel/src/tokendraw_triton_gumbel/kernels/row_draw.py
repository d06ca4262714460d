"""The launch that draws a token for each row, one program a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.interval import KEEPS_DRAW, is_redrawn, load_chain
from tokendraw_triton_gumbel.kernels.large_set_passes import (
    IS_EXACT,
    NEARLY_ONE,
    STATE_INTS,
    LargeWork,
    announce_first_pass,
    least_and_total,
)
from tokendraw_triton_gumbel.kernels.logprobs import ModeScale, log_mass, lowest_visible, visible_of_token
from tokendraw_triton_gumbel.kernels.row_candidates import (
    bound_by_granules,
    bound_by_tiles,
    draw_candidate,
    draw_in_tile,
    keep_by_comparison,
    list_candidates,
    list_granules,
    load_candidates,
    survey_tiles,
    weigh_tiles,
)
from tokendraw_triton_gumbel.kernels.rows import (
    EXACT,
    HAS_FLOOR,
    LEAST_KEPT,
    OWN,
    RANKED,
    SMALL_CANDIDATES,
    CandidateLists,
    RowFilters,
    RowScale,
    gumbel,
    inverse_temperature,
    load_filters,
    load_temperature,
    mode_temperature,
    noise_key,
    row_logits,
    row_of,
    slot_of,
    streams_of,
)
from tokendraw_triton_gumbel.kernels.tile_pass import TileLaunches
from tokendraw_triton_gumbel.kernels.values import (
    GRANULES_PER_TILE,
    LOG2_E,
    least_kept,
    lowest_kept,
    scaled,
    weigh,
)
from tokendraw_triton_gumbel.launch import Launch
from tokendraw_triton_gumbel.plan import PER_ROW, Scratch, Target, Variant


class TokenLogprobs(NamedTuple):
    """The log-probability of the drawn token, written by the draw of rows without filters."""

    ranks: Any
    """[target rows] int64, set to 0 if the flags say RANKED."""
    sums: Any
    """[rows, tiles] float32: the sums of the tiles by which the logprobs mode normalises."""
    ids: Any
    """[rows] int64, written, like ``logprobs``, if the flags say OWN."""
    logprobs: Any
    """[rows] float32."""


class RowConfig(NamedTuple):
    """Constants of launch 2, the draw of a row."""

    HAS_FILTERS: bool
    FP64: bool
    """Whether noise is float64."""
    TILES: int
    """A power of two from the number of tiles upwards."""
    VECTOR: int
    IS_ALIGNED: bool
    """Whether every row begins at a multiple of 16 bytes."""
    SMALL_CANDIDATES: int
    """Candidates compared all with all."""
    GRANULES_AT_ONCE: int
    """Granules read at once."""
    ULP_STEP: int
    """Float32 keys from one value of the logits' dtype to the next: 65536 of bfloat16, otherwise 1."""
    BY_FACTORS: bool
    """Whether to compare candidates by factors, with more registers. NVIDIA."""
    IS_NVIDIA: bool


# Draws a row that keeps few tokens: collects candidates, and does everything else in registers.
#
# Reads the logits from a bound upwards, and applies the filters to them, by :mod:`.row_candidates`. That is right
# because no kept token lies below: with top-k at least k maxima, which are tokens, reach the bound, and what comes
# behind top-k looks at what that keeps; a floor is a bound itself; and with top-p alone what reaches it is weighed
# first, and left to :mod:`.large_set` if it weighs less than p of the row.

_UNKNOWN_COUNT = tl.constexpr(2147483647)
"""Represents an uncounted number."""


class DrawnRow(NamedTuple):
    """A row with filters."""

    source: Any
    """:class:`~.rows.RowAddress`."""
    number: Any
    granules: Any
    """[tiles, 16] maxima, in memory."""
    tiles: Any


@triton.jit
def _floor_and_mass(x, kept, scale):
    """Return (the least kept logit, the kept mass)."""
    weight = tl.where(kept, weigh(x, scale.max_logit, scale.scale), 0.0)
    return tl.reduce((tl.where(kept, x, float("inf")), weight), 0, least_and_total)


@triton.jit
def _list(row, lists, bound, config: tl.constexpr):
    """List the logits that reach ``bound``; return their number, or _UNKNOWN_COUNT if too many granules reach it."""
    N: tl.constexpr = config.SMALL_CANDIDATES
    num_found = tl.full((), _UNKNOWN_COUNT, tl.int32)
    num_granules = list_granules(row.granules, row.tiles, bound, lists.granules, N, config.IS_NVIDIA)
    if num_granules <= N:
        num_found = list_candidates(
            row.source,
            lists.granules,
            num_granules,
            bound,
            lists.ids,
            config.VECTOR,
            N,
            config.GRANULES_AT_ONCE,
            config.IS_NVIDIA,
            config.IS_ALIGNED,
        )
    return num_found


@triton.jit
def draw_small_set(
    row, lists, bound, scale, filters, required_mass, key, flags, wants_token, config: tl.constexpr
):
    """Draw a row from the logits that reach ``bound``.

    Returns (token, or -1 with more such logits than the room holds; the least kept logit; the kept mass; the number of
    candidates). If the flags ask for more than the token, the candidates stay in ``lists``, tile by tile.

    :param bound: no token below it is kept, and no filter depends on one.
    :param required_mass: the least mass of the logits from ``bound`` upwards; with less the token is -1.
    :param flags: say whether to return the least kept logit and the mass: see :mod:`.rows`.
    """
    N: tl.constexpr = config.SMALL_CANDIDATES
    token = tl.full((), -1, tl.int32)
    threshold = bound
    kept_mass = scale.mass
    num_candidates = tl.full((), -1, tl.int32)
    num_found = _list(row, lists, bound, config)
    if num_found <= N:
        x, ids = load_candidates(row.source.base, lists.ids, num_found, config.VECTOR, N)
        is_enough = tl.full((), 1, tl.int32)
        if required_mass > 0:
            is_enough = (tl.sum(weigh(x, scale.max_logit, scale.scale), 0) >= required_mass).to(tl.int32)
        if is_enough > 0:
            kept = keep_by_comparison(x, num_found, scale, filters, N, config.BY_FACTORS)
            mass_of_kept = tl.sum(tl.where(kept, weigh(x, scale.max_logit, scale.scale), 0.0), 0)
            tl.device_assert(mass_of_kept >= required_mass * NEARLY_ONE, "a nucleus of less than p")
            token = tl.full((), 0, tl.int32)
            if wants_token:
                of_token, of_tile = streams_of(flags)
                score = scaled(x, scale.max_logit, scale.inverse, config.FP64)
                weight = tl.where(kept, weigh(x, scale.max_logit, scale.scale), 0.0)
                token = draw_candidate(score, weight, kept, ids, key, of_token, of_tile, config.FP64)
            num_candidates = num_found
            if (flags & EXACT) != 0:
                threshold, kept_mass = _floor_and_mass(x, kept, scale)
                tl.debug_barrier()  # the list was read
                i = tl.arange(0, N)
                tl.store(lists.logits + i, x, mask=i < num_found)
                tl.store(lists.ids + i, ids, mask=i < num_found)
    return token, threshold, kept_mass, num_candidates


# The draw of a row with filters: from few candidates, or left to the launch for large sets.
#
# Whether a row with top-p alone has few is guessed from its tiles: the tokens from a bound upwards weigh about what the
# tiles do that reach it, less what as many others weigh. The guess only chooses where to look: candidates are drawn
# from where a bound is proven, or where their own mass has been compared with p.

_MAX_K = tl.constexpr(112)
"""Largest k whose candidates are collected here: some more logits than k reach a bound, and 128 are compared."""
_FIRST_TOKENS = tl.constexpr(48)
"""Number of tokens in the first try, where top-p alone filters."""
_MAX_TOKENS = tl.constexpr(112.0)
"""Approximate number of tokens in the second try: few enough to compare all with all."""
_RETRY_MASS_SHARE = tl.constexpr(0.93)
"""Least estimated share of the nucleus in the first try that justifies a second."""
_MIN_MASS_SHARE = tl.constexpr(0.97)
"""Least estimated share of the nucleus that justifies collecting candidates."""
_SMALL_VOCAB = tl.constexpr(4096)
"""Upper limit of a vocabulary whose logits may be compared themselves."""
_MIN_VISIBLE_SHARE = tl.constexpr(0.2)
"""Mass of the maxima of all tiles, as a share of the nucleus, from which on maxima of granules show its edge better
than a sample."""


@triton.jit
def _estimate_mass(survey, masses, scale, bound):
    """Estimate (the mass of the tokens that reach a bound; the mass of all maxima).

    The first is the mass of the tiles that reach the bound, less the mean mass of as many other tiles.

    :param masses: [TILES], which add up to ``scale.mass``.
    """
    reaches_bound = survey.maximum >= bound
    visible_mass = weigh(survey.maximum, scale.max_logit, scale.scale)
    count, tile_mass, visible_mass = tl.reduce(
        (reaches_bound.to(tl.int32), tl.where(reaches_bound, masses, 0.0), visible_mass), 0, _add
    )
    other_tiles = survey.num_tiles - count
    mean_rest = (scale.mass - tile_mass) / tl.maximum(other_tiles, 1).to(tl.float32)
    return tile_mass - mean_rest * count.to(tl.float32), visible_mass


@triton.jit
def _add(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def draw_filtered(row, survey, inverse, filters, key, flags, wants_token, work, config: tl.constexpr):
    """Draw a row with a finite largest logit, or announce its first pass.

    Returns (token, or -1; the mass of the row; the least kept logit; the kept share of the mass; how many candidates
    there are, or -1; 1 if the row is left to the launch for large sets).
    """
    source, granules, tiles = row.source, row.granules, row.tiles
    SMALL: tl.constexpr = config.SMALL_CANDIDATES
    scale = inverse * LOG2_E
    masses = weigh_tiles(survey, scale)
    mass = tl.sum(masses, 0)
    scales = RowScale(survey.max_logit, scale, inverse, mass)
    k, p, lower_limit = filters.k, filters.p, filters.floor
    # Top-p over the mass of the full row proves no bound; the likeliest tokens are tried, and then weighed.
    by_mass_alone = (k == 0).to(tl.int32) * (p < 1).to(tl.int32)
    by_mass_alone *= (lower_limit == float("-inf")).to(tl.int32) + (filters.joint != 0).to(tl.int32)
    required_mass = tl.where(by_mass_alone > 0, (p * mass.to(tl.float64)).to(tl.float32), 0.0)
    bound = lower_limit
    estimated_mass = tl.full((), 0.0, tl.float32)
    visible_mass = tl.full((), 0.0, tl.float32)
    num_granules = tiles * GRANULES_PER_TILE
    # More than that are left to the launch for large sets, unless the floor leaves fewer.
    if ((k > 0) & (k <= _MAX_K)).to(tl.int32) + by_mass_alone > 0:
        target_count = tl.where(k > 0, k, _FIRST_TOKENS).to(tl.int32)
        # Maxima of few tiles prove little or nothing.
        if survey.num_tiles < 2 * target_count:
            max_count = tl.full((), SMALL, tl.int32)  # no constant, so that the function is compiled once
            # Few maxima prove nothing; the logits of a small vocabulary take their place.
            is_small_vocab = (source.vocab_size <= _SMALL_VOCAB) & (5 * target_count > 4 * num_granules)
            proven_bound = bound_by_granules(
                tl.where(is_small_vocab, source.base, granules),
                tl.where(is_small_vocab, source.vocab_size, num_granules),
                lower_limit,
                survey.max_logit,
                target_count,
                max_count,
            )
            if by_mass_alone > 0:
                estimated_mass, visible_mass = _estimate_mass(survey, masses, scales, proven_bound)
        else:
            number_of_tiles = survey.num_tiles.to(tl.float32)
            is_trying = tl.full((), 1, tl.int32)
            proven_bound = lower_limit
            while is_trying > 0:
                proven_bound = bound_by_tiles(
                    survey.maximum,
                    survey.max_logit,
                    survey.min_maximum,
                    survey.num_tiles,
                    target_count,
                    config.TILES,
                    config.IS_NVIDIA,
                )
                is_trying = by_mass_alone * (target_count == _FIRST_TOKENS).to(tl.int32)
                if by_mass_alone > 0:
                    estimated_mass, visible_mass = _estimate_mass(survey, masses, scales, proven_bound)
                    is_trying *= (estimated_mass < required_mass).to(tl.int32) * (
                        estimated_mass >= required_mass * _RETRY_MASS_SHARE
                    ).to(tl.int32)
                    # The expected number of tiles that hold _MAX_TOKENS largest tokens.
                    expected_tiles = number_of_tiles * (1.0 - tl.exp(-1.0 / number_of_tiles * _MAX_TOKENS))
                    target_count = tl.where(is_trying > 0, expected_tiles.to(tl.int32), target_count)
        # The floor decides alone, whatever the mass above it.
        required_mass = tl.where(
            (lower_limit > float("-inf")) & (proven_bound <= lower_limit), 0.0, required_mass
        )
        bound = tl.maximum(bound, proven_bound)
    token = tl.full((), -1, tl.int32)
    threshold = tl.full((), float("-inf"), tl.float32)
    num_candidates = tl.full((), -1, tl.int32)
    kept_mass = mass
    is_worthwhile = (bound > float("-inf")).to(tl.int32)
    if by_mass_alone > 0:
        is_worthwhile *= (estimated_mass >= required_mass * _MIN_MASS_SHARE).to(tl.int32)
    start = row.number.to(tl.int64) * SMALL
    lists = work.lists
    row_lists = CandidateLists(lists.granules + start, lists.logits + start, lists.ids + start)
    if is_worthwhile > 0:
        token, threshold, kept_mass, num_candidates = draw_small_set(
            row, row_lists, bound, scales, filters, required_mass, key, flags, wants_token, config
        )
    is_large = tl.full((), 0, tl.int32)
    if token < 0:
        is_large = tl.full((), 1, tl.int32)
        by_maxima = visible_mass >= required_mass * _MIN_VISIBLE_SHARE
        proven_bound = tl.where(by_mass_alone > 0, float("-inf"), bound)
        announce_first_pass(
            source,
            granules,
            num_granules,
            row.number,
            proven_bound,
            scales,
            filters,
            survey.has_nan,
            by_maxima,
            key,
            work,
            config.ULP_STEP,
        )
    return token, mass, threshold, kept_mass / mass, num_candidates, is_large


# Launch 2, the draw of a row: a tile by its log-sum-exp plus noise, then a token in that tile.
#
# Reads 8 bytes a tile and, of a row without filters, one tile of logits; of a row with filters the maxima of its
# granules, the granules that may hold a kept token, and the candidates in them again. Writes 9 bytes a row, and as
# scratch two lists of 128. One program a row; greedy rows take the same path without noise. A row with more than 128
# candidates, or some 110 kept tokens with top-p alone, is left to :mod:`.large_set`.


@triton.jit(do_not_specialize=["counts", "flags"])
def draw_rows(
    logits,
    drafts,
    counts,
    statistics,
    row_params,
    flags,
    lists,
    queue,
    state,
    out,
    summary,
    logprobs,
    interval_params,
    interval,
    config: tl.constexpr,
):
    """Each program draws a row.

    :param row_params: :class:`~.rows.RowParams` (Triton's own code has a variable ``params``); ``flags`` say which of
        them are there, and what is wanted.
    :param queue: :class:`~.large_set_passes.WorkQueue` in which rows are announced that are left without a token; what
        is known of them is in ``state``.
    :param interval: :class:`~.interval.KeptInterval`, of which ``arrivals`` are written.
    """
    row, target_row = row_of(tl.program_id(0), drafts, counts)
    if drafts.cu_num_logits is not None:
        if row < 0:
            return
    wants_token: tl.constexpr = True
    if drafts.cu_num_logits is not None:
        wants_token = row < counts.target_rows  # the token of a draft's row is known
    slot = slot_of(target_row, flags, row_params)
    inverse, greedy = inverse_temperature(row_params.temperature, slot)
    key = noise_key(target_row, slot, flags, row_params)
    if config.HAS_FILTERS:
        k, p, min_p, joint = load_filters(slot, logits.vocab_size, flags, row_params)

    first_tile = row.to(tl.int64) * counts.tiles
    survey = survey_tiles(statistics, first_tile, counts.tiles, config.TILES)
    maximum, max_logit = survey.maximum, survey.max_logit
    source = row_logits(row, logits, drafts, counts)
    token = tl.full((), -1, tl.int32)
    is_large = tl.full((), 0, tl.int32)
    mass = tl.full((), -1.0, tl.float32)
    threshold = tl.full((), float("-inf"), tl.float32)
    share = tl.full((), 1.0, tl.float32)
    num_candidates = tl.full((), -1, tl.int32)
    row_flags = flags
    if config.HAS_FILTERS:
        if interval.arrivals is not None:
            row_flags = flags | EXACT
        granules = statistics.granules + row.to(tl.int64) * counts.tiles * GRANULES_PER_TILE
        # Scalars are joined as integers: the interpreter's comparisons of floats are not booleans.
        has_filter = (k > 0).to(tl.int32) + (p < 1).to(tl.int32) + (min_p > 0).to(tl.int32)
        floor = tl.load(row_params.floor + row, mask=(flags & HAS_FLOOR) != 0, other=float("-inf"))
        has_filter += (floor > float("-inf")).to(tl.int32)
        is_bounded = (max_logit > float("-inf")).to(tl.int32) * (max_logit < float("inf")).to(tl.int32)
        if has_filter * is_bounded * (greedy == 0).to(tl.int32) > 0:
            temperature = tl.full((), 1.0, tl.float64)
            if row_params.temperature is not None:
                temperature, _ = load_temperature(row_params.temperature, slot)
            filters = RowFilters(k, p, lowest_kept(max_logit, temperature, min_p, floor), joint)
            if interval.arrivals is not None:
                # Rows of drafts count as the target's: their thresholds are exact in any case.
                chain = load_chain(slot, greedy, key, row_params, interval_params, flags, config.FP64)
                is_exact = is_redrawn(chain, survey, inverse * LOG2_E, k, p, filters.floor)
                row_flags = tl.where(is_exact > 0, flags | EXACT, flags)
                tl.store(state.ints + row.to(tl.int64) * STATE_INTS + IS_EXACT, row_flags & EXACT)
            drawn_row = DrawnRow(source, row, granules, counts.tiles)
            work = LargeWork(lists, queue, state)
            token, mass, threshold, share, num_candidates, is_large = draw_filtered(
                drawn_row, survey, inverse, filters, key, row_flags, wants_token, work, config
            )
        if interval.arrivals is not None:
            tl.store(interval.arrivals + row, tl.where((row_flags & EXACT) != 0, 0, KEEPS_DRAW))
    if is_large == 0:
        if (token < 0) & wants_token:
            if config.HAS_FILTERS:
                token = _draw_unfiltered_row(
                    source,
                    statistics,
                    first_tile,
                    counts.tiles,
                    max_logit,
                    inverse,
                    greedy,
                    key,
                    flags,
                    config,
                )
            else:
                sums = survey.signed_sums
                token = _draw_unfiltered(
                    source, maximum, sums, counts.tiles, max_logit, inverse, greedy, key, flags, config
                )
        if (row_flags & EXACT) != 0:
            tl.store(out.threshold + row, threshold)
            tl.store(out.log_kept + row, tl.log(tl.minimum(share, 1.0)))
        if ((flags & LEAST_KEPT) != 0) & (row < counts.target_rows):
            bound = tl.where(greedy, max_logit, threshold)
            least = bound
            # With a maximum below the bound some logit was dropped, and the bound is a logit.
            is_bounded = (bound > float("-inf")).to(tl.int32)
            if is_bounded * (survey.min_maximum >= bound).to(tl.int32) > 0:
                is_value = tl.full((), 1, tl.int32)
                least = least_kept(source, statistics.maxima + first_tile, counts.tiles, bound, is_value)
            least = tl.where(max_logit < float("inf"), least, float("inf"))
            tl.store(out.least_kept + row, tl.where(max_logit > float("-inf"), least, float("nan")))
    has_tokens = max_logit > float("-inf")
    tl.store(
        logprobs.ranks + row,
        tl.zeros((), tl.int64),
        mask=((flags & RANKED) != 0) & (row < counts.target_rows),
    )
    if not config.HAS_FILTERS:
        if (flags & OWN) != 0:
            token = tl.where(has_tokens, tl.maximum(token, 0), 0)
            sums = logprobs.sums + first_tile
            _write_logprob(source, row, token, slot, survey, sums, counts.tiles, row_params, flags, logprobs)
    if summary.max_logit is not None:
        if mass < 0:
            weight = weigh(maximum, max_logit, inverse * LOG2_E)
            weight = tl.where(max_logit < float("inf"), weight, (maximum == float("inf")).to(tl.float32))
            mass = tl.where(has_tokens, tl.sum(tl.abs(survey.signed_sums) * weight, 0), 1.0)
        tl.store(summary.max_logit + row, max_logit)
        tl.store(summary.total_weight + row, mass)
        if summary.num_candidates is not None:
            tl.store(summary.num_candidates + row, num_candidates)
    tl.store(out.token_ids + row, tl.where(has_tokens, tl.maximum(token, 0), 0).to(tl.int64))
    tl.store(out.valid + row, has_tokens.to(tl.int32) * (survey.has_nan == 0).to(tl.int32) > 0)


@triton.jit
def _draw_unfiltered(
    source, maximum, signed_sums, tiles, max_logit, inverse, greedy, key, flags, config: tl.constexpr
):
    """Draw a row without filters."""
    FP64: tl.constexpr = config.FP64
    tile = tl.arange(0, config.TILES)
    distance = scaled(maximum, max_logit, inverse, FP64)
    of_token, of_tile = streams_of(flags)
    noise = gumbel(key, tile, of_tile, FP64)
    score = tl.log(tl.abs(signed_sums).to(distance.dtype)) + distance + noise
    score = tl.where(greedy, tl.where(maximum == max_logit, 0.0, float("-inf")).to(score.dtype), score)
    chosen = tl.argmax(tl.where(tile < tiles, score, float("-inf")), 0)
    return draw_in_tile(source, chosen, float("-inf"), max_logit, inverse, greedy, key, of_token, FP64)


@triton.jit(noinline=True)
def _draw_unfiltered_row(
    source, statistics, first_tile, tiles, max_logit, inverse, greedy, key, flags, config: tl.constexpr
):
    """Draw a row without filters in a batch with filters, off the filtered rows' common path."""
    tile = tl.arange(0, config.TILES)
    maximum = tl.load(statistics.maxima + first_tile + tile, mask=tile < tiles, other=float("-inf"))
    signed_sums = tl.load(statistics.sums + first_tile + tile, mask=tile < tiles, other=0.0)
    return _draw_unfiltered(
        source, maximum, signed_sums, tiles, max_logit, inverse, greedy, key, flags, config
    )


@triton.jit
def _write_logprob(source, row, token, slot, survey, sums, tiles, row_params, flags, logprobs):
    """Write the drawn token and its value in the logprobs mode.

    :param sums: [tiles] of the row, by which the mode normalises.
    """
    tile = tl.arange(0, survey.maximum.shape[0])
    weight = tl.load(sums + tile, mask=tile < tiles, other=0.0)
    temperature, inverse, is_greedy = mode_temperature(row_params.temperature, slot, flags)
    shift = log_mass(survey.maximum, weight, survey.max_logit, inverse, flags)
    lowest = lowest_visible(survey.max_logit, temperature, flags)
    scale = ModeScale(survey.max_logit, inverse, shift, lowest, is_greedy)
    value = visible_of_token(source.base, token, scale, flags)
    tl.store(logprobs.ids + row, token.to(tl.int64))
    tl.store(logprobs.logprobs + row, value)


# The host side: constants and scratch of the launch.


class RowLaunch:
    """The launch of a variant, and the scratch of what it leaves of rows."""

    def __init__(self, variant: Variant, target: Target, scratch: Scratch, tiles: TileLaunches) -> None:
        configuration, has_filters = variant.configuration, variant.params.has_filters
        real, whole = torch.float32, torch.int32
        self.candidates: Sequence[int | None] = [None] * 3
        """Indices of the buffers of ``CandidateLists``."""
        if has_filters:
            self.candidates = [
                scratch.reserve(dtype, SMALL_CANDIDATES, PER_ROW) for dtype in (whole, real, whole)
            ]
        self.lists = scratch.fields(*self.candidates)
        self.num_candidates = self.summary = None
        if variant.weighs_kept or variant.params.interval is not None:  # for a later launch
            self.num_candidates = scratch.reserve(whole)
            self.summary = scratch.fields((real, 1), (real, 1), self.num_candidates)
        left = (self.candidates[1], self.num_candidates) if variant.weighs_kept else (None, None)
        self.row_candidates = scratch.fields(*left)
        """Those that a score reads."""
        config = RowConfig(
            HAS_FILTERS=has_filters,
            FP64=target.fp64,
            TILES=tiles.count_limit,
            VECTOR=variant.logits.vector,
            IS_ALIGNED=variant.is_aligned,
            SMALL_CANDIDATES=SMALL_CANDIDATES,
            GRANULES_AT_ONCE=configuration.granules_at_once,
            ULP_STEP=variant.logits.ulp_step,
            BY_FACTORS=target.is_nvidia and configuration.row_registers is None,
            IS_NVIDIA=target.is_nvidia,
        )
        is_plain = not has_filters and variant.verify is None and not variant.draws_logprobs
        warps = configuration.plain_row_warps if is_plain else configuration.row_warps
        options = target.options(warps, configuration.row_registers if has_filters else None)
        self.launch = Launch(draw_rows, {"config": config}, options)
