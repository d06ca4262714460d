"""Launch 2, the draw of a row: a tile by its log-sum-exp plus noise, then a token in that tile.

Reads 8 bytes a tile and one tile of logits a row; of a row with filters the maxima of its granules and those granules
that may hold a kept token. Writes 9 bytes a row. One program a row; greedy rows take the same road without noise. A row
that keeps more than some 1,000 tokens is left to :mod:`.wide`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.begin import begin
from tokendraw_triton_gumbel.bounds import bound_by_granules, bound_by_tiles
from tokendraw_triton_gumbel.few import draw_few, draw_more
from tokendraw_triton_gumbel.noise import gumbel, streams_of
from tokendraw_triton_gumbel.order import min_p_floor, scaled, weigh
from tokendraw_triton_gumbel.pairs import base_of, place_of
from tokendraw_triton_gumbel.request import EXACT, OWN, RANKED, filters_of, noise_of, slot_of
from tokendraw_triton_gumbel.shown import degrees_of, least_shown, log_mass, shown_of_drawn
from tokendraw_triton_gumbel.tiles import LOG2_E, inverse_temperature

_LIKELIEST = tl.constexpr(48)
"""Tokens that are tried where top-p alone filters, at least."""


@triton.jit(do_not_specialize=["tiles", "flags", "rows", "split", "width", "requests"])
def draw_rows(
    logits,
    row_stride,
    vocab_size,
    maxima,
    sums,
    granules,
    tiles,
    temperature,
    row_index,
    seeds,
    seeded,
    fresh,
    positions,
    top_k,
    top_p,
    min_p,
    joint,
    flags,
    listed,
    values,
    ids,
    queue,
    ready,
    arrivals,
    plans,
    notes,
    token_ids,
    valid,
    floors,
    log_kept,
    tops,
    masses,
    candidates,
    drafts,
    draft_stride,
    cu_num_logits,
    rows,
    split,
    width,
    requests,
    ranks,
    own_sums,
    own_ids,
    own_values,
    FILTERED: tl.constexpr,
    FP64: tl.constexpr,
    TILES: tl.constexpr,
    VECTOR: tl.constexpr,
    LESS: tl.constexpr,
    MOST: tl.constexpr,
    GATHERED: tl.constexpr,
    BY: tl.constexpr,
):
    """One program: one row.

    :param maxima: [rows, tiles], as :func:`~tokendraw_triton_gumbel.tiles.tile_statistics` left them, like ``sums``
        and ``granules`` [rows, tiles, 16].
    :param seeds: [slots] int64, and ``seeded`` [slots] bool which of them hold; ``fresh`` [rows] int64 for the others.
    :param flags: which of the tensors from ``row_index`` to ``joint`` are there; see :mod:`.request`.
    :param listed: [rows, MOST] int32 of scratch, ``values`` [rows, MOST] float32, ``ids`` [rows, MOST] int32.
    :param queue: whose first says how many rows are left without a token, announced in ``ready`` as :mod:`.begin`
        does; ``arrivals``, ``plans`` and ``notes`` as :func:`~tokendraw_triton_gumbel.wide.draw_wide` takes them.
    :param token_ids: [rows] int64.
    :param valid: [rows] bool.
    :param floors: [rows] float32, the least kept logit, and ``log_kept`` [rows] float32 the logarithm of the kept share
        of the mass; not written unless ``flags`` says EXACT.
    :param tops: [rows] float32, the largest logit, ``masses`` [rows] float32 the sum of ``exp(y)`` before any filter,
        1 where nothing is above -inf, and ``candidates`` [rows] int32 how many ``values`` and ``ids`` hold what is
        kept, -1 if they do not. Or all None; the last without filters, too.
    :param drafts: rows of logits behind the first ``split``, or None; see :mod:`.pairs`.
    :param ranks: [split] int64, set to 0 if ``flags`` says RANKED.
    :param own_sums: [rows, tiles], the sums that the logprobs mode is normalised by, ``own_ids`` [rows] int64 and
        ``own_values`` [rows] float32 the drawn token as the mode shows it. Written without filters, if ``flags`` says OWN.
    """
    row, beside = place_of(tl.program_id(0), rows, cu_num_logits, split, width, requests)
    if cu_num_logits is not None:
        if row < 0:
            return
    drawn: tl.constexpr = True
    if cu_num_logits is not None:
        drawn = row < split  # of a draft's row, its token is known
    slot = slot_of(beside, flags, row_index)
    inverse, greedy = inverse_temperature(temperature, slot)
    seed, position = noise_of(beside, slot, flags, seeds, seeded, fresh, positions)
    if FILTERED:
        k, p, minimum, is_joint = filters_of(slot, vocab_size, flags, top_k, top_p, min_p, joint)

    tile = tl.arange(0, TILES)
    inside = tile < tiles
    offset = row.to(tl.int64) * tiles + tile
    maximum = tl.load(maxima + offset, mask=inside, other=float("-inf"))
    marked = tl.load(sums + offset, mask=inside, other=0.0)
    top, least_tile, sign, number = tl.reduce(
        (
            maximum,
            tl.where(maximum > float("-inf"), maximum, float("inf")),
            marked.to(tl.int32, bitcast=True),
            (maximum > float("-inf")).to(tl.int32),
        ),
        0,
        _survey,
    )
    has_nan = sign < 0
    base = base_of(row, logits, row_stride, drafts, draft_stride, split)
    token = tl.full((), -1, tl.int32)
    is_wide = tl.full((), 0, tl.int32)
    total = tl.full((), -1.0, tl.float32)
    floor = tl.full((), float("-inf"), tl.float32)
    share = tl.full((), 1.0, tl.float32)
    found = tl.full((), -1, tl.int32)
    if FILTERED:
        maxima_of_row = granules + row.to(tl.int64) * tiles * 16
        # Scalars are joined as integers: the interpreter's comparisons of floats are not booleans.
        on = (k > 0).to(tl.int32) + (p < 1).to(tl.int32) + (minimum > 0).to(tl.int32)
        bounded = (top > float("-inf")).to(tl.int32) * (top < float("inf")).to(tl.int32)
        if on * bounded * (greedy == 0).to(tl.int32) > 0:
            scale = inverse * LOG2_E
            degrees = tl.full((), 1.0, tl.float64)
            if temperature is not None:
                degrees = tl.load(temperature + slot).to(tl.float64)
            least = min_p_floor(top, degrees, minimum)
            mass = tl.sum(tl.abs(marked) * weigh(maximum, top, scale), 0)
            total = mass
            # Top-p that looks at the whole row proves no bound; the likeliest tokens are tried, and then weighed.
            alone = (k == 0).to(tl.int32) * (p < 1).to(tl.int32)
            alone *= (least == float("-inf")).to(tl.int32) + (is_joint != 0).to(tl.int32)
            needed = tl.where(alone > 0, (p * mass.to(tl.float64)).to(tl.float32), 0.0)
            bound = least
            if (k > 0).to(tl.int32) + alone > 0:
                wanted = tl.where(k > 0, k, _LIKELIEST).to(tl.int32)
                # Where tiles are few, their maxima prove little or nothing.
                if (number < 2 * wanted).to(tl.int32) * (wanted <= LESS).to(tl.int32) > 0:
                    proven = bound_by_granules(maxima_of_row, tiles * 16, least, top, wanted, LESS)
                else:
                    proven = bound_by_tiles(maximum, top, least_tile, number, wanted, TILES)
                bound = tl.maximum(bound, proven)
            kept = mass
            worth = (bound > float("-inf")).to(tl.int32)
            if alone > 0:
                # No more than the tiles weigh that reach the bound.
                hot = tl.where(maximum >= bound, tl.abs(marked) * weigh(maximum, top, scale), 0.0)
                worth *= (tl.sum(hot, 0) >= needed).to(tl.int32)
            if worth > 0:
                token, floor, kept, found = draw_few(
                    base,
                    vocab_size,
                    maxima_of_row,
                    tiles,
                    listed + row.to(tl.int64) * MOST,
                    values + row.to(tl.int64) * MOST,
                    ids + row.to(tl.int64) * MOST,
                    bound,
                    top,
                    scale,
                    inverse,
                    mass,
                    k,
                    p,
                    least,
                    is_joint,
                    needed,
                    seed,
                    position,
                    flags,
                    drawn,
                    FP64,
                    VECTOR,
                    LESS,
                    True,
                    GATHERED,
                )
            worth = tl.where(
                alone > 0, worth + (bound == float("-inf")).to(tl.int32), (k <= MOST).to(tl.int32)
            )
            if (token < 0).to(tl.int32) * (needed <= MOST).to(tl.int32) * worth > 0:
                token, floor, kept, found = draw_more(
                    base,
                    vocab_size,
                    maxima_of_row,
                    tiles,
                    listed + row.to(tl.int64) * MOST,
                    values + row.to(tl.int64) * MOST,
                    ids + row.to(tl.int64) * MOST,
                    bound,
                    alone,
                    top,
                    scale,
                    inverse,
                    mass,
                    k,
                    p,
                    least,
                    is_joint,
                    needed,
                    seed,
                    position,
                    flags,
                    drawn,
                    FP64,
                    VECTOR,
                    MOST,
                    GATHERED,
                )
            share = kept / mass
            if token < 0:
                is_wide = tl.full((), 1, tl.int32)
                begin(
                    base,
                    vocab_size,
                    row,
                    tl.where(alone > 0, float("-inf"), floor),
                    top,
                    scale,
                    inverse,
                    mass,
                    k,
                    p,
                    least,
                    is_joint,
                    has_nan,
                    seed,
                    position,
                    queue,
                    ready,
                    arrivals,
                    plans,
                    notes,
                    BY,
                )
    if is_wide == 0:
        if (token < 0) & drawn:
            distance = scaled(maximum, top, inverse, FP64)
            of_token, of_tile = streams_of(flags)
            noise = gumbel(seed, position, tile, of_tile, FP64)
            score = tl.log(tl.abs(marked).to(distance.dtype)) + distance + noise
            score = tl.where(greedy, tl.where(maximum == top, 0.0, float("-inf")).to(score.dtype), score)
            chosen = tl.argmax(tl.where(inside, score, float("-inf")), 0)
            token = token_of_tile(
                base, vocab_size, chosen, float("-inf"), top, inverse, greedy, seed, position, of_token, FP64
            )
        if (flags & EXACT) != 0:
            tl.store(floors + row, floor)
            tl.store(log_kept + row, tl.log(share))
    some = top > float("-inf")
    tl.store(ranks + row, tl.zeros((), tl.int64), mask=((flags & RANKED) != 0) & (row < split))
    if not FILTERED:
        if (flags & OWN) != 0:
            token = tl.where(some, tl.maximum(token, 0), 0)
            weight = tl.load(own_sums + offset, mask=inside, other=0.0)
            degrees, exactly, shows_one = degrees_of(temperature, slot, flags)
            shift = log_mass(maximum, weight, top, exactly, flags)
            shown_from = least_shown(top, degrees, flags)
            value = shown_of_drawn(base, token, top, exactly, shift, shown_from, shows_one, flags)
            tl.store(own_ids + row, token.to(tl.int64))
            tl.store(own_values + row, value)
    if tops is not None:
        if total < 0:
            weight = weigh(maximum, top, inverse * LOG2_E)
            weight = tl.where(top < float("inf"), weight, (maximum == float("inf")).to(tl.float32))
            total = tl.where(some, tl.sum(tl.abs(marked) * weight, 0), 1.0)
        tl.store(tops + row, top)
        tl.store(masses + row, total)
        if candidates is not None:
            tl.store(candidates + row, found)
    tl.store(token_ids + row, tl.where(some, tl.maximum(token, 0), 0).to(tl.int64))
    tl.store(valid + row, some.to(tl.int32) * (has_nan == 0).to(tl.int32) > 0)


@triton.jit
def _survey(top_a, least_a, sign_a, number_a, top_b, least_b, sign_b, number_b):
    """Of the tiles: the largest maximum, the least that is finite, the least sum's bits, how many are finite."""
    return (
        tl.maximum(top_a, top_b),
        tl.minimum(least_a, least_b),
        tl.minimum(sign_a, sign_b),
        number_a + number_b,
    )


@triton.jit
def token_of_tile(
    base, vocab_size, chosen, floor, top, inverse, greedy, seed, position, stream, FP64: tl.constexpr
):
    """The token of a row whose tile is known, among the logits from ``floor`` upwards."""
    members = chosen * 1024 + tl.arange(0, 1024)
    x = tl.load(base + members, mask=members < vocab_size, other=float("-inf")).to(tl.float32)
    x = tl.where((x == x) & (x >= floor), x, float("-inf"))
    score = scaled(x, top, inverse, FP64) + gumbel(seed, position, members, stream, FP64)
    score = tl.where(greedy, tl.where(x == top, 0.0, float("-inf")).to(score.dtype), score)
    return chosen * 1024 + tl.argmax(score, 0)
