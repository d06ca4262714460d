"""The launch that verifies the drafts of requests, and what accepts, rejects and draws in place of a rejected draft."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.interval import KeptMasses
from tokendraw_triton_gumbel.kernels.row_candidates import draw_candidate_in_turns
from tokendraw_triton_gumbel.kernels.row_draw import RowLaunch
from tokendraw_triton_gumbel.kernels.rows import (
    ACCEPT,
    CHOSEN,
    COUPLED,
    LOGITS,
    PROBS,
    RESIDUAL_TILE,
    RESIDUAL_TOKEN,
    SHOWN,
    SMALL_CANDIDATES,
    CandidateLists,
    DraftRows,
    DrawResults,
    RowSummary,
    gumbel,
    inverse_temperature,
    noise_key,
    slot_of,
    uniform,
)
from tokendraw_triton_gumbel.kernels.tile_pass import TileLaunches
from tokendraw_triton_gumbel.kernels.values import (
    INT32_MAX,
    LANES,
    LOG2_E,
    TILE_SIZE,
    element_ids,
    exp2,
    steady,
    tile_sums,
    times,
    weigh,
)
from tokendraw_triton_gumbel.launch import Launch, LaunchArguments, Step, group
from tokendraw_triton_gumbel.plan import PER_REQUEST, PER_ROW, CallSize, Grid, Scratch, Target, Variant


class DraftTokens(NamedTuple):
    """The draft ids of a verification."""

    ids: Any
    """[``count``] integer, or [requests, ``count``] if ``padded``."""
    count: Any
    padded: Any
    """1 if each request has a row of ids, else 0."""
    last_id: Any
    """The largest valid id; logits beyond it are padding."""


class ResidualScratch(NamedTuple):
    """Scratch of a verification by probabilities."""

    counters: Any
    """[requests] int32 zeros, and then the results of the check of the drafts' probabilities."""
    weights: Any
    """[requests, 2, tiles] float32: of the residual behind a rejected draft, and of p. Of blocks [rows, 2, tiles]; of a
    row with few candidates the first number is the mass of the residual."""


class VerifyResults(NamedTuple):
    """The result of a verification."""

    token_ids: Any
    """[requests, max_drafts + 1] int64."""
    num_accepted: Any
    """[requests] int32."""
    valid: Any
    """[requests] bool."""
    row_tokens: Any
    """[target rows] int64: the token of each row with a token, written if the flags say SHOWN."""


class AcceptConfig(NamedTuple):
    """Constants of ``accept_drafts``, the verification of drafts, and of ``weigh_blocks`` before it."""

    DRAFT_KIND: int
    """Kind of the drafts: CHOSEN, LOGITS, PROBS or COUPLED; see :mod:`.verify`."""
    IS_BLOCK: bool
    """Whether the drafts of a request are judged together."""
    STEPS: int
    """A power of two above the largest number of drafts a request."""
    FP64: bool
    TILES: int
    SMALL_CANDIDATES: int
    HAS_FILTERS: bool
    HAS_CEILING: bool
    """Whether a row of the target may drop its largest logits."""
    WARPS: int
    VECTOR: int
    IS_NVIDIA: bool


# Ahead of a verification by probabilities: whether the drafts' probabilities are any. One read of them.

POSITIVE = tl.constexpr(1)
"""Result for a valid row: a positive probability, and no invalid one."""
_INVALID = tl.constexpr(2)


@triton.jit
def _either(a, b):
    return a | b


@triton.jit(do_not_specialize=["requests"])
def check_probs(probs, row_stride, vocab_size, counters, requests, AT_ONCE: tl.constexpr):
    """Each program checks some probabilities of one row. Grid (rows, stretches of ``AT_ONCE``).

    :param counters: behind the first ``requests``, [rows] int32: bits are added for a positive probability, and for a
        value that is negative or not finite.
    """
    row = tl.program_id(0)
    column = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    x = tl.load(probs + row.to(tl.int64) * row_stride + column, mask=column < vocab_size, other=0.0)
    is_valid = (x >= 0) & (x < float("inf"))
    prob_flags = tl.where(is_valid, tl.where(x > 0, POSITIVE, 0), _INVALID).to(tl.int32)
    tl.atomic_or(counters + requests + row, tl.reduce(prob_flags, 0, _either), sem="relaxed")


# Recovers a token from the residual of a rejected draft: the excess of the target's distribution p over the draft's
# q.
#
# In a block p counts by a share r, the same as where the block is judged; elsewhere the share is 1.
#
# If p keeps few tokens, the draw of its row has written them to memory: one program reads them with the drafts'
# logits, and draws. Otherwise each program reads a part of both rows once and writes 8 bytes a tile; the last program
# draws.
#
# The draw has two levels, like any other: a tile by the logarithm of its weight plus noise, and a token in it. If the
# residual is empty, the token is drawn from p.

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


class DraftedBatch(NamedTuple):
    """The batch of a verification, as :func:`accept_drafts` gets it."""

    logits: Any
    """:class:`~.rows.Logits` of the target; ``drafts`` :class:`~.rows.DraftRows`, logits or probabilities."""
    drafts: Any
    tokens: Any
    """:class:`DraftTokens`."""
    counts: Any
    row_params: Any
    flags: Any
    draws: Any
    """:class:`~.rows.DrawResults` of the launches before, like ``summary``."""
    summary: Any


@triton.jit
def rejected_draft(row, request, token, was_drawn, scale, share, batch, DRAFT_KIND: tl.constexpr):
    """Return the :class:`RejectedDraft` of a row of the target."""
    logits, drafts, draws, summary = batch.logits, batch.drafts, batch.draws, batch.summary
    p = load_kept_set(row, scale, draws, summary)
    target = logits.base + row.to(tl.int64) * logits.row_stride
    if DRAFT_KIND == CHOSEN:
        rejected = RejectedDraft(target, target, logits.vocab_size, token, was_drawn, p, p, scale, share)
    else:
        draft_row = row - request
        draft = drafts.base + draft_row.to(tl.int64) * drafts.row_stride
        q = p
        if DRAFT_KIND == LOGITS:
            q = load_kept_set(batch.counts.target_rows + draft_row, scale, draws, summary)
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


# Finds the accepted drafts of a request, with the same result in each of its programs.


class Steps(NamedTuple):
    """The steps of a request: one for each draft, and the bonus token's."""

    first_row: Any
    """The first row of the target; ``num_drafts`` the number of drafts."""
    num_drafts: Any
    draft_ids: Any
    """[STEPS] int64: the drafts' ids, -1 without a draft."""
    is_judged: Any
    """[STEPS]: whether the draft is a valid id, in a row that is not greedy."""
    is_accepted: Any
    """[STEPS]: whether the draft is accepted if all earlier drafts are."""
    is_valid: Any
    """[STEPS]: whether the row and the draft's distribution are valid."""
    ratio: Any
    """[STEPS] float64: p / q at the draft, 0 where it cannot have been drawn. Like ``u``, 0 for coupled drafts."""
    u: Any
    """[STEPS]: the uniform that judges the draft."""


@triton.jit
def _weight(x, ids, max_logit, threshold, scale):
    """Return ``exp(y)`` of kept logits, else 0: of +inf 1, and of a row of -inf 1 at token 0."""
    weight = tl.where((x >= threshold) & (x <= max_logit), weigh(x, max_logit, scale), 0.0)
    extreme = tl.where(tl.where(max_logit > 0, x == float("inf"), ids == 0), 1.0, 0.0)
    return tl.where(tl.abs(max_logit) < float("inf"), weight, extreme)


@triton.jit
def _probability(x, ids, row, mask, draws, summary, scale):
    """Return, in float64, the probabilities of the tokens ``ids`` with logits x, one token a row."""
    max_logit = tl.load(summary.max_logit + row, mask=mask, other=0.0)
    threshold = tl.load(draws.threshold + row, mask=mask, other=0.0)
    mass = tl.load(summary.total_weight + row, mask=mask, other=1.0).to(tl.float64)
    mass *= tl.exp(tl.load(draws.log_kept + row, mask=mask, other=0.0).to(tl.float64))
    return _weight(x, ids, max_logit, threshold, scale).to(tl.float64) / mass


@triton.jit
def judge_drafts(request, batch, counters, config: tl.constexpr):
    """Return the :class:`Steps` of a request of a :class:`DraftedBatch`."""
    logits, drafts, tokens, counts = batch.logits, batch.drafts, batch.tokens, batch.counts
    row_params, flags, draws, summary = batch.row_params, batch.flags, batch.draws, batch.summary
    STEPS: tl.constexpr = config.STEPS
    DRAFT_KIND: tl.constexpr = config.DRAFT_KIND
    first_row = tl.load(drafts.cu_num_logits + request).to(tl.int32)
    num_drafts = tl.load(drafts.cu_num_logits + request + 1).to(tl.int32) - first_row - 1
    num_drafts = tl.maximum(tl.minimum(num_drafts, counts.max_drafts), 0)
    step = tl.arange(0, STEPS)
    mask = step < num_drafts
    row = first_row + tl.minimum(step, num_drafts)
    draft_row = first_row - request + step
    start = tl.where(tokens.padded != 0, request.to(tl.int64) * tokens.count, 0)
    column = tl.where(tokens.padded != 0, step, draft_row)
    readable = mask & (column < tokens.count)
    draft_ids = tl.load(tokens.ids + start + column, mask=readable, other=-1).to(tl.int64)
    token = tl.load(draws.token_ids + row)
    is_valid = tl.load(draws.valid + row).to(tl.int32) > 0
    is_accepted = draft_ids == token
    is_judged = mask & (draft_ids >= 0) & (draft_ids <= tokens.last_id)
    ratio = tl.zeros((STEPS,), tl.float64)
    u = tl.zeros((STEPS,), tl.float32)
    if DRAFT_KIND != COUPLED:
        slot = slot_of(row, flags, row_params)
        inverse, greedy = inverse_temperature(row_params.temperature, slot)
        scale = inverse * LOG2_E
        key = noise_key(row, slot, flags, row_params)
        is_judged = is_judged & (greedy == 0)
        ids = tl.where(is_judged, draft_ids, 0)
        x = tl.load(logits.base + row.to(tl.int64) * logits.row_stride + ids, mask=is_judged, other=0.0)
        p = _probability(x.to(tl.float32), ids, row, is_judged, draws, summary, scale)
        if DRAFT_KIND == LOGITS:
            q_row = tl.where(is_judged, counts.target_rows + draft_row, 0)
            q_at = drafts.base + draft_row.to(tl.int64) * drafts.row_stride + ids
            x = tl.load(q_at, mask=is_judged, other=0.0).to(tl.float32)
            q = _probability(x, ids, q_row, is_judged, draws, summary, scale)
            is_valid = is_valid & (tl.load(draws.valid + q_row, mask=is_judged, other=1).to(tl.int32) > 0)
        elif DRAFT_KIND == PROBS:
            q_at = drafts.base + draft_row.to(tl.int64) * drafts.row_stride + ids
            q = clean_probs(tl.load(q_at, mask=is_judged, other=0.0)).to(tl.float64)
            prob_flags = tl.load(counters + tl.num_programs(0) + draft_row, mask=is_judged, other=POSITIVE)
            is_valid = is_valid & (prob_flags == POSITIVE)
        else:
            q = tl.full((STEPS,), 1.0, tl.float64)
        u = uniform(key, step if config.IS_BLOCK else tl.zeros((STEPS,), tl.int32), ACCEPT, config.FP64)
        ratio = tl.where(is_judged & (q > 0), p / tl.where(q > 0, q, 1.0), 0.0)
        is_accepted = tl.where(greedy, is_accepted, u < ratio)
    return Steps(first_row, num_drafts, draft_ids, is_judged, is_accepted, is_valid, ratio, u)


# Judges the drafts of a block together; the plugin native has the formulas, in `tokendraw_native.verify`.
#
# The target's p counts by the share r of the drafts before it, so each row of a block has a residual of its own.
# ``weigh_blocks`` weighs the residuals of all rows: 8 bytes a tile, or one number of a row that keeps few tokens.
# ``accept_drafts`` reads these numbers, finds the accepted drafts, and draws from the residual that is there already.

_NEARLY_1 = tl.constexpr(1.0 - 2.0**-20)


@triton.jit
def pick(values, step, STEPS: tl.constexpr):
    """Return the value of one step of [STEPS]."""
    return tl.sum(tl.where(tl.arange(0, STEPS) == step, values, 0), 0)


@triton.jit
def _next_share(share, ratio):
    """Return r behind a draft; a draft behind one that cannot have been drawn leaves 0.

    The masses of p are float32, so that r may miss 1 by some ulp. Where the residual is empty, that would decide.
    """
    share = tl.where(share > 0, tl.minimum(share * ratio, 1.0), 0.0)
    return tl.where(share > _NEARLY_1, 1.0, share)


@triton.jit(do_not_specialize=["tokens", "counts", "flags"])
def weigh_blocks(
    logits,
    drafts,
    tokens,
    counts,
    row_params,
    flags,
    draws,
    summary,
    lists,
    scratch,
    config: tl.constexpr,
):
    """Each program weighs the residual of a draft's row, or a part of it. Grid (requests, drafts, parts).

    The arguments are those of :func:`accept_drafts`.
    """
    request = tl.program_id(0)
    number = tl.program_id(1)
    part = tl.program_id(2)
    batch = DraftedBatch(logits, drafts, tokens, counts, row_params, flags, draws, summary)
    steps = judge_drafts(request, batch, scratch.counters, config)
    if number < steps.num_drafts:
        share = tl.full((), 1.0, tl.float64)
        i = tl.zeros((), tl.int32)
        while i < number:
            share = _next_share(share, pick(steps.ratio, i, config.STEPS))
            i += 1
        row = steps.first_row + number
        inverse, _ = inverse_temperature(row_params.temperature, slot_of(row, flags, row_params))
        token = pick(steps.draft_ids, number, config.STEPS).to(tl.int32)
        was_drawn = pick(steps.is_judged.to(tl.int32), number, config.STEPS)
        scale, own_share = inverse * LOG2_E, share.to(tl.float32)
        rejected = rejected_draft(row, request, token, was_drawn, scale, own_share, batch, config.DRAFT_KIND)
        num_candidates = tl.full((), -1, tl.int32)
        if config.HAS_FILTERS:
            num_candidates = tl.load(summary.num_candidates + row)
            if (num_candidates >= 0).to(tl.int32) * (part == 0).to(tl.int32) > 0:
                start = row.to(tl.int64) * config.SMALL_CANDIDATES
                values, ids = lists.logits + start, lists.ids + start
                excess = excess_of_candidates(rejected, values, ids, num_candidates, config)
                tl.store(scratch.weights + row.to(tl.int64) * 2 * counts.tiles, excess)
        if num_candidates < 0:
            groups = (counts.tiles + config.WARPS - 1) // config.WARPS
            span = (groups + tl.num_programs(2) - 1) // tl.num_programs(2)
            end_group = tl.minimum((part + 1) * span, groups)
            weights = scratch.weights + row.to(tl.int64) * 2 * counts.tiles
            weigh_residual(rejected, counts.tiles, part * span, end_group, weights, config)


@triton.jit
def _excess_of_row(row, counts, summary, weights, config: tl.constexpr):
    """Return the mass of the residual of a row, as :func:`weigh_blocks` has left it: float64."""
    number = counts.tiles
    if config.HAS_FILTERS:
        number = tl.where(tl.load(summary.num_candidates + row) >= 0, 1, number)
    tile = tl.arange(0, config.TILES)
    weight = tl.load(weights + row.to(tl.int64) * 2 * counts.tiles + tile, mask=tile < number, other=0.0)
    return tl.sum(weight.to(tl.float64), 0)


@triton.jit
def judge_block(steps, counts, summary, weights, config: tl.constexpr):
    """Return the number of accepted drafts of a block, and the share of p in the residual behind them.

    :param weights: [rows, 2, tiles], as :func:`weigh_blocks` has left them.
    """
    step = tl.arange(0, config.STEPS)
    share = tl.full((), 1.0, tl.float64)
    accepted_share = share
    count = tl.zeros((), tl.int32)
    i = tl.zeros((), tl.int32)
    while i < steps.num_drafts:
        share = _next_share(share, pick(steps.ratio, i, config.STEPS))
        u = tl.sum(tl.where(step == i, steps.u, 0.0), 0)
        i += 1
        likely = share
        if i < steps.num_drafts:
            excess = _excess_of_row(steps.first_row + i, counts, summary, weights, config)
            mass = excess + 1.0 - share
            likely = tl.where(mass > 0, excess / tl.where(mass > 0, mass, 1.0), 1.0)
        is_accepted = u <= likely
        count = tl.where(is_accepted, i, count)
        accepted_share = tl.where(is_accepted, share, accepted_share)
    return count, accepted_share.to(tl.float32)


# The last of a verification: finds the accepted drafts, and the token after them.
#
# Reads some numbers and two logits a draft, of the draw's results: the token of every row, and for a verification by
# probabilities its largest logit, threshold and masses; then what the residual reads of the row to recover a
# token from. Writes 8 bytes a token, and 5 a request.
#
# Each of a request's programs finds the same accepted drafts. They share the work of recovering a token from a row
# that keeps many; in all other cases the first program does the rest.


@triton.jit(do_not_specialize=["tokens", "counts", "flags"])
def accept_drafts(
    logits,
    drafts,
    tokens,
    counts,
    row_params,
    flags,
    draws,
    summary,
    lists,
    scratch,
    out,
    config: tl.constexpr,
):
    """Each program verifies one request, or recovers a part of its last token. Grid (requests, parts).

    The groups are those of :class:`DraftedBatch`; of ``draws``, ``summary`` and ``lists`` first the target's rows, then
    the rows of ``drafts`` if it holds logits. Where rows may keep intervals, ``log_kept``, the largest logits and the
    masses are those of :class:`~.interval.KeptMasses`.
    """
    DRAFT_KIND: tl.constexpr = config.DRAFT_KIND
    request = tl.program_id(0)
    part = tl.program_id(1)
    batch = DraftedBatch(logits, drafts, tokens, counts, row_params, flags, draws, summary)
    steps = judge_drafts(request, batch, scratch.counters, config)
    first_row, num_drafts = steps.first_row, steps.num_drafts
    step = tl.arange(0, config.STEPS)
    mask = step < num_drafts
    count = tl.minimum(tl.min(tl.where(steps.is_accepted & mask, config.STEPS, step), 0), num_drafts)
    share = tl.full((), 1.0, tl.float32)
    if config.IS_BLOCK:
        first_slot = slot_of(first_row, flags, row_params)
        _, is_first_greedy = inverse_temperature(row_params.temperature, first_slot)
        block_count, share = judge_block(steps, counts, summary, scratch.weights, config)
        count = tl.where(is_first_greedy, count, block_count)
    emits = first_row + count
    token_ids = out.token_ids + request.to(tl.int64) * (counts.max_drafts + 1)
    if part == 0:
        accepted_ids = tl.where(step < count, steps.draft_ids, -1)
        tl.store(token_ids + step, accepted_ids, mask=(step <= counts.max_drafts) & (step != count))
        tl.store(out.num_accepted + request, count)
        tl.store(out.valid + request, tl.min((steps.is_valid | (step > count)).to(tl.int32), 0) > 0)
        is_shown = (step < count) & ((flags & SHOWN) != 0)
        tl.store(out.row_tokens + first_row + tl.minimum(step, num_drafts), accepted_ids, mask=is_shown)
    is_plain = tl.full((), 1, tl.int32)
    if DRAFT_KIND != COUPLED:
        slot = slot_of(emits, flags, row_params)
        inverse, is_greedy = inverse_temperature(row_params.temperature, slot)
        is_plain = tl.maximum((count == num_drafts).to(tl.int32), is_greedy.to(tl.int32))
    if is_plain > 0:
        if part == 0:
            _emit(tl.load(draws.token_ids + emits), token_ids + count, out.row_tokens, emits, flags)
    elif DRAFT_KIND != COUPLED:
        key = noise_key(emits, slot, flags, row_params)
        scale = inverse * LOG2_E
        is_rejected = (step == count) & steps.is_judged
        was_drawn = tl.sum(is_rejected.to(tl.int32), 0)
        token = tl.sum(tl.where(is_rejected, steps.draft_ids, 0), 0).to(tl.int32)
        rejected = rejected_draft(emits, request, token, was_drawn, scale, share, batch, DRAFT_KIND)
        num_candidates = tl.full((), -1, tl.int32)
        if config.HAS_FILTERS:
            num_candidates = tl.load(summary.num_candidates + emits)
            if (num_candidates >= 0).to(tl.int32) * (part == 0).to(tl.int32) > 0:
                start = emits.to(tl.int64) * config.SMALL_CANDIDATES
                values, ids = lists.logits + start, lists.ids + start
                recovered = recover_from_candidates(rejected, values, ids, num_candidates, key, config)
                _emit(recovered.to(tl.int64), token_ids + count, out.row_tokens, emits, flags)
        if num_candidates < 0:
            tiles = counts.tiles
            if config.IS_BLOCK:
                weights = scratch.weights + emits.to(tl.int64) * 2 * tiles
                recovered = recover_from_tiles(rejected, tiles, key, weights, config)
                _emit(recovered.to(tl.int64), token_ids + count, out.row_tokens, emits, flags)
            else:
                weights = scratch.weights + request.to(tl.int64) * 2 * tiles
                groups = (tiles + config.WARPS - 1) // config.WARPS
                span = (groups + tl.num_programs(1) - 1) // tl.num_programs(1)
                end_group = tl.minimum((part + 1) * span, groups)
                weigh_residual(rejected, tiles, part * span, end_group, weights, config)
                # All threads' weights come before the release of one; the last program acquires those of all.
                tl.debug_barrier()
                if tl.atomic_add(scratch.counters + request, 1, sem="acq_rel") == tl.num_programs(1) - 1:
                    recovered = recover_from_tiles(rejected, tiles, key, weights, config)
                    _emit(recovered.to(tl.int64), token_ids + count, out.row_tokens, emits, flags)


@triton.jit
def _emit(token, out, row_tokens, row, flags):
    tl.store(out, token)
    tl.store(row_tokens + row, token, mask=(flags & SHOWN) != 0)


# The host side: what the draw of the rows leaves to a verification, and the launches behind those of the draw.

_WARPS = 4
_PROGRAMS = 4
"""Upper limit of programs a multiprocessor of the launch over the requests."""
PROBS_AT_ONCE = 4096
"""Probabilities a program."""
_ACCEPT_REGISTERS = 128
"""Limit of registers a thread of the launch over the requests, so that its programs fit. NVIDIA."""
_CHECK_WARPS = 4
_NO_DRAFTS = DraftRows()


class VerifyArguments(NamedTuple):
    """Drafts and results of a verification: first the tensors, as kernels are given them."""

    token_ids: Any
    """The fields of :class:`VerifyResults`, to be filled in; the tokens by row if the flags say so."""
    num_accepted: Any
    valid: Any
    row_tokens: Any
    q: Any
    """Logits or probabilities of drafts, or None."""
    draft_ids: Any
    cu_num_logits: Any
    least_kept: Any
    """[target rows] float32, to be filled in, or None."""
    q_stride: int | None = None
    num_ids: int = 1
    """Number of ids of drafts, in a row if padded."""


class VerifiedRows(NamedTuple):
    """What a verification gives the draw of its rows, and reads afterwards."""

    drafts: DraftRows = DraftRows()
    summary: RowSummary = RowSummary()
    kept: KeptMasses = KeptMasses()
    """Of a verification by probabilities whose rows may keep intervals."""
    residual: Any = (None, None)
    """:class:`ResidualScratch`, whose counters the draw sets to 0."""


class VerifyLaunches:
    """The launches of a variant, and the scratch of what the draw leaves to them."""

    def __init__(
        self, variant: Variant, target: Target, scratch: Scratch, tiles: TileLaunches, rows: RowLaunch
    ) -> None:
        verify, real, whole = variant.verify, torch.float32, torch.int32
        assert verify is not None  # the variant is of a verification
        is_coupled = verify.draft_kind == COUPLED
        self._draft_kind, self._is_padded = verify.draft_kind, int(verify.is_padded)
        self._is_block, self._programs = verify.is_block, _PROGRAMS * target.processors
        self._max_parts = 1 if is_coupled else -(-tiles.count // _WARPS)
        tokens, valid = scratch.reserve(torch.int64), scratch.reserve(torch.bool)
        maxima = masses = num_candidates = counters = weights = None
        self.bounds: Sequence[Any] = (None, None)
        """Indices of the buffers of thresholds and kept masses."""
        if not is_coupled or variant.needs_thresholds:
            self.bounds = scratch.reserve(real), scratch.reserve(real)
        log_shares, kept = self.bounds[1], list[int | None]([None] * 3)
        if not is_coupled:
            maxima, masses, counters = scratch.reserve(real), scratch.reserve(real), scratch.reserve(whole)
            weights = scratch.reserve(real, 2 * tiles.count, PER_ROW if verify.is_block else PER_REQUEST)
            if variant.params.interval is not None:
                # The draw's summary is of rows before XTC, and the last launch reads the kept masses.
                num_candidates, log_shares = rows.num_candidates, scratch.reserve(real)
                kept = [maxima, masses, log_shares]
            elif variant.params.has_filters:
                num_candidates = scratch.reserve(whole)
        self._results = scratch.fields(tokens, valid, *self.bounds, None)
        bounds = (None, None) if is_coupled else (self.bounds[0], log_shares)
        self._judged = scratch.fields(tokens, valid, *bounds, None)
        self._summary = scratch.fields(maxima, masses, num_candidates)
        self._kept = scratch.fields(*kept)
        self._lists = scratch.fields(None, *rows.candidates[1:])
        self._residual = scratch.fields(counters, weights)
        config = AcceptConfig(
            DRAFT_KIND=verify.draft_kind,
            IS_BLOCK=verify.is_block,
            STEPS=verify.max_steps,
            FP64=target.fp64,
            TILES=tiles.count_limit,
            SMALL_CANDIDATES=SMALL_CANDIDATES,
            HAS_FILTERS=variant.params.has_filters,
            HAS_CEILING=variant.has_ceiling,
            WARPS=_WARPS,
            VECTOR=variant.logits.vector,
            IS_NVIDIA=target.is_nvidia,
        )
        options = target.options(_WARPS, _ACCEPT_REGISTERS)
        self._weigh_blocks = Launch(weigh_blocks, {"config": config}, options) if verify.is_block else None
        self._accept_drafts = Launch(accept_drafts, {"config": config}, options)
        self._check_probs = Launch(check_probs, {"AT_ONCE": PROBS_AT_ONCE}, {"num_warps": _CHECK_WARPS})

    def grids(self, size: CallSize) -> Sequence[Grid]:
        """Return the grids of ``weigh_blocks`` and of the launch over the requests."""
        requests, max_drafts = size.requests, size.max_drafts
        places = requests * max_drafts if self._is_block else requests
        parts = max(1, min(self._max_parts, -(-self._programs // max(1, places))))
        if self._is_block:
            return (requests, max_drafts, parts), (requests, 1, 1)
        return (requests, max_drafts, 1), (requests, parts, 1)

    def drawn(
        self, arguments: LaunchArguments, verified: VerifyArguments
    ) -> tuple[Sequence[Any], VerifiedRows]:
        """Return where the draw leaves its results, and what else it is given."""
        scratch, drafts = arguments.scratch, _NO_DRAFTS
        if self._draft_kind == LOGITS:
            drafts = group(DraftRows, (verified.q, verified.q_stride, verified.cu_num_logits))
        *results, _ = self._results(scratch)
        summary, kept = group(RowSummary, self._summary(scratch)), group(KeptMasses, self._kept(scratch))
        residual = group(ResidualScratch, self._residual(scratch))
        return (*results, verified.least_kept), group(VerifiedRows, (drafts, summary, kept, residual))

    def steps(
        self, arguments: LaunchArguments, verified: VerifyArguments, of_rows: VerifiedRows
    ) -> Iterator[Step]:
        """Yield the launches, behind those of the draw."""
        geometry, logits, params, flags, scratch, *_ = arguments
        q, q_stride = verified.q, verified.q_stride
        _, summary, _, residual = of_rows
        if self._draft_kind == PROBS:
            grid = geometry.size.draft_rows, -(-logits.vocab_size // PROBS_AT_ONCE), 1
            of_probs = q, q_stride, logits.vocab_size, residual.counters, geometry.size.requests
            yield self._check_probs, grid, of_probs
        drafts = group(DraftRows, (q, q_stride, verified.cu_num_logits))
        ids = verified.draft_ids, verified.num_ids, self._is_padded, logits.vocab_size - 1
        tokens = group(DraftTokens, ids)
        judged, lists = group(DrawResults, self._judged(scratch)), group(CandidateLists, self._lists(scratch))
        drawn = judged, summary, lists, residual
        shared = (logits, drafts, tokens, geometry.counts, params, flags, *drawn)
        block_grid, request_grid = geometry.verify_grids
        if self._weigh_blocks is not None:
            yield self._weigh_blocks, block_grid, shared
        results = verified.token_ids, verified.num_accepted, verified.valid, verified.row_tokens
        yield self._accept_drafts, request_grid, (*shared, group(VerifyResults, results))
