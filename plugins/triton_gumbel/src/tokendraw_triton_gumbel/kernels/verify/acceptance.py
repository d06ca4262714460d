"""Finds the accepted drafts of a request, in each of its programs, which all find the same."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.noise import ACCEPT, uniform
from tokendraw_triton_gumbel.kernels.shared.row_params import noise_key, slot_of
from tokendraw_triton_gumbel.kernels.shared.temperature import inverse_temperature
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, weigh
from tokendraw_triton_gumbel.kernels.verify.check_probs import SOME
from tokendraw_triton_gumbel.kernels.verify.known import COUPLED, LOGITS, PROBS
from tokendraw_triton_gumbel.kernels.verify.residual import clean_probs


class Steps(NamedTuple):
    """The steps of a request: as many as it has drafts, and the bonus token's."""

    first: Any
    """The first row of the target; ``number`` how many drafts there are."""
    number: Any
    drafted: Any
    """[STEPS] int64: the drafts' ids, -1 where there is none."""
    needed: Any
    """[STEPS]: which of them are ids of a token, in rows that are not greedy."""
    accepted: Any
    """[STEPS]: which would be accepted if those before are."""
    fine: Any
    """[STEPS]: whether the row, and what is known of the draft, is valid."""


@triton.jit
def _weight(x, ids, top, floor, scale):
    """Return ``exp(y)`` of what is kept, else 0: of +inf 1, and where nothing is above -inf, 1 of token 0."""
    weight = tl.where(x >= floor, weigh(x, top, scale), 0.0)
    extreme = tl.where(tl.where(top > 0, x == float("inf"), ids == 0), 1.0, 0.0)
    return tl.where(tl.abs(top) < float("inf"), weight, extreme)


@triton.jit
def _probability(x, ids, row, there, drawn, facts, scale):
    """Return, in float64, the probabilities of the tokens ``ids`` with logits x, each of a row of its own."""
    top = tl.load(facts.tops + row, mask=there, other=0.0)
    floor = tl.load(drawn.floors + row, mask=there, other=0.0)
    mass = tl.load(facts.masses + row, mask=there, other=1.0).to(tl.float64)
    mass *= tl.exp(tl.load(drawn.log_kept + row, mask=there, other=0.0).to(tl.float64))
    return _weight(x, ids, top, floor, scale).to(tl.float64) / mass


@triton.jit
def judge_drafts(
    request, logits, drafts, tokens, counts, row_params, flags, drawn, facts, counters, config: tl.constexpr
):
    """Return the :class:`Steps` of a request. The arguments are those of :func:`~.accept_drafts.accept_drafts`."""
    STEPS: tl.constexpr = config.STEPS
    KNOWN: tl.constexpr = config.KNOWN
    first = tl.load(drafts.cu_num_logits + request).to(tl.int32)
    number = tl.load(drafts.cu_num_logits + request + 1).to(tl.int32) - first - 1
    number = tl.maximum(tl.minimum(number, counts.max_drafts), 0)
    step = tl.arange(0, STEPS)
    there = step < number
    row = first + tl.minimum(step, number)
    draft_row = first - request + step
    start = tl.where(tokens.padded != 0, request.to(tl.int64) * tokens.count, 0)
    column = tl.where(tokens.padded != 0, step, draft_row)
    readable = there & (column < tokens.count)
    drafted = tl.load(tokens.ids + start + column, mask=readable, other=-1).to(tl.int64)
    token = tl.load(drawn.token_ids + row)
    fine = tl.load(drawn.valid + row).to(tl.int32) > 0
    accepted = drafted == token
    needed = there & (drafted >= 0) & (drafted <= tokens.last_id)
    if KNOWN != COUPLED:
        slot = slot_of(row, flags, row_params)
        inverse, greedy = inverse_temperature(row_params.temperature, slot)
        scale = inverse * LOG2_E
        key = noise_key(row, slot, flags, row_params)
        needed = needed & (greedy == 0)
        at = tl.where(needed, drafted, 0)
        x = tl.load(logits.base + row.to(tl.int64) * logits.row_stride + at, mask=needed, other=0.0)
        p = _probability(x.to(tl.float32), at, row, needed, drawn, facts, scale)
        if KNOWN == LOGITS:
            own = tl.where(needed, counts.target_rows + draft_row, 0)
            q_at = drafts.base + draft_row.to(tl.int64) * drafts.row_stride + at
            x = tl.load(q_at, mask=needed, other=0.0).to(tl.float32)
            q = _probability(x, at, own, needed, drawn, facts, scale)
            fine = fine & (tl.load(drawn.valid + own, mask=needed, other=1).to(tl.int32) > 0)
        elif KNOWN == PROBS:
            q_at = drafts.base + draft_row.to(tl.int64) * drafts.row_stride + at
            q = clean_probs(tl.load(q_at, mask=needed, other=0.0)).to(tl.float64)
            found = tl.load(counters + tl.num_programs(0) + draft_row, mask=needed, other=SOME)
            fine = fine & (found == SOME)
        else:
            q = tl.full((STEPS,), 1.0, tl.float64)
        u = uniform(key, tl.zeros((STEPS,), tl.int32), ACCEPT, config.FP64)
        passed = needed & (q > 0) & (u < p / tl.where(q > 0, q, 1.0))
        accepted = tl.where(greedy, accepted, passed)
    return Steps(first, number, drafted, needed, accepted, fine)
