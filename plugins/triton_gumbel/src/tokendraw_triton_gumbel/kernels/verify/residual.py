"""The residual of a rejected draft: what the target's distribution p has more than q, that the draft was drawn from.

Where p keeps few tokens, the draw of its row has left them in memory: they are read with the drafts' logits beside
them, and one program draws. Otherwise each of some programs reads a part of both rows once, where p keeps anything, and
writes 8 bytes a tile; the one that comes last draws.

Either way the draw has two levels, as any: a tile by the logarithm of its weight plus noise, and a token in it. Where
nothing is left of a residual, p is drawn from.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.row_draw.token_draw import draw_candidate_in_turns
from tokendraw_triton_gumbel.kernels.shared.float_keys import INT32_MAX
from tokendraw_triton_gumbel.kernels.shared.noise import RESIDUAL_TILE, RESIDUAL_TOKEN, gumbel
from tokendraw_triton_gumbel.kernels.shared.tile_layout import TILE_SIZE, element_ids, tile_sums
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, exp2, times
from tokendraw_triton_gumbel.kernels.verify.known import LOGITS, PROBS

_LARGEST = tl.constexpr(3.4e38)
"""The largest probability that is taken: float64 ones are read as float32."""


class Kept(NamedTuple):
    """The logits that a row keeps."""

    top: Any
    """The largest logit."""
    floor: Any
    """The least kept one."""
    log2_mass: Any
    """log2 of the kept mass."""


class Rejected(NamedTuple):
    """A row whose draft is rejected, or behind whose padding a token is to be drawn."""

    target: Any
    """Start of the target's logits; ``draft`` is the start of the draft's logits or probabilities."""
    draft: Any
    vocab_size: Any
    token: Any
    """The draft's id."""
    was_drawn: Any
    """Whether the draft was drawn from q."""
    p: Any
    """The target's :class:`Kept`; ``q`` the draft's."""
    q: Any
    scale: Any
    """``log2(e) / T``."""


@triton.jit
def load_kept(row, drawn, facts):
    """Return what a row keeps."""
    mass = tl.log2(tl.load(facts.masses + row)) + tl.load(drawn.log_kept + row) * LOG2_E
    return Kept(tl.load(facts.tops + row), tl.load(drawn.floors + row), mass)


@triton.jit
def clean_probs(probs):
    """Return probabilities as they are, but NaN, negative and infinite ones as 0."""
    return tl.where((probs > 0) & (probs < float("inf")), probs, 0.0)


@triton.jit
def _share(x, ids, kept, scale, IS_NVIDIA: tl.constexpr):
    """Return the probabilities of logits: of +inf they are shared, and where nothing is above -inf, token 0 has all."""
    is_kept = (x >= kept.floor) & (x > float("-inf"))
    distance = tl.where(is_kept, x - kept.top, 0.0)
    share = tl.where(is_kept, exp2(times(distance, scale) - kept.log2_mass, IS_NVIDIA), 0.0)
    extreme = tl.where(tl.where(kept.top > 0, x == float("inf"), ids == 0), tl.exp2(-kept.log2_mass), 0.0)
    return tl.where(tl.abs(kept.top) < float("inf"), share, extreme)


@triton.jit
def _load(base, ids, mask, whole, other: tl.constexpr):
    """Load; ``mask`` may be ignored if ``whole``, as it keeps the compiler from reading neighbours at once."""
    if whole:
        x = tl.load(base + ids)
    else:
        x = tl.load(base + ids, mask=mask, other=other)
    return x


@triton.jit
def _draft_share(rejected, ids, mask, whole, KNOWN: tl.constexpr, IS_NVIDIA: tl.constexpr):
    """Return the draft's probabilities, 0 where none was drawn."""
    if KNOWN == LOGITS:
        x = _load(rejected.draft, ids, mask, whole, float("-inf")).to(tl.float32)
        share = _share(x, ids, rejected.q, rejected.scale, IS_NVIDIA)
    elif KNOWN == PROBS:
        probs = clean_probs(_load(rejected.draft, ids, mask, whole, 0.0))
        share = tl.minimum(probs, _LARGEST).to(tl.float32)
    else:
        share = (ids == rejected.token).to(tl.float32)
    return tl.where(rejected.was_drawn > 0, share, 0.0)


@triton.jit(noinline=True)
def recover_from_candidates(rejected, values, ids, found, key, config: tl.constexpr, N: tl.constexpr):
    """Return the token, from the ``found`` tokens of a row that may be kept: ``values`` and ``ids``, tile by tile."""
    FP64: tl.constexpr = config.FP64
    i = tl.arange(0, N)
    x = tl.load(values + i, mask=i < found, other=float("-inf"))
    token = tl.load(ids + i, mask=i < found, other=INT32_MAX)
    p = _share(x, token, rejected.p, rejected.scale, config.IS_NVIDIA)
    kept = (i < found) & (p > 0)
    q = _draft_share(rejected, token, kept, False, config.KNOWN, config.IS_NVIDIA)
    weight = tl.maximum(p - q, 0.0)
    weight = tl.where(tl.max(weight, 0) > 0, weight, p)
    kept = weight > 0
    score = tl.log(tl.where(kept, weight, 1.0).to(tl.float64 if FP64 else tl.float32))
    return draw_candidate_in_turns(score, weight, kept, token, key, RESIDUAL_TOKEN, RESIDUAL_TILE, FP64)


@triton.jit(noinline=True)
def weigh_residual(rejected, maxima, tiles, group, last, weights, config: tl.constexpr):
    """Weigh groups of ``WARPS`` tiles, from ``group`` to before ``last``.

    :param maxima: [tiles] of the target's row.
    :param weights: [2, tiles]: of the residual, and of p.
    """
    WARPS: tl.constexpr = config.WARPS
    while group < last:
        tile = group * WARPS + tl.arange(0, WARPS)
        inside = tile < tiles
        more = tl.zeros((WARPS,), tl.float32)
        whole = tl.zeros((WARPS,), tl.float32)
        reached = tl.full((), 1, tl.int32)
        if config.FILTERED:
            # Where no token of p is kept, nothing is left of it; where p is all on token 0, every floor is reached.
            maximum = tl.load(maxima + tile, mask=inside, other=float("-inf"))
            reached = (tl.max(maximum, 0) >= rejected.p.floor).to(tl.int32)
        if reached > 0:
            ids = group * (WARPS * TILE_SIZE) + element_ids(WARPS, config.VECTOR)
            mask = ids < rejected.vocab_size
            fits = (group + 1) * (WARPS * TILE_SIZE) <= rejected.vocab_size
            x = _load(rejected.target, ids, mask, fits, float("-inf")).to(tl.float32)
            q = _draft_share(rejected, ids, mask, fits, config.KNOWN, config.IS_NVIDIA)
            p = _share(x, ids, rejected.p, rejected.scale, config.IS_NVIDIA)
            more = tile_sums(tl.maximum(p - q, 0.0))
            whole = tile_sums(p)
        tl.store(weights + tile, more, mask=inside)
        tl.store(weights + tiles + tile, whole, mask=inside)
        group += 1


@triton.jit(noinline=True)
def recover_from_tiles(rejected, tiles, key, weights, config: tl.constexpr):
    """Return the token, from the ``weights`` that :func:`weigh_residual` has left."""
    FP64: tl.constexpr = config.FP64
    tile = tl.arange(0, config.TILES)
    inside = tile < tiles
    more = tl.load(weights + tile, mask=inside, other=0.0)
    whole = tl.load(weights + tiles + tile, mask=inside, other=0.0)
    weight = tl.where(tl.max(more, 0) > 0, more, whole)
    score = tl.log(tl.where(weight > 0, weight, 1.0).to(tl.float64 if FP64 else tl.float32))
    score += gumbel(key, tile, RESIDUAL_TILE, FP64)
    chosen = tl.argmax(tl.where(weight > 0, score, float("-inf")), 0)
    ids = chosen * TILE_SIZE + tl.arange(0, TILE_SIZE)
    mask = ids < rejected.vocab_size
    x = tl.load(rejected.target + ids, mask=mask, other=float("-inf")).to(tl.float32)
    q = _draft_share(rejected, ids, mask, False, config.KNOWN, config.IS_NVIDIA)
    p = _share(x, ids, rejected.p, rejected.scale, config.IS_NVIDIA)
    left = tl.maximum(p - q, 0.0)
    left = tl.where(tl.max(left, 0) > 0, left, p)
    score = tl.log(tl.where(left > 0, left, 1.0).to(tl.float64 if FP64 else tl.float32))
    score += gumbel(key, ids, RESIDUAL_TOKEN, FP64)
    return chosen * TILE_SIZE + tl.argmax(tl.where(left > 0, score, float("-inf")), 0)
