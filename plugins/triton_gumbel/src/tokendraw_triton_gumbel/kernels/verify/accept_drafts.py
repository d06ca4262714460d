"""The last of a verification: finds the accepted drafts, and the token after them.

Reads some numbers and two logits a draft, of the draw's results: the token of every row, and for a verification by
probabilities its largest logit, threshold and masses; then what :mod:`.residual` reads of the row to recover a token
from. Writes 8 bytes a token, and 5 a request.

Each of a request's programs finds the same accepted drafts. They share the work of recovering a token from a row that
keeps many; in all other cases the first program does the rest.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.row_params import SHOWN, noise_key, slot_of
from tokendraw_triton_gumbel.kernels.shared.temperature import inverse_temperature
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E
from tokendraw_triton_gumbel.kernels.verify.acceptance import judge_drafts
from tokendraw_triton_gumbel.kernels.verify.block_acceptance import judge_block
from tokendraw_triton_gumbel.kernels.verify.draft_kinds import COUPLED
from tokendraw_triton_gumbel.kernels.verify.residual import (
    recover_from_candidates,
    recover_from_tiles,
    rejected_draft,
    weigh_residual,
)


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

    :param logits: :class:`~.argument_groups.Logits` of the target; ``drafts`` :class:`~.argument_groups.DraftRows`,
        logits or probabilities, with the offsets of the requests.
    :param tokens: :class:`~.argument_groups.DraftTokens`.
    :param draws: :class:`~.argument_groups.DrawResults` of the launches before, like ``summary`` and ``lists``: first
        the target's rows, then the rows of ``drafts`` if it holds logits. Where rows may keep intervals, ``log_kept``,
        the largest logits and the masses are those of :class:`~..kept_interval.argument_groups.KeptMasses`.
    :param scratch: :class:`~.argument_groups.ResidualScratch`.
    :param out: :class:`~.argument_groups.VerifyResults`.
    :param config: :class:`~.configs.AcceptConfig`.
    """
    DRAFT_KIND: tl.constexpr = config.DRAFT_KIND
    request = tl.program_id(0)
    part = tl.program_id(1)
    steps = judge_drafts(
        request, logits, drafts, tokens, counts, row_params, flags, draws, summary, scratch.counters, config
    )
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
        rejected = rejected_draft(
            emits,
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
            DRAFT_KIND,
        )
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
                tl.debug_barrier()
                if tl.atomic_add(scratch.counters + request, 1, sem="acq_rel") == tl.num_programs(1) - 1:
                    recovered = recover_from_tiles(rejected, tiles, key, weights, config)
                    _emit(recovered.to(tl.int64), token_ids + count, out.row_tokens, emits, flags)


@triton.jit
def _emit(token, out, row_tokens, row, flags):
    tl.store(out, token)
    tl.store(row_tokens + row, token, mask=(flags & SHOWN) != 0)
