"""Checks samples of a CPU backend whose threads share the rows or the vocabulary of a call."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tokendraw import SamplerOutput, SamplingMetadata
from tokendraw.plugin import LogprobsMode
from tokendraw_testing import reference
from tokendraw_testing.crossing.comparison import Request, named_tokens, requested, stacked
from tokendraw_testing.crossing.factors import Site, kinds
from tokendraw_testing.crossing.table import designed
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.threads import (
    FEW_CALLS,
    LEAST_ROWS,
    MANY_CALLS,
    Differ,
    RepeatedCall,
    require_cpu_threads,
    require_thread_free,
    thread_words,
)
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.logprobs import TOLERANCE
from tokendraw_testing.rows.requests import scalar_filters
from tokendraw_testing.rows.sampling import Sampling
from tokendraw_testing.sample.crossed_calls import judge_call, judge_logprobs

properties = Properties("sample")
Array = NDArray[Any]

_MANY: Final = (LEAST_ROWS + 64, 2100)
"""Rows and vocabulary of a batch whose rows are shared out."""
_WIDE: Final = (6, 131_113)
"""Those of a batch whose vocabulary is."""
_SHOWN: Final = 5


@properties.required("threads")
def threads(subject: Sampling, trial: Trial) -> str:
    """Large calls give one thread's tokens, flags and logprobs with several threads, and of two objects at once."""
    require_cpu_threads(subject, trial)
    rng, offered = trial.generator("rows"), subject.capabilities
    seed_torch(rng)
    limit, modes, looked = offered.max_vocab_size, offered.logprobs_modes, 0
    first, *others = offered.dtypes
    looks: list[tuple[tuple[int, int], str, LogprobsMode | None]] = [
        (_MANY, first, None),
        (_WIDE, first, None),
    ]
    if modes:
        looks += [(_MANY, dtype, modes[i % len(modes)]) for i, dtype in enumerate(offered.dtypes)]
    else:
        looks += [(_MANY, dtype, None) for dtype in others]
    for turn, ((rows, size), dtype, mode) in enumerate(looks):
        batch = _batch(subject, Site(dtype, min(size, limit or size)), rows, rng)
        if mode is not None:
            batch = [request.showing(_SHOWN) for request in batch]
        _require(subject, trial, batch, mode, MANY_CALLS if turn == 0 else FEW_CALLS)
        looked += len(batch)
    return f"{looked} rows in calls of {_MANY[0]} and of {_WIDE[0]} wide ones, {thread_words()}"


def _batch(subject: Sampling, site: Site, rows: int, rng: np.random.Generator) -> list[Request]:
    """Make requests of every kind from designed rows, in random order; no two designs keep the same tokens."""
    made = designed(subject.capabilities, site, rng)
    names = scalar_filters(subject.capabilities)  # of which a call has one value
    made = [row for row in made if all(getattr(row.params, n) == getattr(made[0].params, n) for n in names)]
    offered, copies = kinds(subject.capabilities), -(-rows // len(made))
    batch = [
        request
        for i, row in enumerate(made)
        for request in requested(row, [offered[(i + j) % len(offered)] for j in range(copies)], rng)
    ]
    return [batch[i] for i in rng.permutation(len(batch))[:rows]]


def _require(
    subject: Sampling, trial: Trial, batch: list[Request], mode: LogprobsMode | None, calls: int
) -> None:
    """Judge the call of one thread by the reference, and calls of several threads by the call of one thread."""
    if mode is None:
        judge_call(subject, trial, batch)
    else:
        judge_logprobs(subject, trial, batch[: len(batch) // 4], mode, subject.gumbel_dtype)
    named = named_tokens(batch, subject.gumbel_dtype)
    known = np.array([name is not None and name[1] >= reference.NEAR_TIE for name in named])
    repeated = [_repeated(subject, batch, known), _repeated(subject, batch[::-1], known[::-1])]
    what = f"{len(batch)} rows of {batch[0].row.site}" + (f", {mode}" if mode else "")
    view = subject if mode is None else subject.with_need(logprobs_mode=mode)
    require_thread_free(view, trial, what, repeated, calls)


def _repeated(subject: Sampling, batch: list[Request], known: Array) -> RepeatedCall:
    """Make the call of a batch: [B] bool says which tokens the reference knows beyond a near tie."""
    params = [request.params for request in batch]
    positions = [request.position for request in batch]
    logits = stacked(batch, subject.device)
    metadata = SamplingMetadata.from_params(params, device=subject.device, positions=positions)
    return RepeatedCall(lambda: subject.new_call("sample", logits, metadata), _differ(batch, known))


def _differ(batch: list[Request], known: Array) -> Differ:
    """Make the comparison of two outputs: settled rows are equal, all other rows draw kept tokens."""
    settled = np.array([r.params.temperature == 0 or r.row.is_settled for r in batch])

    def differs(alone: SamplerOutput, found: SamplerOutput) -> str | None:
        first, tokens = alone.token_ids.cpu().numpy(), found.token_ids.cpu().numpy()
        for i in np.flatnonzero(known & (tokens != first))[:1]:
            return f"row {i}, {batch[i]}, needs token {first[i]}, as with one thread, found {tokens[i]}"
        for i in np.flatnonzero(~known & (tokens != first)):
            if batch[i].params.temperature > 0 and not batch[i].row.expected.possible[tokens[i]]:
                return f"row {i}, {batch[i]}, needs a kept token, found {tokens[i]}"
        for i in (alone.valid != found.valid).nonzero().flatten().tolist()[:1]:
            return f"row {i}, {batch[i]}, needs valid {bool(alone.valid[i])}, found {bool(found.valid[i])}"
        wrong = settled & ~_same_logprobs(alone, found, tokens == first)
        for i in np.flatnonzero(wrong)[:1]:
            return f"row {i}, {batch[i]}, needs the logprobs of one thread, found others"
        return None

    return differs


def _same_logprobs(alone: SamplerOutput, found: SamplerOutput, same_token: Array) -> Array:
    """Compare best tokens, values and ranks by row: [B] bool; the drawn token counts where both outputs drew it."""
    one, other = alone.logprobs, found.logprobs
    if one is None or other is None:
        return np.full(len(same_token), one is other)
    values, others = one.logprobs.cpu().numpy(), other.logprobs.cpu().numpy()
    with np.errstate(invalid="ignore"):  # what a filter dropped is -inf in both
        near = np.abs(values - others) <= 2 * TOLERANCE * np.maximum(1.0, np.abs(values))
    same = (one.token_ids == other.token_ids).cpu().numpy() & (near | (values == others))
    if one.ranks is not None and other.ranks is not None:
        same[:, 0] &= (one.ranks == other.ranks).cpu().numpy()
    same[:, 0] |= ~same_token
    return np.asarray(same.all(1))
