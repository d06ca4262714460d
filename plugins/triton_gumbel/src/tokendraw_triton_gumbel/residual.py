"""The residual of a rejected draft: what the target's distribution p has more than q, that the draft was drawn from.

Where p keeps few tokens, the draw of its row has left them in memory: they are read with the drafts' logits beside
them, and one program draws. Otherwise each of some programs reads a part of both rows once, where p keeps anything, and
writes 8 bytes a tile; the one that comes last draws.

Either way the draw has two levels, as any: a tile by the logarithm of its weight plus noise, and a token in it. Where
nothing is left of a residual, p is drawn from.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.few import best_of, running_sums
from tokendraw_triton_gumbel.noise import RESIDUAL_TILE, RESIDUAL_TOKEN, gumbel
from tokendraw_triton_gumbel.order import times
from tokendraw_triton_gumbel.tiles import LOG2_E, element_ids, exp2, sum_tiles

CHOSEN = tl.constexpr(0)
LOGITS = tl.constexpr(1)
PROBS = tl.constexpr(2)
"""What is known of q: nothing, since the draft was not drawn; logits; or probabilities."""
_LARGEST = tl.constexpr(3.4e38)


@triton.jit
def facts_of(row, tops, masses, floors, log_kept):
    """Of a row: (its largest logit, the least kept one, log2 of the kept mass)."""
    mass = tl.log2(tl.load(masses + row)) + tl.load(log_kept + row) * LOG2_E
    return tl.load(tops + row), tl.load(floors + row), mass


@triton.jit
def cleaned(probs):
    """Probabilities as they are, but that NaN, negative and infinite ones count as 0."""
    return tl.where((probs > 0) & (probs < float("inf")), probs, 0.0)


@triton.jit
def _share(x, ids, top, floor, scale, mass, PTX: tl.constexpr):
    """The probabilities of logits: of +inf they are shared, and where nothing is above -inf, token 0 has all."""
    kept = (x >= floor) & (x > float("-inf"))
    share = tl.where(kept, exp2(times(tl.where(kept, x - top, 0.0), scale) - mass, PTX), 0.0)
    extreme = tl.where(tl.where(top > 0, x == float("inf"), ids == 0), tl.exp2(-mass), 0.0)
    return tl.where(tl.abs(top) < float("inf"), share, extreme)


@triton.jit
def _load(base, ids, mask, whole, other: tl.constexpr):
    """``mask`` may be ignored if ``whole``, as it keeps the compiler from reading neighbours at once."""
    if whole:
        x = tl.load(base + ids)
    else:
        x = tl.load(base + ids, mask=mask, other=other)
    return x


@triton.jit
def _draft_share(
    draft, ids, mask, whole, drafted, drawn, top, floor, scale, mass, KNOWN: tl.constexpr, PTX: tl.constexpr
):
    """The same of the draft, 0 where none was drawn."""
    if KNOWN == LOGITS:
        x = _load(draft, ids, mask, whole, float("-inf")).to(tl.float32)
        share = _share(x, ids, top, floor, scale, mass, PTX)
    elif KNOWN == PROBS:
        share = tl.minimum(cleaned(_load(draft, ids, mask, whole, 0.0)), _LARGEST).to(tl.float32)
    else:
        share = (ids == drafted).to(tl.float32)
    return tl.where(drawn > 0, share, 0.0)


@triton.jit
def recover_few(
    values,
    ids,
    found,
    draft,
    drafted,
    drawn,
    top,
    floor,
    mass,
    q_top,
    q_floor,
    q_mass,
    scale,
    seed,
    position,
    FP64: tl.constexpr,
    N: tl.constexpr,
    KNOWN: tl.constexpr,
    PTX: tl.constexpr,
):
    """The token, from the ``found`` tokens of a row that may be kept: ``values`` and ``ids``, tile by tile.

    :param draft: where the row of the draft begins; ``drafted`` is its id, ``drawn`` whether it was drawn.
    :param top: with ``floor`` and ``mass`` as :func:`facts_of` has them; the draft's row has ``q_top`` and so on.
    """
    i = tl.arange(0, N)
    x = tl.load(values + i, mask=i < found, other=float("-inf"))
    token = tl.load(ids + i, mask=i < found, other=2147483647)
    p = _share(x, token, top, floor, scale, mass, PTX)
    kept = (i < found) & (p > 0)
    q = _draft_share(draft, token, kept, False, drafted, drawn, q_top, q_floor, scale, q_mass, KNOWN, PTX)
    weight = tl.maximum(p - q, 0.0)
    weight = tl.where(tl.max(weight, 0) > 0, weight, p)
    kept = weight > 0
    tile = token // 1024
    noise = gumbel(seed, position, tile, RESIDUAL_TILE, FP64)
    own_noise = gumbel(seed, position, token, RESIDUAL_TOKEN, FP64)
    total = running_sums(weight, tile)
    chosen = best_of(tl.log(tl.where(kept, total, 1.0).to(noise.dtype)) + noise, tile, kept)
    score = tl.log(tl.where(kept, weight, 1.0).to(noise.dtype)) + own_noise
    return best_of(score, token, kept & (tile == chosen))


@triton.jit(noinline=True)
def recover_some(
    values,
    ids,
    found,
    draft,
    drafted,
    drawn,
    top,
    floor,
    mass,
    q_top,
    q_floor,
    q_mass,
    scale,
    seed,
    position,
    FP64: tl.constexpr,
    N: tl.constexpr,
    KNOWN: tl.constexpr,
    PTX: tl.constexpr,
):
    """The same in a function of its own, for the rows that keep more than the common ones."""
    return recover_few(
        values,
        ids,
        found,
        draft,
        drafted,
        drawn,
        top,
        floor,
        mass,
        q_top,
        q_floor,
        q_mass,
        scale,
        seed,
        position,
        FP64,
        N,
        KNOWN,
        PTX,
    )


@triton.jit
def weigh_residual(
    target,
    draft,
    vocab_size,
    maxima,
    tiles,
    group,
    last,
    drafted,
    drawn,
    top,
    floor,
    mass,
    q_top,
    q_floor,
    q_mass,
    scale,
    weights,
    FILTERED: tl.constexpr,
    WARPS: tl.constexpr,
    VECTOR: tl.constexpr,
    KNOWN: tl.constexpr,
    PTX: tl.constexpr,
):
    """Weigh groups of ``WARPS`` tiles, from ``group`` to before ``last``.

    :param maxima: [tiles] of the target's row.
    :param weights: [2, tiles]: of the residual, and of p.
    """
    while group < last:
        tile = group * WARPS + tl.arange(0, WARPS)
        inside = tile < tiles
        more = tl.zeros((WARPS,), tl.float32)
        whole = tl.zeros((WARPS,), tl.float32)
        reached = tl.full((), 1, tl.int32)
        if FILTERED:
            # Where no token of p is kept, nothing is left of it; where p is all on token 0, every floor is reached.
            maximum = tl.load(maxima + tile, mask=inside, other=float("-inf"))
            reached = (tl.max(maximum, 0) >= floor).to(tl.int32)
        if reached > 0:
            ids = group * (WARPS * 1024) + element_ids(WARPS, VECTOR)
            mask = ids < vocab_size
            fits = (group + 1) * (WARPS * 1024) <= vocab_size
            x = _load(target, ids, mask, fits, float("-inf")).to(tl.float32)
            q = _draft_share(
                draft, ids, mask, fits, drafted, drawn, q_top, q_floor, scale, q_mass, KNOWN, PTX
            )
            p = _share(x, ids, top, floor, scale, mass, PTX)
            more = sum_tiles(tl.maximum(p - q, 0.0))
            whole = sum_tiles(p)
        tl.store(weights + tile, more, mask=inside)
        tl.store(weights + tiles + tile, whole, mask=inside)
        group += 1


@triton.jit(noinline=True)
def recover_many(
    target,
    draft,
    vocab_size,
    tiles,
    drafted,
    drawn,
    top,
    floor,
    mass,
    q_top,
    q_floor,
    q_mass,
    scale,
    seed,
    position,
    weights,
    FP64: tl.constexpr,
    TILES: tl.constexpr,
    KNOWN: tl.constexpr,
    PTX: tl.constexpr,
):
    """The token, from the ``weights`` that :func:`weigh_residual` has left."""
    tile = tl.arange(0, TILES)
    inside = tile < tiles
    more = tl.load(weights + tile, mask=inside, other=0.0)
    whole = tl.load(weights + tiles + tile, mask=inside, other=0.0)
    weight = tl.where(tl.max(more, 0) > 0, more, whole)
    score = tl.log(tl.where(weight > 0, weight, 1.0).to(tl.float64 if FP64 else tl.float32))
    score += gumbel(seed, position, tile, RESIDUAL_TILE, FP64)
    chosen = tl.argmax(tl.where(weight > 0, score, float("-inf")), 0)
    ids = chosen * 1024 + tl.arange(0, 1024)
    mask = ids < vocab_size
    x = tl.load(target + ids, mask=mask, other=float("-inf")).to(tl.float32)
    q = _draft_share(draft, ids, mask, False, drafted, drawn, q_top, q_floor, scale, q_mass, KNOWN, PTX)
    p = _share(x, ids, top, floor, scale, mass, PTX)
    left = tl.maximum(p - q, 0.0)
    left = tl.where(tl.max(left, 0) > 0, left, p)
    score = tl.log(tl.where(left > 0, left, 1.0).to(tl.float64 if FP64 else tl.float32))
    score += gumbel(seed, position, ids, RESIDUAL_TOKEN, FP64)
    return chosen * 1024 + tl.argmax(tl.where(left > 0, score, float("-inf")), 0)
