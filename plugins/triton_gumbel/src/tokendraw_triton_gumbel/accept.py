"""The last launch of a verification: which drafts are accepted, and the token that follows them.

By what the draw has left of every row: its token, and where drafts are judged by probabilities its largest logit, its
threshold and its masses. Reads some numbers and two logits a draft, then what :mod:`.residual` says of the one row that
a token is recovered from. Writes 8 bytes a token, and 5 a request.

Some programs a request, of which each finds the same drafts accepted. Where a token is recovered from a row that keeps
many, they share the work; in all other cases the first of them does what is left to do.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.noise import ACCEPT, uniform
from tokendraw_triton_gumbel.order import weigh
from tokendraw_triton_gumbel.request import noise_of, slot_of
from tokendraw_triton_gumbel.residual import (
    CHOSEN,
    LOGITS,
    PROBS,
    cleaned,
    facts_of,
    recover_few,
    recover_many,
    recover_some,
    weigh_residual,
)
from tokendraw_triton_gumbel.tiles import LOG2_E, inverse_temperature

COUPLED = tl.constexpr(3)
"""In place of what is known of q: drafts are compared with the target's own tokens, and q is of no interest."""
AT_ONCE = 4096
"""Probabilities that a program of :func:`check_probs` looks at."""
_SOME = tl.constexpr(1)
_BAD = tl.constexpr(2)


@triton.jit(do_not_specialize=["requests"])
def check_probs(probs, row_stride, vocab_size, counters, requests, AT_ONCE: tl.constexpr):
    """One program: some probabilities of one row. Grid (rows, stretches of ``AT_ONCE``).

    :param probs: [rows, vocab_size].
    :param counters: behind the first ``requests``, [rows] int32: that one is positive, or that one is no finite number
        from 0 upwards, is added.
    """
    row = tl.program_id(0)
    at = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    x = tl.load(probs + row.to(tl.int64) * row_stride + at, mask=at < vocab_size, other=0.0)
    fine = (x >= 0) & (x < float("inf"))
    found = tl.where(fine, tl.where(x > 0, _SOME, 0), _BAD).to(tl.int32)
    tl.atomic_or(counters + requests + row, tl.reduce(found, 0, _either), sem="relaxed")


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def _weight(x, ids, top, floor, scale):
    """``exp(y)`` of what is kept, else 0: of +inf 1, and where nothing is above -inf, 1 of token 0."""
    weight = tl.where(x >= floor, weigh(x, top, scale), 0.0)
    extreme = tl.where(tl.where(top > 0, x == float("inf"), ids == 0), 1.0, 0.0)
    return tl.where(tl.abs(top) < float("inf"), weight, extreme)


@triton.jit
def _probability(x, ids, row, there, tops, masses, floors, log_kept, scale):
    """float64 of the tokens ``ids`` with logits x, each of a row of its own."""
    top = tl.load(tops + row, mask=there, other=0.0)
    floor = tl.load(floors + row, mask=there, other=0.0)
    mass = tl.load(masses + row, mask=there, other=1.0).to(tl.float64)
    mass *= tl.exp(tl.load(log_kept + row, mask=there, other=0.0).to(tl.float64))
    return _weight(x, ids, top, floor, scale).to(tl.float64) / mass


@triton.jit(do_not_specialize=["last_id", "width", "id_count", "tiles", "flags", "split"])
def accept_drafts(
    logits,
    row_stride,
    vocab_size,
    last_id,
    drafts,
    draft_stride,
    draft_token_ids,
    id_count,
    cu_num_logits,
    width,
    temperature,
    row_index,
    seeds,
    seeded,
    fresh,
    positions,
    flags,
    split,
    tiles,
    tokens,
    valid,
    floors,
    log_kept,
    tops,
    masses,
    candidates,
    maxima,
    values,
    ids,
    counters,
    weights,
    token_ids,
    num_accepted,
    all_valid,
    shown,
    KNOWN: tl.constexpr,
    PADDED: tl.constexpr,
    STEPS: tl.constexpr,
    FP64: tl.constexpr,
    TILES: tl.constexpr,
    LESS: tl.constexpr,
    MOST: tl.constexpr,
    FILTERED: tl.constexpr,
    WARPS: tl.constexpr,
    VECTOR: tl.constexpr,
    PTX: tl.constexpr,
):
    """One program: one request, or a part of it. Grid (requests, parts).

    :param last_id: the largest id; the logits may be padded behind it.
    :param drafts: logits or probabilities of the drafts' rows, or None.
    :param draft_token_ids: [``id_count``] integer, or [requests, ``id_count``] if ``PADDED``.
    :param tokens: [rows] int64, as the draw left them, like ``valid`` and what follows up to ``ids``: the first ``split``
        rows are the target's, the others those of ``drafts`` if it is logits.
    :param counters: [requests] int32 zeros, and behind them what :func:`check_probs` has found.
    :param weights: [requests, 2, tiles] float32 of scratch.
    :param token_ids: [requests, width + 1] int64, ``num_accepted`` [requests] int32, ``all_valid`` [requests] bool.
    :param shown: [split] int64: the token of each row that makes one; or None.
    :param KNOWN: what is known of q; see :mod:`.residual`. Or :data:`COUPLED`.
    :param STEPS: a power of two above ``width``.
    """
    request = tl.program_id(0)
    part = tl.program_id(1)
    first = tl.load(cu_num_logits + request).to(tl.int32)
    number = tl.load(cu_num_logits + request + 1).to(tl.int32) - first - 1
    number = tl.maximum(tl.minimum(number, width), 0)
    step = tl.arange(0, STEPS)
    there = step < number
    row = first + tl.minimum(step, number)
    beside = first - request + step
    if PADDED:
        place, readable = request.to(tl.int64) * id_count + step, there & (step < id_count)
    else:
        place, readable = beside.to(tl.int64), there & (beside < id_count)
    drafted = tl.load(draft_token_ids + place, mask=readable, other=-1).to(tl.int64)
    token = tl.load(tokens + row)
    fine = tl.load(valid + row).to(tl.int32) > 0
    accepted = drafted == token
    needed = there & (drafted >= 0) & (drafted <= last_id)
    if KNOWN != COUPLED:
        slot = slot_of(row, flags, row_index)
        inverse, greedy = inverse_temperature(temperature, slot)
        scale = inverse * LOG2_E
        seed, position = noise_of(row, slot, flags, seeds, seeded, fresh, positions)
        needed = needed & (greedy == 0)
        at = tl.where(needed, drafted, 0)
        x = tl.load(logits + row.to(tl.int64) * row_stride + at, mask=needed, other=0.0).to(tl.float32)
        p = _probability(x, at, row, needed, tops, masses, floors, log_kept, scale)
        if KNOWN == LOGITS:
            own = tl.where(needed, split + beside, 0)
            q_at = drafts + beside.to(tl.int64) * draft_stride + at
            x = tl.load(q_at, mask=needed, other=0.0).to(tl.float32)
            q = _probability(x, at, own, needed, tops, masses, floors, log_kept, scale)
            fine = fine & (tl.load(valid + own, mask=needed, other=1).to(tl.int32) > 0)
        elif KNOWN == PROBS:
            q_at = drafts + beside.to(tl.int64) * draft_stride + at
            q = cleaned(tl.load(q_at, mask=needed, other=0.0)).to(tl.float64)
            fine = fine & (tl.load(counters + tl.num_programs(0) + beside, mask=needed, other=_SOME) == _SOME)
        else:
            q = tl.full((STEPS,), 1.0, tl.float64)
        u = uniform(seed, position, tl.zeros((STEPS,), tl.int32), ACCEPT, FP64)
        passed = needed & (q > 0) & (u < p / tl.where(q > 0, q, 1.0))
        accepted = tl.where(greedy, accepted, passed)
    count = tl.minimum(tl.min(tl.where(accepted & there, STEPS, step), 0), number)
    emits = first + count
    out = token_ids + request.to(tl.int64) * (width + 1)
    if part == 0:
        kept = tl.where(step < count, drafted, -1)
        tl.store(out + step, kept, mask=(step <= width) & (step != count))
        tl.store(num_accepted + request, count)
        tl.store(all_valid + request, tl.min((fine | (step > count)).to(tl.int32), 0) > 0)
        if shown is not None:
            tl.store(shown + row, kept, mask=step < count)
    is_plain = tl.full((), 1, tl.int32)
    if KNOWN != COUPLED:
        own_slot = slot_of(emits, flags, row_index)
        own_inverse, is_greedy = inverse_temperature(temperature, own_slot)
        is_plain = tl.maximum((count == number).to(tl.int32), is_greedy.to(tl.int32))
    if is_plain > 0:
        if part == 0:
            _emit(tl.load(tokens + emits), out + count, shown, emits)
    elif KNOWN != COUPLED:
        own_seed, own_position = noise_of(emits, own_slot, flags, seeds, seeded, fresh, positions)
        own_scale = own_inverse * LOG2_E
        here = step == count
        drawn = tl.sum((here & needed).to(tl.int32), 0)
        rejected = tl.sum(tl.where(here & needed, drafted, 0), 0).to(tl.int32)
        top, floor, mass = facts_of(emits, tops, masses, floors, log_kept)
        target = logits + emits.to(tl.int64) * row_stride
        q_top, q_floor, q_mass = top, floor, mass
        draft = target
        if KNOWN != CHOSEN:
            q_row = emits - request
            draft = drafts + q_row.to(tl.int64) * draft_stride
            if KNOWN == LOGITS:
                q_top, q_floor, q_mass = facts_of(split + q_row, tops, masses, floors, log_kept)
        found = tl.full((), -1, tl.int32)
        if FILTERED:
            found = tl.load(candidates + emits)
            if (found >= 0).to(tl.int32) * (part == 0).to(tl.int32) > 0:
                listed = emits.to(tl.int64) * MOST
                if found <= LESS:
                    recovered = recover_few(
                        values + listed,
                        ids + listed,
                        found,
                        draft,
                        rejected,
                        drawn,
                        top,
                        floor,
                        mass,
                        q_top,
                        q_floor,
                        q_mass,
                        own_scale,
                        own_seed,
                        own_position,
                        FP64,
                        LESS,
                        KNOWN,
                        PTX,
                    )
                else:
                    recovered = recover_some(
                        values + listed,
                        ids + listed,
                        found,
                        draft,
                        rejected,
                        drawn,
                        top,
                        floor,
                        mass,
                        q_top,
                        q_floor,
                        q_mass,
                        own_scale,
                        own_seed,
                        own_position,
                        FP64,
                        MOST,
                        KNOWN,
                        PTX,
                    )
                _emit(recovered.to(tl.int64), out + count, shown, emits)
        if found < 0:
            own_weights = weights + request.to(tl.int64) * 2 * tiles
            groups = (tiles + WARPS - 1) // WARPS
            span = (groups + tl.num_programs(1) - 1) // tl.num_programs(1)
            weigh_residual(
                target,
                draft,
                vocab_size,
                maxima + emits.to(tl.int64) * tiles,
                tiles,
                part * span,
                tl.minimum((part + 1) * span, groups),
                rejected,
                drawn,
                top,
                floor,
                mass,
                q_top,
                q_floor,
                q_mass,
                own_scale,
                own_weights,
                FILTERED,
                WARPS,
                VECTOR,
                KNOWN,
                PTX,
            )
            tl.debug_barrier()
            if tl.atomic_add(counters + request, 1, sem="acq_rel") == tl.num_programs(1) - 1:
                recovered = recover_many(
                    target,
                    draft,
                    vocab_size,
                    tiles,
                    rejected,
                    drawn,
                    top,
                    floor,
                    mass,
                    q_top,
                    q_floor,
                    q_mass,
                    own_scale,
                    own_seed,
                    own_position,
                    own_weights,
                    FP64,
                    TILES,
                    KNOWN,
                    PTX,
                )
                _emit(recovered.to(tl.int64), out + count, shown, emits)


@triton.jit
def _emit(token, out, shown, row):
    tl.store(out, token)
    if shown is not None:
        tl.store(shown + row, token)
