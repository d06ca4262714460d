"""Launch V, the last of a verification: which drafts are accepted, and the token that follows them.

By what the draw has left of every row: its token, and where drafts are judged by probabilities its largest logit, its
threshold and its masses. Reads some numbers and two logits a draft, then what :mod:`.residual` says of the one row that
a token is recovered from. Writes 8 bytes a token, and 5 a request.

Some programs a request, of which each finds the same drafts accepted. Where a token is recovered from a row that keeps
many, they share the work; in all other cases the first of them does what is left to do.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.row_params import SHOWN, noise_key, slot_of
from tokendraw_triton_gumbel.kernels.shared.temperature import inverse_temperature
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E
from tokendraw_triton_gumbel.kernels.verify.acceptance import judge_drafts
from tokendraw_triton_gumbel.kernels.verify.known import CHOSEN, COUPLED, LOGITS
from tokendraw_triton_gumbel.kernels.verify.residual import (
    Rejected,
    load_kept,
    recover_from_candidates,
    recover_from_tiles,
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
    drawn,
    facts,
    lists,
    scratch,
    out,
    config: tl.constexpr,
):
    """One program verifies one request, or recovers a part of its last token. Grid (requests, parts).

    :param logits: :class:`~.argument_groups.Logits` of the target; ``drafts`` :class:`~.argument_groups.DraftRows`,
        logits or probabilities, with the offsets of the requests.
    :param tokens: :class:`~.argument_groups.DraftTokens`.
    :param drawn: :class:`~.argument_groups.Drawn`, as the draw left it, like ``facts`` and ``lists``: the first rows
        are the target's, the others those of ``drafts`` if it is logits.
    :param scratch: :class:`~.argument_groups.ResidualScratch`.
    :param out: :class:`~.argument_groups.Verified`.
    :param config: :class:`~.configs.AcceptConfig`.
    """
    KNOWN: tl.constexpr = config.KNOWN
    request = tl.program_id(0)
    part = tl.program_id(1)
    steps = judge_drafts(
        request, logits, drafts, tokens, counts, row_params, flags, drawn, facts, scratch.counters, config
    )
    first, number = steps.first, steps.number
    step = tl.arange(0, config.STEPS)
    there = step < number
    count = tl.minimum(tl.min(tl.where(steps.accepted & there, config.STEPS, step), 0), number)
    emits = first + count
    token_ids = out.token_ids + request.to(tl.int64) * (counts.max_drafts + 1)
    if part == 0:
        kept = tl.where(step < count, steps.drafted, -1)
        tl.store(token_ids + step, kept, mask=(step <= counts.max_drafts) & (step != count))
        tl.store(out.num_accepted + request, count)
        tl.store(out.valid + request, tl.min((steps.fine | (step > count)).to(tl.int32), 0) > 0)
        is_shown = (step < count) & ((flags & SHOWN) != 0)
        tl.store(out.row_tokens + first + tl.minimum(step, number), kept, mask=is_shown)
    is_plain = tl.full((), 1, tl.int32)
    if KNOWN != COUPLED:
        slot = slot_of(emits, flags, row_params)
        inverse, is_greedy = inverse_temperature(row_params.temperature, slot)
        is_plain = tl.maximum((count == number).to(tl.int32), is_greedy.to(tl.int32))
    if is_plain > 0:
        if part == 0:
            _emit(tl.load(drawn.token_ids + emits), token_ids + count, out.row_tokens, emits, flags)
    elif KNOWN != COUPLED:
        key = noise_key(emits, slot, flags, row_params)
        scale = inverse * LOG2_E
        here = (step == count) & steps.needed
        was_drawn = tl.sum(here.to(tl.int32), 0)
        token = tl.sum(tl.where(here, steps.drafted, 0), 0).to(tl.int32)
        p = load_kept(emits, scale, drawn, facts)
        target = logits.base + emits.to(tl.int64) * logits.row_stride
        if KNOWN == CHOSEN:
            rejected = Rejected(target, target, logits.vocab_size, token, was_drawn, p, p, scale)
        else:
            draft_row = emits - request
            draft = drafts.base + draft_row.to(tl.int64) * drafts.row_stride
            q = p
            if KNOWN == LOGITS:
                q = load_kept(counts.target_rows + draft_row, scale, drawn, facts)
            rejected = Rejected(target, draft, logits.vocab_size, token, was_drawn, p, q, scale)
        found = tl.full((), -1, tl.int32)
        if config.FILTERED:
            found = tl.load(facts.num_candidates + emits)
            if (found >= 0).to(tl.int32) * (part == 0).to(tl.int32) > 0:
                start = emits.to(tl.int64) * config.LARGE_CANDIDATES
                values, ids = lists.logits + start, lists.ids + start
                if found <= config.SMALL_CANDIDATES:
                    recovered = recover_from_candidates(
                        rejected, values, ids, found, key, config, config.SMALL_CANDIDATES
                    )
                else:
                    recovered = recover_from_candidates(
                        rejected, values, ids, found, key, config, config.LARGE_CANDIDATES
                    )
                _emit(recovered.to(tl.int64), token_ids + count, out.row_tokens, emits, flags)
        if found < 0:
            tiles = counts.tiles
            weights = scratch.weights + request.to(tl.int64) * 2 * tiles
            groups = (tiles + config.WARPS - 1) // config.WARPS
            span = (groups + tl.num_programs(1) - 1) // tl.num_programs(1)
            last = tl.minimum((part + 1) * span, groups)
            weigh_residual(rejected, tiles, part * span, last, weights, config)
            tl.debug_barrier()
            if tl.atomic_add(scratch.counters + request, 1, sem="acq_rel") == tl.num_programs(1) - 1:
                recovered = recover_from_tiles(rejected, tiles, key, weights, config)
                _emit(recovered.to(tl.int64), token_ids + count, out.row_tokens, emits, flags)


@triton.jit
def _emit(token, out, row_tokens, row, flags):
    tl.store(out, token)
    tl.store(row_tokens + row, token, mask=(flags & SHOWN) != 0)
