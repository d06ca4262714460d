"""Recovers a token from the residual of a rejected draft: the excess of the target's distribution p over the draft's q.

In a block p counts by a share r, the same as in :mod:`.block_acceptance`; elsewhere the share is 1.

If p keeps few tokens, the draw of its row has written them to memory: one program reads them with the drafts' logits,
and draws. Otherwise each program reads a part of both rows once and writes 8 bytes a tile; the last program draws.

The draw has two levels, like any other: a tile by the logarithm of its weight plus noise, and a token in it. If the
residual is empty, the token is drawn from p.
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
from tokendraw_triton_gumbel.kernels.verify.draft_kinds import CHOSEN, LOGITS, PROBS

_LARGEST = tl.constexpr(3.4e38)
"""Upper limit of a probability: float64 is converted to float32."""


class KeptSet(NamedTuple):
    """The kept logits of a row."""

    max_logit: Any
    """The greatest kept logit: the largest, unless XTC dropped that."""
    threshold: Any
    """The least kept logit."""
    log2_mass: Any
    """log2 of the kept mass."""
    is_ordinary: Any
    """1 if :class:`FastShare` gives the shares: no logit is NaN, and the largest is finite and moderate."""


class RejectedDraft(NamedTuple):
    """A row with a rejected draft, or a row behind padding, from which to recover a token."""

    target: Any
    """Start of the target's logits; ``draft`` is the start of the draft's logits or probabilities."""
    draft: Any
    vocab_size: Any
    token: Any
    """The draft's id."""
    was_drawn: Any
    """Whether the draft was drawn from q."""
    p: Any
    """The target's :class:`KeptSet`; ``q`` the draft's."""
    q: Any
    scale: Any
    """``log2(e) / T``."""
    share: Any
    """The factor of p, float32."""


class FastShare(NamedTuple):
    """The share of a logit x from the threshold upwards as ``factor * 2 ** (x * scale + offset)``."""

    offset: Any
    factor: Any


@triton.jit
def load_kept_set(row, scale, draws, summary):
    """Load the :class:`KeptSet` of a row."""
    max_logit, threshold = tl.load(summary.max_logit + row), tl.load(draws.threshold + row)
    mass = tl.log2(tl.load(summary.total_weight + row)) + tl.load(draws.log_kept + row) * LOG2_E
    is_ordinary = tl.load(draws.valid + row).to(tl.int32) * (tl.abs(max_logit) < float("inf")).to(tl.int32)
    return KeptSet(max_logit, threshold, mass, is_ordinary * steady(max_logit, scale))


@triton.jit
def rejected_draft(
    row,
    request,
    token,
    was_drawn,
    scale,
    share,
    logits,
    drafts,
    counts,
    draws,
    summary,
    DRAFT_KIND: tl.constexpr,
):
    """Return the :class:`RejectedDraft` of a row of the target.

    The groups of arguments are those of :func:`~.accept_drafts.accept_drafts`.
    """
    p = load_kept_set(row, scale, draws, summary)
    target = logits.base + row.to(tl.int64) * logits.row_stride
    if DRAFT_KIND == CHOSEN:
        rejected = RejectedDraft(target, target, logits.vocab_size, token, was_drawn, p, p, scale, share)
    else:
        draft_row = row - request
        draft = drafts.base + draft_row.to(tl.int64) * drafts.row_stride
        q = p
        if DRAFT_KIND == LOGITS:
            q = load_kept_set(counts.target_rows + draft_row, scale, draws, summary)
        rejected = RejectedDraft(target, draft, logits.vocab_size, token, was_drawn, p, q, scale, share)
    return rejected


@triton.jit
def _fast_share_of(kept, scale, IS_NVIDIA: tl.constexpr):
    offset = -(kept.max_logit * scale)
    return FastShare(offset, exp2(-tl.fma(kept.max_logit, scale, offset) - kept.log2_mass, IS_NVIDIA))


@triton.jit
def clean_probs(probs):
    """Replace NaN, negative and infinite probabilities by 0."""
    return tl.where((probs > 0) & (probs < float("inf")), probs, 0.0)


@triton.jit
def _share(x, ids, kept, scale, IS_NVIDIA: tl.constexpr):
    """Return the probabilities of logits: equal shares for +inf, and 1 at token 0 in a row of -inf."""
    is_kept = (x >= kept.threshold) & (x <= kept.max_logit) & (x > float("-inf"))
    distance = tl.where(is_kept, x - kept.max_logit, 0.0)
    share = tl.where(is_kept, exp2(times(distance, scale) - kept.log2_mass, IS_NVIDIA), 0.0)
    extreme = tl.where(
        tl.where(kept.max_logit > 0, x == float("inf"), ids == 0), tl.exp2(-kept.log2_mass), 0.0
    )
    return tl.where(tl.abs(kept.max_logit) < float("inf"), share, extreme)


@triton.jit
def _load(base, ids, mask, is_full, other: tl.constexpr):
    """Load with ``mask``, or without if ``is_full``: a mask keeps the compiler from reading neighbours at once."""
    if is_full:
        x = tl.load(base + ids)
    else:
        x = tl.load(base + ids, mask=mask, other=other)
    return x


@triton.jit
def _draft_share(rejected, ids, mask, is_full, DRAFT_KIND: tl.constexpr, IS_NVIDIA: tl.constexpr):
    """Return the draft's probabilities; 0 if no draft was drawn."""
    if DRAFT_KIND == LOGITS:
        x = _load(rejected.draft, ids, mask, is_full, float("-inf")).to(tl.float32)
        share = _share(x, ids, rejected.q, rejected.scale, IS_NVIDIA)
    elif DRAFT_KIND == PROBS:
        probs = clean_probs(_load(rejected.draft, ids, mask, is_full, 0.0))
        share = tl.minimum(probs, _LARGEST).to(tl.float32)
    else:
        share = (ids == rejected.token).to(tl.float32)
    return tl.where(rejected.was_drawn > 0, share, 0.0)


@triton.jit
def _residual_of_candidates(rejected, values, ids, count, config: tl.constexpr):
    """Return the candidates' ids, their weights in the residual, and in p."""
    i = tl.arange(0, config.SMALL_CANDIDATES)
    x = tl.load(values + i, mask=i < count, other=float("-inf"))
    token = tl.load(ids + i, mask=i < count, other=INT32_MAX)
    p = _share(x, token, rejected.p, rejected.scale, config.IS_NVIDIA) * rejected.share
    kept = (i < count) & (p > 0)
    q = _draft_share(rejected, token, kept, False, config.DRAFT_KIND, config.IS_NVIDIA)
    return token, tl.where(kept, tl.maximum(p - q, 0.0), 0.0), p


@triton.jit(noinline=True)
def excess_of_candidates(rejected, values, ids, count, config: tl.constexpr):
    """Return the mass of the residual of the row's ``count`` candidates: ``values`` and ``ids``, tile by tile."""
    _, weight, _ = _residual_of_candidates(rejected, values, ids, count, config)
    return tl.sum(weight, 0)


@triton.jit(noinline=True)
def recover_from_candidates(rejected, values, ids, count, key, config: tl.constexpr):
    """Draw a token from the residual of the row's ``count`` candidates: ``values`` and ``ids``, tile by tile."""
    FP64: tl.constexpr = config.FP64
    token, weight, p = _residual_of_candidates(rejected, values, ids, count, config)
    weight = tl.where(tl.max(weight, 0) > 0, weight, p)
    kept = weight > 0
    score = tl.log(tl.where(kept, weight, 1.0).to(tl.float64 if FP64 else tl.float32))
    return draw_candidate_in_turns(score, weight, kept, token, key, RESIDUAL_TOKEN, RESIDUAL_TILE, FP64)


@triton.jit
def _apply_fast_share(x, kept, fast_share, scale, config: tl.constexpr):
    share = exp2(tl.fma(x, scale, fast_share.offset), config.IS_NVIDIA) * fast_share.factor
    if config.HAS_FILTERS:
        share = tl.where(x >= kept.threshold, share, 0.0)
    if config.HAS_CEILING:
        share = tl.where(x <= kept.max_logit, share, 0.0)
    return share


@triton.jit(noinline=True)
def weigh_residual(rejected, tiles, group, end_group, weights, config: tl.constexpr):
    """Weigh groups of ``WARPS`` tiles, from ``group`` to before ``end_group``.

    :param weights: [2, tiles]: of the residual, and of p.
    """
    WARPS: tl.constexpr = config.WARPS
    IS_NVIDIA: tl.constexpr = config.IS_NVIDIA
    scale = rejected.scale
    is_ordinary = rejected.p.is_ordinary
    if config.DRAFT_KIND == LOGITS:
        is_ordinary *= rejected.q.is_ordinary
    fast_p = _fast_share_of(rejected.p, scale, IS_NVIDIA)
    fast_p = FastShare(fast_p.offset, fast_p.factor * rejected.share)
    fast_q = _fast_share_of(rejected.q, scale, IS_NVIDIA)
    fast_q = FastShare(fast_q.offset, tl.where(rejected.was_drawn > 0, fast_q.factor, 0.0))
    full_groups = tl.minimum(end_group, rejected.vocab_size // (WARPS * TILE_SIZE))
    end = tl.where(is_ordinary > 0, full_groups, group)
    while group < end:
        ids = group * (WARPS * TILE_SIZE) + element_ids(WARPS, config.VECTOR)
        if config.DRAFT_KIND == LOGITS:
            y = tl.load(rejected.draft + ids).to(tl.float32)
            q = _apply_fast_share(y, rejected.q, fast_q, scale, config)
        else:
            q = _draft_share(rejected, ids, ids < rejected.vocab_size, True, config.DRAFT_KIND, IS_NVIDIA)
        x = tl.load(rejected.target + ids).to(tl.float32)
        p = _apply_fast_share(x, rejected.p, fast_p, scale, config)
        _store_tiles(weights, group, tiles, p, q, WARPS)
        group += 1
    while group < end_group:  # the rest: the end of the row, or all of a row with extreme logits
        ids = group * (WARPS * TILE_SIZE) + element_ids(WARPS, config.VECTOR)
        mask = ids < rejected.vocab_size
        x = tl.load(rejected.target + ids, mask=mask, other=float("-inf")).to(tl.float32)
        if is_ordinary > 0:
            p = _apply_fast_share(x, rejected.p, fast_p, scale, config)
            if config.DRAFT_KIND == LOGITS:
                y = tl.load(rejected.draft + ids, mask=mask, other=float("-inf")).to(tl.float32)
                q = _apply_fast_share(y, rejected.q, fast_q, scale, config)
            else:
                q = _draft_share(rejected, ids, mask, False, config.DRAFT_KIND, IS_NVIDIA)
            _store_tiles(weights, group, tiles, p, q, WARPS)
        else:
            q = _draft_share(rejected, ids, mask, False, config.DRAFT_KIND, IS_NVIDIA)
            p = _share(x, ids, rejected.p, scale, IS_NVIDIA) * rejected.share
            _store_tiles(weights, group, tiles, p, q, WARPS)
        group += 1


@triton.jit
def _store_tiles(weights, group, tiles, p, q, WARPS: tl.constexpr):
    """Write the weights of tiles by two lanes of each warp, so that no warp waits for another."""
    lane, tile = tl.arange(0, LANES)[:, None], (group * WARPS + tl.arange(0, WARPS))[None, :]
    tile_weights = tl.where(lane == 0, tile_sums(tl.maximum(p - q, 0.0))[None, :], tile_sums(p)[None, :])
    tl.store(weights + lane * tiles + tile, tile_weights, mask=(lane < 2) & (tile < tiles))


@triton.jit(noinline=True)
def recover_from_tiles(rejected, tiles, key, weights, config: tl.constexpr):
    """Draw a token from the residual, by the ``weights`` of :func:`weigh_residual`."""
    FP64: tl.constexpr = config.FP64
    tile = tl.arange(0, config.TILES)
    inside = tile < tiles
    residual_weight = tl.load(weights + tile, mask=inside, other=0.0)
    target_weight = tl.load(weights + tiles + tile, mask=inside, other=0.0)
    weight = tl.where(tl.max(residual_weight, 0) > 0, residual_weight, target_weight)
    score = tl.log(tl.where(weight > 0, weight, 1.0).to(tl.float64 if FP64 else tl.float32))
    score += gumbel(key, tile, RESIDUAL_TILE, FP64)
    chosen = tl.argmax(tl.where(weight > 0, score, float("-inf")), 0)
    ids = chosen * TILE_SIZE + tl.arange(0, TILE_SIZE)
    mask = ids < rejected.vocab_size
    x = tl.load(rejected.target + ids, mask=mask, other=float("-inf")).to(tl.float32)
    q = _draft_share(rejected, ids, mask, False, config.DRAFT_KIND, config.IS_NVIDIA)
    p = _share(x, ids, rejected.p, rejected.scale, config.IS_NVIDIA) * rejected.share
    residual = tl.maximum(p - q, 0.0)
    residual = tl.where(tl.max(residual, 0) > 0, residual, p)
    score = tl.log(tl.where(residual > 0, residual, 1.0).to(tl.float64 if FP64 else tl.float32))
    score += gumbel(key, ids, RESIDUAL_TOKEN, FP64)
    return chosen * TILE_SIZE + tl.argmax(tl.where(residual > 0, score, float("-inf")), 0)
