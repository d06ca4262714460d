"""The residual of a rejected draft: what the target's distribution p has more than q, that the draft was drawn from.

Where p keeps few tokens, the draw of its row has left them in memory: they are read with the drafts' logits beside
them, and one program draws. Otherwise each of some programs reads a part of both rows once and writes 8 bytes a tile;
the one that comes last draws.

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
from tokendraw_triton_gumbel.kernels.shared.tile_layout import LANES, TILE_SIZE, element_ids, tile_sums
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, exp2, steady, times
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
    ordinary: Any
    """1 if shares are what :class:`Quick` says: no logit is NaN, the largest is finite and no extreme."""


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


class Quick(NamedTuple):
    """The share of a logit x from the floor upwards as ``factor * 2 ** (x * scale + offset)``."""

    offset: Any
    factor: Any


@triton.jit
def load_kept(row, scale, drawn, facts):
    """Return what a row keeps."""
    top, floor = tl.load(facts.tops + row), tl.load(drawn.floors + row)
    mass = tl.log2(tl.load(facts.masses + row)) + tl.load(drawn.log_kept + row) * LOG2_E
    ordinary = tl.load(drawn.valid + row).to(tl.int32) * (tl.abs(top) < float("inf")).to(tl.int32)
    return Kept(top, floor, mass, ordinary * steady(top, scale))


@triton.jit
def _quick_of(kept, scale, IS_NVIDIA: tl.constexpr):
    offset = -(kept.top * scale)
    return Quick(offset, exp2(-tl.fma(kept.top, scale, offset) - kept.log2_mass, IS_NVIDIA))


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


@triton.jit
def _quick_share(x, kept, quick, scale, FILTERED: tl.constexpr, IS_NVIDIA: tl.constexpr):
    share = exp2(tl.fma(x, scale, quick.offset), IS_NVIDIA) * quick.factor
    return tl.where(x >= kept.floor, share, 0.0) if FILTERED else share


@triton.jit(noinline=True)
def weigh_residual(rejected, tiles, group, last, weights, config: tl.constexpr):
    """Weigh groups of ``WARPS`` tiles, from ``group`` to before ``last``.

    :param weights: [2, tiles]: of the residual, and of p.
    """
    WARPS: tl.constexpr = config.WARPS
    IS_NVIDIA: tl.constexpr = config.IS_NVIDIA
    scale = rejected.scale
    ordinary = rejected.p.ordinary
    if config.KNOWN == LOGITS:
        ordinary *= rejected.q.ordinary
    quick_p = _quick_of(rejected.p, scale, IS_NVIDIA)
    quick_q = _quick_of(rejected.q, scale, IS_NVIDIA)
    quick_q = Quick(quick_q.offset, tl.where(rejected.was_drawn > 0, quick_q.factor, 0.0))
    whole = tl.minimum(last, rejected.vocab_size // (WARPS * TILE_SIZE))
    end = tl.where(ordinary > 0, whole, group)
    while group < end:
        ids = group * (WARPS * TILE_SIZE) + element_ids(WARPS, config.VECTOR)
        if config.KNOWN == LOGITS:
            y = tl.load(rejected.draft + ids).to(tl.float32)
            q = _quick_share(y, rejected.q, quick_q, scale, config.FILTERED, IS_NVIDIA)
        else:
            q = _draft_share(rejected, ids, ids < rejected.vocab_size, True, config.KNOWN, IS_NVIDIA)
        x = tl.load(rejected.target + ids).to(tl.float32)
        p = _quick_share(x, rejected.p, quick_p, scale, config.FILTERED, IS_NVIDIA)
        _store_tiles(weights, group, tiles, p, q, WARPS)
        group += 1
    while group < last:  # what is left: the end of the row, or all of one that is not ordinary
        ids = group * (WARPS * TILE_SIZE) + element_ids(WARPS, config.VECTOR)
        mask = ids < rejected.vocab_size
        x = tl.load(rejected.target + ids, mask=mask, other=float("-inf")).to(tl.float32)
        if ordinary > 0:
            p = _quick_share(x, rejected.p, quick_p, scale, config.FILTERED, IS_NVIDIA)
            if config.KNOWN == LOGITS:
                y = tl.load(rejected.draft + ids, mask=mask, other=float("-inf")).to(tl.float32)
                q = _quick_share(y, rejected.q, quick_q, scale, config.FILTERED, IS_NVIDIA)
            else:
                q = _draft_share(rejected, ids, mask, False, config.KNOWN, IS_NVIDIA)
            _store_tiles(weights, group, tiles, p, q, WARPS)
        else:
            q = _draft_share(rejected, ids, mask, False, config.KNOWN, IS_NVIDIA)
            _store_tiles(weights, group, tiles, _share(x, ids, rejected.p, scale, IS_NVIDIA), q, WARPS)
        group += 1


@triton.jit
def _store_tiles(weights, group, tiles, p, q, WARPS: tl.constexpr):
    """Write what tiles weigh: two lanes of each warp do, so that no warp waits for another."""
    lane, tile = tl.arange(0, LANES)[:, None], (group * WARPS + tl.arange(0, WARPS))[None, :]
    both = tl.where(lane == 0, tile_sums(tl.maximum(p - q, 0.0))[None, :], tile_sums(p)[None, :])
    tl.store(weights + lane * tiles + tile, both, mask=(lane < 2) & (tile < tiles))


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
