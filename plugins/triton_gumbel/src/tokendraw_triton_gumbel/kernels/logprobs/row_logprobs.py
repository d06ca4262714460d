"""Computes one row's log-probabilities, and its N best without a sort.

A granule is 64 logits of one tile; the pass over the tiles has left the maximum of each. Of a row's best only granules
that reach a bound on the N-th value are read, so about N of them. Candidates for the best are what reaches the bound;
comparing all of them with each other gives each its place.

Where more logits reach the bound, by ties or because the best lie close together, those granules are read again: a
search by 8 pivots at a time ends at that many candidates or at the N-th value itself, whose ties are then taken by
their ids, from tile to tile. At most 11 rounds; ties of the bound itself take one.

Writes the result, and as scratch a list of granules and the candidates, which it reads back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logprobs.best_candidates import (
    bound_by_maxima,
    collect_best,
    fill_ties,
    order_candidates,
    search_edge,
)
from tokendraw_triton_gumbel.kernels.logprobs.mode_values import least_shown, log_mass, shown, shown_of_drawn
from tokendraw_triton_gumbel.kernels.row_draw.bounds import bound_by_tiles
from tokendraw_triton_gumbel.kernels.row_draw.candidates import list_granules
from tokendraw_triton_gumbel.kernels.shared.float_keys import LOWEST
from tokendraw_triton_gumbel.kernels.shared.row_params import NORMALISED, PROCESSED
from tokendraw_triton_gumbel.kernels.shared.row_values import Row
from tokendraw_triton_gumbel.kernels.shared.temperature import shown_temperature
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE

MOST_LOGPROBS = 64
"""The largest N that the kernel serves."""
CANDIDATES = 128
"""Candidates that are compared with each other."""
_WIDTH = tl.constexpr(MOST_LOGPROBS)
_GRANULES_PER_QUARTER = tl.constexpr(4)


class RequestedLogprobs(NamedTuple):
    """The parameters of the rows."""

    temperature: Any
    """[slots] floating point, or None."""
    row_index: Any
    """[rows] integer: the slot of each row, or None."""
    num_logprobs: Any
    """[slots] integer: how many of the N each row asked for; below 0: all. Or None."""


class DrawnRows(NamedTuple):
    """The results that the draw has left about the rows."""

    token_ids: Any
    """[rows] int64."""
    maxima: Any
    """[rows, tiles] float32, like ``sums``, those that the mode normalises by."""
    sums: Any
    floors: Any
    """[rows] float32: what is kept is ``x >= floor``; and ``log_kept`` [rows] float32."""
    log_kept: Any


class Scratch(NamedTuple):
    """Scratch of each row."""

    granules: Any
    """[rows, tiles * 16] int32."""
    keys: Any
    """[rows, CANDIDATES] int64."""


class Described(NamedTuple):
    """The result."""

    ids: Any
    """[rows, 1 + N] int64."""
    logprobs: Any
    """[rows, 1 + N] float32."""


@triton.jit(
    do_not_specialize=["tiles", "width", "flags"],
    # Read or written one by one, or at places that are not multiples of anything.
    do_not_specialize_on_alignment=["requested", "drawn", "out"],
)
def row_logprobs(
    logits,
    tiles,
    width,
    requested,
    drawn,
    granules,
    scratch,
    out,
    flags,
    config: tl.constexpr,
):
    """One program describes one row.

    :param logits: :class:`~.argument_groups.Logits`.
    :param width: N, at most 64.
    :param requested: :class:`RequestedLogprobs`; ``drawn`` :class:`DrawnRows`.
    :param granules: [rows, tiles, 16] of the logits' dtype: the maxima of the granules.
    :param scratch: :class:`Scratch`; ``out`` :class:`Described`.
    :param flags: what the mode shows of logits: see :mod:`.row_params`.
    :param config: :class:`~.configs.LogprobsConfig`.
    """
    TILES: tl.constexpr = config.TILES
    row = tl.program_id(0).to(tl.int64)
    slot = row
    if requested.row_index is not None:
        slot = tl.load(requested.row_index + row).to(tl.int64)
    asked = width
    if requested.num_logprobs is not None:
        asked = tl.load(requested.num_logprobs + slot).to(tl.int32)
    source = Row(logits.base + row * logits.row_stride, logits.vocab_size)
    ids = out.ids + row * (1 + width)
    values = out.logprobs + row * (1 + width)
    token = tl.load(drawn.token_ids + row)
    tile = tl.arange(0, TILES)
    inside = tile < tiles
    maximum = tl.load(drawn.maxima + row * tiles + tile, mask=inside, other=float("-inf"))
    degrees, inverse, greedy = shown_temperature(requested.temperature, slot, flags)
    n = tl.minimum(width, logits.vocab_size)
    n = tl.where((asked >= 0) & (asked < n), asked, n).to(tl.int32)
    top = tl.max(maximum, 0)
    sums = tl.load(drawn.sums + row * tiles + tile, mask=inside, other=0.0)
    shift = log_mass(maximum, sums, top, inverse, flags)
    least = least_shown(top, degrees, flags)
    if (flags & PROCESSED) != 0:
        least = tl.maximum(least, tl.load(drawn.floors + row))
        shift += tl.where((flags & NORMALISED) != 0, tl.load(drawn.log_kept + row), 0.0)
    own = shown_of_drawn(source.base, token, top, inverse, shift, least, greedy, flags)
    tl.store(ids, token)
    tl.store(values, own)

    # Greedy rows see one token, so their best are known; the others have theirs searched for.
    searched = tl.where(greedy, 0, n)
    if searched > 0:
        granules += row * tiles * GRANULES_PER_TILE
        keys = scratch.keys + row * config.CANDIDATES
        listed = scratch.granules + row * tiles * GRANULES_PER_TILE
        low = tl.maximum(_bound_of(granules, tiles, maximum, top, searched, config), least)
        low = tl.maximum(low, LOWEST)
        tied = tl.full((), float("-inf"), tl.float32)
        count = tl.zeros((), tl.int32)
        found = tl.zeros((), tl.int32)
        if tl.sum((maximum == top).to(tl.int32), 0) * (top > float("-inf")).to(tl.int32) >= searched:
            tied = top  # so many tiles hold the largest logit that all of the best are it
        else:
            count = list_granules(granules, tiles, low, listed, tiles * GRANULES_PER_TILE)
            found = collect_best(source, None, listed, count, low, keys, config.VECTOR, config.CANDIDATES)
        if found > config.CANDIDATES:
            low, tied = search_edge(
                source, None, listed, count, low, top, searched, config.VECTOR, config.CANDIDATES
            )
            tl.debug_barrier()  # nobody reads the last list any more
            count = list_granules(granules, tiles, low, listed, tiles * GRANULES_PER_TILE)
            found = collect_best(source, None, listed, count, low, keys, config.VECTOR, config.CANDIDATES)
        candidate, id_of, place = order_candidates(keys, found, config.CANDIDATES)
        value = shown(candidate, top, inverse, shift, least, flags)
        is_best = (tl.arange(0, config.CANDIDATES) < found) & (place < searched)
        tl.store(ids + 1 + place, id_of, mask=is_best)
        tl.store(values + 1 + place, value, mask=is_best)
        if found < searched:
            edge = shown(tied, top, inverse, shift, least, flags)
            best = Described(ids + 1, values + 1)
            fill_ties(source, maximum, tiles, tied, least, found, searched, edge, best, TILES)
    place = tl.arange(0, _WIDTH)
    if searched < n:
        others = place - (place <= token).to(tl.int32)
        own_first = tl.where(place == 0, token, others.to(tl.int64))
        tl.store(ids + 1 + place, own_first, mask=place < n)
        tl.store(values + 1 + place, tl.where(place == 0, own, float("-inf")), mask=place < n)
    padded = (place >= n) & (place < width)
    tl.store(ids + 1 + place, tl.full((_WIDTH,), -1, tl.int64), mask=padded)
    tl.store(values + 1 + place, tl.full((_WIDTH,), float("-inf"), tl.float32), mask=padded)


@triton.jit
def _bound_of(granules, tiles, maximum, top, n, config: tl.constexpr):
    """Return a value that at least ``n`` logits of the row reach, or -inf."""
    if config.QUARTERS > 0:
        number = tiles * GRANULES_PER_TILE
        i = tl.arange(0, config.QUARTERS)[:, None] * _GRANULES_PER_QUARTER
        i += tl.arange(0, _GRANULES_PER_QUARTER)[None, :]
        maxima = tl.load(granules + i, mask=i < number).to(tl.float32)
        low = bound_by_maxima(tl.max(tl.where(i < number, maxima, float("-inf")), 1), top, n)
    else:
        finite = maximum > float("-inf")
        lowest = tl.min(tl.where(finite, maximum, float("inf")), 0)
        low = bound_by_tiles(maximum, top, lowest, tl.sum(finite.to(tl.int32), 0), n, config.TILES)
    return low
