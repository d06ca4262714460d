"""Judges the drafts of a block together; see :mod:`tokendraw_native.verify` for the formulas.

The target's p counts by the share r of the drafts before it, so each row of a block has a residual of its own.
``weigh_blocks`` weighs the residuals of all rows: 8 bytes a tile, or one number of a row that keeps few tokens.
``accept_drafts`` reads these numbers, finds the accepted drafts, and draws from the residual that is there already.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.row_params import slot_of
from tokendraw_triton_gumbel.kernels.shared.temperature import inverse_temperature
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E
from tokendraw_triton_gumbel.kernels.verify.acceptance import judge_drafts
from tokendraw_triton_gumbel.kernels.verify.residual import (
    excess_of_candidates,
    rejected_draft,
    weigh_residual,
)

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

    The arguments are those of :func:`~.accept_drafts.accept_drafts`.
    """
    request = tl.program_id(0)
    number = tl.program_id(1)
    part = tl.program_id(2)
    steps = judge_drafts(
        request, logits, drafts, tokens, counts, row_params, flags, draws, summary, scratch.counters, config
    )
    if number < steps.num_drafts:
        share = tl.full((), 1.0, tl.float64)
        i = tl.zeros((), tl.int32)
        while i < number:
            share = _next_share(share, pick(steps.ratio, i, config.STEPS))
            i += 1
        row = steps.first_row + number
        inverse, _ = inverse_temperature(row_params.temperature, slot_of(row, flags, row_params))
        rejected = rejected_draft(
            row,
            request,
            pick(steps.draft_ids, number, config.STEPS).to(tl.int32),
            pick(steps.is_judged.to(tl.int32), number, config.STEPS),
            inverse * LOG2_E,
            share.to(tl.float32),
            logits,
            drafts,
            counts,
            draws,
            summary,
            config.DRAFT_KIND,
        )
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

    :param steps: the :class:`~.acceptance.Steps` of the request.
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
