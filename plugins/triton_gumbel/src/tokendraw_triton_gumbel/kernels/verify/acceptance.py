"""Finds the accepted drafts of a request, with the same result in each of its programs."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.noise import ACCEPT, uniform
from tokendraw_triton_gumbel.kernels.shared.row_params import noise_key, slot_of
from tokendraw_triton_gumbel.kernels.shared.temperature import inverse_temperature
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, weigh
from tokendraw_triton_gumbel.kernels.verify.check_probs import POSITIVE
from tokendraw_triton_gumbel.kernels.verify.draft_kinds import COUPLED, LOGITS, PROBS
from tokendraw_triton_gumbel.kernels.verify.residual import clean_probs


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
    """Return ``exp(y)`` of kept logits, else 0: of +inf 1, and of a row of -inf 1 at token 0.

    :param max_logit: the greatest kept logit.
    """
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
def judge_drafts(
    request, logits, drafts, tokens, counts, row_params, flags, draws, summary, counters, config: tl.constexpr
):
    """Return the :class:`Steps` of a request. The arguments are those of :func:`~.accept_drafts.accept_drafts`."""
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
