"""Checks samples of a CPU backend with threads that share the rows or the vocabulary of a call."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplerOutput, SamplingMetadata
from tokendraw.plugin import LogprobsMode
from tokendraw_testing import reference
from tokendraw_testing.crossing.comparison import CrossedRequest, named_tokens, requests_in_turn, stack_logits
from tokendraw_testing.crossing.factors import Site, kinds
from tokendraw_testing.crossing.table import rows_of_designs
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.threads import (
    FIRST_REPEATS,
    LARGE_BATCH_ROWS,
    OTHER_REPEATS,
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
from tokendraw_testing.rows.subjects import SampleSubject
from tokendraw_testing.sample.crossed_calls import judge_call, judge_logprobs

properties = Properties("sample")
Array = NDArray[Any]

_MANY_ROWS_SHAPE: Final = (LARGE_BATCH_ROWS + 64, 2100)
"""Rows and vocabulary of a batch whose rows are shared out."""
_WIDE_SHAPE: Final = (6, 131_113)
"""Rows and vocabulary of a batch whose vocabulary is shared out."""
_NUM_BEST: Final = 5


@properties.required("threads")
def threads(subject: SampleSubject, trial: Trial) -> str:
    """Large calls give one thread's tokens, flags and logprobs with several threads, and in two at once."""
    require_cpu_threads(subject, trial)
    rng, capabilities = trial.generator("rows"), subject.capabilities
    seed_torch(rng)
    limit, modes, num_rows = capabilities.max_vocab_size, capabilities.logprobs_modes, 0
    first, *other_dtypes = capabilities.dtypes
    looks: list[tuple[tuple[int, int], str, LogprobsMode | None]] = [
        (_MANY_ROWS_SHAPE, first, None),
        (_WIDE_SHAPE, first, None),
    ]
    if modes:
        looks += [
            (_MANY_ROWS_SHAPE, dtype, modes[i % len(modes)]) for i, dtype in enumerate(capabilities.dtypes)
        ]
    else:
        looks += [(_MANY_ROWS_SHAPE, dtype, None) for dtype in other_dtypes]
    for turn, ((rows, size), dtype, mode) in enumerate(looks):
        batch = _batch(subject, Site(dtype, min(size, limit or size)), rows, rng)
        if mode is not None:
            batch = [request.with_logprobs(_NUM_BEST) for request in batch]
        _require_same(subject, trial, batch, mode, FIRST_REPEATS if turn == 0 else OTHER_REPEATS)
        num_rows += len(batch)
    return f"{num_rows} rows in calls of {_MANY_ROWS_SHAPE[0]} and of {_WIDE_SHAPE[0]} wide ones, {thread_words()}"


def _batch(subject: SampleSubject, site: Site, rows: int, rng: Generator) -> list[CrossedRequest]:
    """Make requests of every kind from designed rows, in random order; no two designs keep the same tokens."""
    designs = rows_of_designs(subject.capabilities, site, rng)
    names = scalar_filters(subject.capabilities)  # of which a call has one value
    designs = [
        row for row in designs if all(getattr(row.params, n) == getattr(designs[0].params, n) for n in names)
    ]
    row_kinds, copies = kinds(subject.capabilities), -(-rows // len(designs))
    batch = requests_in_turn(designs, row_kinds, copies, rng)
    return [batch[i] for i in rng.permutation(len(batch))[:rows]]


def _require_same(
    subject: SampleSubject, trial: Trial, batch: list[CrossedRequest], mode: LogprobsMode | None, calls: int
) -> None:
    """Judge the call of one thread by the reference, and calls of several threads by the call of one thread."""
    if mode is None:
        judge_call(subject, trial, batch)
    else:
        judge_logprobs(subject, trial, batch[: len(batch) // 4], mode, subject.gumbel_dtype)
    tokens = named_tokens(batch, subject.gumbel_dtype)
    is_known = np.array([name is not None and name[1] >= reference.NEAR_TIE for name in tokens])
    calls_by_thread = [
        _repeated_call(subject, batch, is_known),
        _repeated_call(subject, batch[::-1], is_known[::-1]),
    ]
    what = f"{len(batch)} rows of {batch[0].row.site}" + (f", {mode}" if mode else "")
    view = subject if mode is None else subject.with_need(logprobs_mode=mode)
    require_thread_free(view, trial, what, calls_by_thread, calls)


def _repeated_call(subject: SampleSubject, batch: list[CrossedRequest], is_known: Array) -> RepeatedCall:
    """Make the call of a batch; ``is_known`` [B] marks the tokens known to the reference beyond a near tie."""
    params = [request.params for request in batch]
    positions = [request.position for request in batch]
    logits = stack_logits(batch, subject.device)
    metadata = SamplingMetadata.from_params(params, device=subject.device, positions=positions)
    return RepeatedCall(lambda: subject.new_call("sample", logits, metadata), _make_differ(batch, is_known))


def _make_differ(batch: list[CrossedRequest], is_known: Array) -> Differ:
    """Make the comparison of two outputs: settled rows are equal, all other rows draw kept tokens."""
    is_settled = np.array([r.params.temperature == 0 or r.row.is_settled for r in batch])

    def differs(single_output: SamplerOutput, output: SamplerOutput) -> str | None:
        first, tokens = single_output.token_ids.cpu().numpy(), output.token_ids.cpu().numpy()
        for i in np.flatnonzero(is_known & (tokens != first))[:1]:
            return f"row {i}, {batch[i]}, needs token {first[i]}, as with one thread, found {tokens[i]}"
        for i in np.flatnonzero(~is_known & (tokens != first)):
            if batch[i].params.temperature > 0 and not batch[i].row.expected.possible[tokens[i]]:
                return f"row {i}, {batch[i]}, needs a kept token, found {tokens[i]}"
        for i in (single_output.valid != output.valid).nonzero().flatten().tolist()[:1]:
            return f"row {i}, {batch[i]}, needs valid {bool(single_output.valid[i])}, found {bool(output.valid[i])}"
        is_wrong = is_settled & ~_same_logprobs(single_output, output, tokens == first)
        for i in np.flatnonzero(is_wrong)[:1]:
            return f"row {i}, {batch[i]}, needs the logprobs of one thread, found others"
        return None

    return differs


def _same_logprobs(single_output: SamplerOutput, output: SamplerOutput, same_token: Array) -> Array:
    """Compare best tokens, values and ranks by row: [B] bool; different drawn tokens do not count."""
    needed_logprobs, output_logprobs = single_output.logprobs, output.logprobs
    if needed_logprobs is None or output_logprobs is None:
        return np.full(len(same_token), needed_logprobs is output_logprobs)
    values, output_values = needed_logprobs.logprobs.cpu().numpy(), output_logprobs.logprobs.cpu().numpy()
    with np.errstate(invalid="ignore"):  # what a filter dropped is -inf in both
        is_near = np.abs(values - output_values) <= 2 * TOLERANCE * np.maximum(1.0, np.abs(values))
    is_same = (needed_logprobs.token_ids == output_logprobs.token_ids).cpu().numpy() & (
        is_near | (values == output_values)
    )
    if needed_logprobs.ranks is not None and output_logprobs.ranks is not None:
        is_same[:, 0] &= (needed_logprobs.ranks == output_logprobs.ranks).cpu().numpy()
    is_same[:, 0] |= ~same_token
    return np.asarray(is_same.all(1))
