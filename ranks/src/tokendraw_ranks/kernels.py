"""Triton kernels over the columns of a rank, with the device functions of tokendraw-triton-gumbel.

Columns of a row are numbered from the beginning of the rank's first tile, so that its first column is ``lead``; tiles
are those of the whole vocabulary. ``logits``, ``row_params``, ``statistics`` and ``sums`` are groups of that package.
"""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel import columns as tg

TILES_AT_ONCE = 4
"""Tiles a program weighs, one after the other."""
_SPAN = tl.constexpr(TILES_AT_ONCE)
_BINS = tl.constexpr(256)
_SIGN = tl.constexpr(-2147483648)
_TURNS = tl.constexpr(8)
"""Digits of a tile added up before the addition to the histogram; values of rarer digits are added one by one."""
_LN_2 = tl.constexpr(0.6931471805599453)
_LEAST_MASS = tl.constexpr(2.2250738585072014e-308)
_GREEDY = tl.constexpr(1e300)
"""Stands for 1 / 0: times a distance of float32 values it leaves nothing but the largest."""


# Arguments that travel together: Triton flattens them. None stands for what a call does not want.
Part = namedtuple("Part", "first_tile tiles whole_first whole_end")  # as in tokendraw_ranks.shard.Layout
SurveyOut = namedtuple("SurveyOut", "x ties mass sums fresh seeds")  # thresholds.Survey, of one rank
DrawOut = namedtuple("DrawOut", "real ids inverse x sums")  # columns.Columns.draw
Received = namedtuple("Received", "x ties mass stride ranks listed")  # of all ranks, `stride` words apart; K
Found = namedtuple("Found", "max threshold floor")  # thresholds.Bounds


@triton.jit(do_not_specialize=["logits", "part", "rows", "count"], do_not_specialize_on_alignment=["logits"])
def survey_columns(
    logits, lead, part, rows, row_params, flags, statistics, sums, count, granule_list, keys, room, out,
    VECTOR: tl.constexpr, TILES: tl.constexpr, GRANULES: tl.constexpr, MAXIMA: tl.constexpr,
    CANDIDATES: tl.constexpr, MOMENTS: tl.constexpr,
):  # fmt: skip
    """Find the ``count`` largest values of a row in descending order, the further ties with the last, and sums.

    The maxima of groups of granules bound the last value from below; the granules that reach the bound hold all
    candidates. Where these are too many, since they lie close together or tie, the last value itself is searched for.
    ``granule_list`` [B, granules] int32 and ``keys`` [B, room] int64 are scratch.
    """
    row = tl.program_id(0).to(tl.int64)
    if out.fresh is not None:
        tl.store(out.fresh + row, tl.load(out.seeds + row))
    survey = tg.survey_tiles(statistics, row * part.tiles, part.tiles, TILES)
    slot = tg.slot_of(row, flags, row_params)
    if MOMENTS > 0:
        _store_sums(out.sums, row, survey, sums, part, row_params, slot, TILES, MOMENTS)
    if out.mass is not None:
        inverse, _ = tg.inverse_temperature(row_params.temperature, slot)
        share = tg.share_of(survey.maximum, survey.max_logit, inverse * tg.LOG2_E)
        tl.store(out.mass + row, tl.sum(tl.abs(survey.signed_sums) * share, 0).to(tl.float64))
    granules = part.tiles * tg.GRANULES_PER_TILE
    own_granules, own_list = statistics.granules + row * granules, granule_list + row * granules
    keys += row * room
    source = tg.RowAddress(logits.base + row * logits.row_stride - lead, logits.vocab_size)
    maxima = tg.group_maxima(own_granules, granules, MAXIMA, GRANULES)
    low = tl.maximum(tg.bound_by_maxima(maxima, survey.max_logit, count), tg.LOWEST)
    listed = tg.list_granules(own_granules, part.tiles, low, own_list, granules)
    number = tg.collect_best(source, lead, own_list, listed, low, keys, VECTOR, CANDIDATES)
    tied_value = tl.full((), float("-inf"), tl.float32)
    if number > CANDIDATES:
        low, tied_value = tg.search_edge(
            source, lead, own_list, listed, low, survey.max_logit, count, VECTOR, CANDIDATES
        )
        tl.debug_barrier()  # all threads have read the previous list
        listed = tg.list_granules(own_granules, part.tiles, low, own_list, granules)
        number = tg.collect_best(source, lead, own_list, listed, low, keys, VECTOR, CANDIDATES)
    x, _, rank = tg.order_candidates(keys, number, CANDIDATES)
    i = tl.arange(0, CANDIDATES)
    is_sent = (i < number) & (rank < count)
    tl.store(out.x + row * count + rank, x, mask=is_sent)
    tail = tl.zeros((CANDIDATES,), tl.float32) + tied_value
    tl.store(out.x + row * count + i, tail, mask=(i >= number) & (i < count))
    last = tl.min(tl.where(is_sent, x, float("inf")), 0)
    ties = tl.sum(((i < number) & (rank >= count) & (x == last)).to(tl.int32), 0)
    if (number < count).to(tl.int32) * (tied_value > float("-inf")).to(tl.int32) > 0:
        tl.debug_barrier()
        listed = tg.list_granules(own_granules, part.tiles, tied_value, own_list, granules)
        ties = tg.count_ties(source, lead, own_list, listed, tied_value, VECTOR) - (count - number)
    tl.store(out.ties + row, ties)


@triton.jit
def _store_sums(out, row, survey, sums, part, row_params, slot, TILES: tl.constexpr, MOMENTS: tl.constexpr):
    """Write the sums of :mod:`.moments` as float64: those of distances (1), of weights (2), or both (3)."""
    _, inverse, _ = tg.mode_temperature(row_params.temperature, slot, tg.TEMPERED)
    tile = tl.arange(0, TILES)
    inside, place = tile < part.tiles, row * part.tiles + tile
    is_finite = survey.maximum > float("-inf")
    distance = tl.where(is_finite, survey.maximum.to(tl.float64) - survey.max_logit.to(tl.float64), 0.0)
    out += row * (6 if MOMENTS == 3 else 3)
    if MOMENTS & 1:
        count, mean, squares = tg.spread_of_tiles(sums, place, inside, distance)
        tl.store(out, count)
        tl.store(out + 1, mean)
        tl.store(out + 2, squares)
        out += 3
    if MOMENTS & 2:
        mass, entropy, collision = tg.weights_of_tiles(
            survey.signed_sums, sums, place, inside, is_finite, distance, inverse
        )
        tl.store(out, mass.to(tl.float64))
        tl.store(out + 1, entropy.to(tl.float64) * _LN_2)
        tl.store(out + 2, collision.to(tl.float64))


@triton.jit(do_not_specialize=["received", "vocab_size", "flags"])
def find_thresholds(
    received, row_params, flags, vocab_size, found, seeds_in, seeds, N: tl.constexpr, RANKS: tl.constexpr,
    HAS_KTH: tl.constexpr, HAS_NUCLEUS: tl.constexpr, MAY_MISS_NUCLEUS: tl.constexpr,
):  # fmt: skip
    """Find what the listed values say of the threshold of a row, as :func:`.thresholds.listed_bounds` does.

    :param N: a power of two from the number of all listed values upwards; ``RANKS`` from the number of ranks.
    :param seeds_in: [B] int64: of rank 0, copied to ``seeds``; or None.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tg.slot_of(row, flags, row_params)
    k, p, min_p, joint = tg.load_filters(slot, vocab_size, flags, row_params)
    temperature, inverse, _ = tg.mode_temperature(row_params.temperature, slot, tg.TEMPERED)
    index = tl.arange(0, N)
    place = (index // received.listed).to(tl.int64) * received.stride
    place += row * received.listed + index % received.listed
    x = tl.load(received.x + place, mask=index < received.ranks * received.listed, other=float("-inf"))
    x = tg.value_of(tl.sort(tg.key_of(x), descending=True))
    max_logit = tl.max(x, 0)
    least_y = tl.load(row_params.floor + row, mask=(flags & tg.HAS_FLOOR) != 0, other=float("-inf"))
    base = tl.where((min_p > 0) | (least_y > float("-inf")), max_logit, float("-inf"))
    if (tl.abs(max_logit) < float("inf")).to(tl.int32) > 0:
        base = tg.lowest_kept(max_logit, temperature, min_p, least_y)
    if HAS_KTH:
        last_index = tl.minimum(k, received.listed * received.ranks) - 1
        kth = tl.max(tl.where(index >= last_index, x, float("-inf")), 0)
        base = tl.where(k > 0, tl.maximum(base, kth), base)
    threshold = base
    is_settled = (p >= 1).to(tl.int32)
    counts_all = joint | (base == float("-inf"))
    if HAS_NUCLEUS:
        rank = tl.arange(0, RANKS)
        is_rank, of_rank = rank < received.ranks, rank.to(tl.int64) * received.stride
        first = received.x + of_rank + row * received.listed
        last = tl.load(first + received.listed - 1, mask=is_rank, other=float("-inf"))
        tied = tl.load(received.ties + of_rank + row, mask=is_rank, other=0).to(tl.float64)
        tied *= tl.exp(_distance(last, max_logit, inverse))
        from_above = tl.cumsum(tl.exp(_distance(x, max_logit, inverse)), 0)
        from_above += tl.sum(tl.where(last[None, :] >= x[:, None], tied[None, :], 0.0), 1)
        goal = p * tl.max(tl.where(x >= base, from_above, 0.0), 0)
        if received.mass is not None:
            share = tl.exp(_distance(tl.load(first, mask=is_rank, other=float("-inf")), max_logit, inverse))
            mass = tl.load(received.mass + of_rank // 2 + row, mask=is_rank, other=0.0)
            goal = tl.where(counts_all, p * tl.sum(mass * share, 0), goal)
        is_found = tl.full((), 1, tl.int32)
        if MAY_MISS_NUCLEUS:
            listed_from = tl.max(last, 0)  # from here on every value of the row is listed
            listed_mass = tl.max(tl.where(x >= listed_from, from_above, 0.0), 0)
            is_found = (listed_from == float("-inf")).to(tl.int32) | (listed_mass >= goal).to(tl.int32)
            is_found *= counts_all.to(tl.int32) | (base >= listed_from).to(tl.int32)
        goal = tl.maximum(tl.minimum(goal, tl.max(from_above, 0)), _LEAST_MASS)
        nucleus = tl.max(tl.where(from_above >= goal, x, float("-inf")), 0)
        threshold = tl.where((p < 1) & (is_found > 0), tl.maximum(base, nucleus), base)
        is_settled |= is_found
    tl.store(found.max + row, max_logit)
    tl.store(found.threshold + row, tl.minimum(threshold, max_logit))
    floor = tl.where(counts_all, float("-inf"), base)
    tl.store(found.floor + row, tl.where(is_settled > 0, float("inf"), floor))
    if seeds is not None:
        tl.store(seeds + row, tl.load(seeds_in + row))


@triton.jit
def _distance(x, max_logit, inverse):
    """Return ``(x - max_logit) / T`` in float64, 0 where x equals an infinite ``max_logit``."""
    is_top = x == max_logit
    return (
        tl.where(is_top, 0.0, x).to(tl.float64) - tl.where(is_top, 0.0, max_logit).to(tl.float64)
    ) * inverse


@triton.jit(do_not_specialize=["part", "rows", "shift", "bits"])
def add_by_digit(
    logits, lead, part, rows, row_params, flags, statistics, shift, bits, prefixes, max_logits, floors, histogram,
    HAS_INDEX: tl.constexpr,
):  # fmt: skip
    """Add the weights of some tiles of a row to its histogram. Grid (groups of tiles, rows / z, z).

    Reads the tiles that may hold a value which counts. Adds integers, whose sum depends on no order.

    :param shift: bits of a key below the digit; ``bits``: a weight of 1 is 2 to so many units.
    :param prefixes: [B] int64: the bits of the keys above the digit; None: any.
    :param max_logits: [B] float32: the origin of weights; None: each value weighs 1. ``floors`` likewise.
    :param histogram: [B, 256] int64, added to.
    """
    row_number = tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)
    if row_number < rows:
        row = row_number.to(tl.int64)
        slot = row
        if HAS_INDEX:
            slot = tg.slot_of(row, flags, row_params)
        inverse, _ = tg.inverse_temperature(row_params.temperature, slot)
        max_logit = tl.full((), 0.0, tl.float32)
        floor = tl.full((), float("-inf"), tl.float32)
        prefix = tl.full((), 0, tl.int32)
        if max_logits is not None:
            max_logit, floor = tl.load(max_logits + row), tl.load(floors + row)
        if prefixes is not None:
            prefix = tl.load(prefixes + row).to(tl.int32)
        source = tg.RowAddress(logits.base + row * logits.row_stride - lead, logits.vocab_size)
        tile = tl.program_id(0) * _SPAN
        end = tl.minimum(tile + _SPAN, part.tiles)
        while tile < end:
            maximum = tl.load(statistics.maxima + row * part.tiles + tile)
            reaches = (maximum >= floor).to(tl.int32)
            if prefixes is not None:
                reaches *= (_upper_bits(maximum, shift + 8) >= prefix).to(tl.int32)
            if reaches > 0:
                x = _load_tile(source, lead, tile, floor)
                column = tile * tg.TILE_SIZE + tl.arange(0, tg.TILE_SIZE)
                counts = tg.is_inside(column, source, lead) & (x >= floor)
                digit = _upper_bits(x, shift) & (_BINS - 1)
                if prefixes is not None:
                    counts = counts & (_upper_bits(x, shift + 8) == prefix)
                units = counts.to(tl.int64)
                if max_logits is not None:
                    unit = (tl.full((), 1, tl.int64) << bits).to(tl.float32)
                    weight = tl.floor(tg.share_of(x, max_logit, inverse * tg.LOG2_E) * unit + 0.5)
                    units = tl.where(counts, weight, 0.0).to(tl.int64)
                    counts = units > 0
                _add_units(histogram + row * _BINS, digit, units, counts)
            tile += 1


@triton.jit
def _add_units(histogram, digit, units, counts):
    """Add units [1024] to the bins of their digits, those of frequent digits together."""
    element = tl.arange(0, tg.TILE_SIZE)
    remaining = tl.where(counts, ((tg.TILE_SIZE - 1 - element) << 8) | digit, -1)
    leader = tl.max(remaining, 0)  # its digit is probably frequent
    turn = 0
    while (leader >= 0) & (turn < _TURNS):
        is_leader = (remaining >= 0) & (digit == (leader & (_BINS - 1)))
        tl.atomic_add(
            histogram + (leader & (_BINS - 1)), tl.sum(tl.where(is_leader, units, 0), 0), sem="relaxed"
        )
        remaining = tl.where(is_leader, -1, remaining)
        leader = tl.max(remaining, 0)
        turn += 1
    if leader >= 0:
        tl.atomic_add(histogram + digit, units, mask=remaining >= 0, sem="relaxed")


@triton.jit
def _upper_bits(x, missing):
    """Return the bits of a key of :func:`.thresholds.keys` above its ``missing`` lower bits."""
    key = (tg.key_of(x) ^ _SIGN).to(tl.uint32, bitcast=True)
    return (key >> missing.to(tl.uint32)).to(tl.int32)


@triton.jit
def _load_tile(source, lead, tile, threshold):
    """Return the logits [1024] of a tile that reach a threshold, else -inf as for NaN."""
    column = tile * tg.TILE_SIZE + tl.arange(0, tg.TILE_SIZE)
    inside = tg.is_inside(column, source, lead)
    x = tl.load(source.base + column, mask=inside, other=float("-inf")).to(tl.float32)
    return tl.where((x == x) & (x >= threshold), x, float("-inf"))


@triton.jit(do_not_specialize=["part", "rows"])
def weigh_kept(
    logits, lead, part, rows, row_params, flags, statistics, thresholds, kept, HAS_INDEX: tl.constexpr
):
    """Sum the weights of the kept logits of some tiles of a row, relative to the maximum of each tile.

    Reads the tiles whose maximum reaches the threshold. Grid (groups of tiles, rows / z, z).

    :param kept: [B, tiles] float32, written.
    """
    row_number = tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)
    if row_number < rows:
        row = row_number.to(tl.int64)
        slot = row
        if HAS_INDEX:
            slot = tg.slot_of(row, flags, row_params)
        inverse, _ = tg.inverse_temperature(row_params.temperature, slot)
        threshold = tl.load(thresholds + row)
        source = tg.RowAddress(logits.base + row * logits.row_stride - lead, logits.vocab_size)
        tile = tl.program_id(0) * _SPAN
        end = tl.minimum(tile + _SPAN, part.tiles)
        while tile < end:
            place = row * part.tiles + tile
            maximum = tl.load(statistics.maxima + place)
            weight = tl.full((), 0.0, tl.float32)
            if threshold == float("-inf"):
                weight = tl.abs(tl.load(statistics.sums + place))
            elif maximum >= threshold:
                x = _load_tile(source, lead, tile, threshold)
                weight = tl.sum(tg.share_of(x, maximum, inverse * tg.LOG2_E), 0)
            tl.store(kept + place, weight)
            tile += 1


@triton.jit(do_not_specialize=["part", "rows", "flags"])
def draw_columns(
    logits, lead, part, rows, row_params, flags, statistics, thresholds, kept, out, TILES: tl.constexpr,
    FP64: tl.constexpr, MAY_SAMPLE: tl.constexpr,
):  # fmt: skip
    """Draw the best whole tile of a row and its token, and the best tokens of the parts of tiles at both ends.

    Reads 8 bytes a tile, and up to three tiles. Everything is relative to the rank's own largest logit.

    :param thresholds: [B] float32, and ``kept`` [B, tiles] of :func:`weigh_kept`; None: every logit is kept.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tg.slot_of(row, flags, row_params)
    inverse, greedy = tg.inverse_temperature(row_params.temperature, slot)
    _, exact_inverse, _ = tg.mode_temperature(row_params.temperature, slot, tg.TEMPERED)
    tile = tl.arange(0, TILES)
    first = row * part.tiles
    survey = tg.survey_tiles(statistics, first, part.tiles, TILES)
    max_logit = survey.max_logit
    weight = tl.abs(survey.signed_sums)
    threshold = tl.full((), float("-inf"), tl.float32)
    if thresholds is not None:
        threshold = tl.load(thresholds + row)
        weight = tl.load(kept + first + tile, mask=tile < part.tiles, other=0.0)
    has_tokens = max_logit > float("-inf")
    distance = tg.scaled(survey.maximum, max_logit, inverse, FP64)
    log_weight = tl.log(weight.to(distance.dtype)) + distance
    key = tg.noise_key(row, slot, flags, row_params)
    chosen = tl.argmax(survey.maximum, 0)
    score = tl.where(tile == chosen, 0.0, float("-inf")).to(distance.dtype)
    if MAY_SAMPLE:
        score = tl.where(greedy, score, log_weight + tg.gumbel(key, part.first_tile + tile, tg.TILE, FP64))
        chosen = tl.where(
            greedy, chosen,
            tl.argmax(tl.where((tile >= part.whole_first) & (tile < part.whole_end), score, float("-inf")), 0),
        )  # fmt: skip
    else:
        greedy = slot >= 0
    source = tg.RowAddress(logits.base + row * logits.row_stride - lead, logits.vocab_size)
    is_valid = tl.where(survey.has_nan, 2.0, has_tokens.to(tl.float32))
    tl.store(out.real + row, max_logit.to(distance.dtype))
    tl.store(out.inverse + row, tl.where(greedy, _GREEDY, exact_inverse))
    for side in range(3):  # head, whole, tail
        local = tl.where(side == 1, chosen, tl.where(side == 0, 0, part.tiles - 1))
        is_shared = tl.where(side == 0, part.whole_first > 0, part.whole_end < part.tiles) & (greedy == 0)
        is_present = tl.where(side == 1, greedy | (part.whole_end > part.whole_first), is_shared)
        best = tl.full((), float("-inf"), distance.dtype)
        token = tl.full((), 0, tl.int32)
        value = tl.full((), float("-inf"), tl.float32)
        own = tl.full((), float("-inf"), distance.dtype)
        if is_present & has_tokens:
            x = _load_tile(source, lead, local, tl.where(greedy, float("-inf"), threshold))
            y = tg.scaled(x, max_logit, inverse, FP64)
            column = local * tg.TILE_SIZE + tl.arange(0, tg.TILE_SIZE)
            if MAY_SAMPLE:
                y += tg.gumbel(key, part.first_tile * tg.TILE_SIZE + column, tg.TOKEN, FP64)
            y = tl.where(greedy, tl.where(x == max_logit, 0.0, float("-inf")).to(y.dtype), y)
            best, place = tl.max(tl.where(x > float("-inf"), y, float("-inf")), 0, return_indices=True)
            token = part.first_tile * tg.TILE_SIZE + tl.maximum(local * tg.TILE_SIZE + place, lead)
            own = tl.max(tl.where(tile == local, score, float("-inf")), 0)
            if out.x is not None:
                value = tl.max(tl.where(tl.arange(0, tg.TILE_SIZE) == place, x, float("-inf")), 0)
        tl.store(out.real + (1 + side) * rows + row, own)
        tl.store(out.real + (4 + side) * rows + row, tl.where(side == 1, is_valid.to(best.dtype), best))
        tl.store(out.ids + side * rows + row, token)
        if out.x is not None:
            tl.store(out.x + side * rows + row, value)
    if out.sums is not None:
        share = tg.share_of(survey.maximum, max_logit, inverse * tg.LOG2_E)
        raw = tl.abs(survey.signed_sums)
        _store_mass(out.sums + row, weight * share, has_tokens)
        _store_mass(out.sums + rows + row, raw * share, has_tokens)
        if statistics.raw_sums is not None:
            raw = tl.load(statistics.raw_sums + first + tile, mask=tile < part.tiles, other=0.0)
            share = tg.share_of(survey.maximum, max_logit, tg.LOG2_E)
        _store_mass(out.sums + 2 * rows + row, raw * share, has_tokens)


@triton.jit
def _store_mass(out, weight, has_tokens):
    tl.store(out, tl.where(has_tokens, tl.sum(weight, 0), 1.0).to(tl.float64))
