"""Checks verifications of a CPU backend with threads that share the rows of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tokendraw import VerifyOutput
from tokendraw.plugin import DraftKind, VerifyMode
from tokendraw_testing import reference
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
from tokendraw_testing.rows.expectation import expect
from tokendraw_testing.rows.requests import describe, has_counter
from tokendraw_testing.verify.draft_batch import DraftBatch, chains
from tokendraw_testing.verify.subject import VerifySubject

properties = Properties("verify")
Array = NDArray[Any]

_VOCAB_SIZE: Final = 2100
_DISTINCT_REQUESTS: Final = 32
"""Requests that differ; a call holds them several times."""


@properties.required("verify threads")
def threads(subject: VerifySubject, trial: Trial) -> str:
    """Large verifications give one thread's chains and flags with several threads, and in two at once."""
    require_cpu_threads(subject, trial)
    rng, capabilities = trial.generator("requests"), subject.capabilities
    size, num_rows = min(_VOCAB_SIZE, capabilities.max_vocab_size or _VOCAB_SIZE), 0
    looks = zip(subject.outer_ways, subject.cycle_dtypes(), strict=False)
    for turn, ((mode, kind), dtype) in enumerate(looks):
        distinct_batch = DraftBatch.of(subject, rng, _DISTINCT_REQUESTS, size, dtype=dtype)
        copies = -(-LARGE_BATCH_ROWS // sum(map(len, distinct_batch.target)))
        order = rng.permutation(np.tile(np.arange(_DISTINCT_REQUESTS), copies)).tolist()
        is_known = [False] * _DISTINCT_REQUESTS
        if has_counter(capabilities):
            certain = [i for i in range(_DISTINCT_REQUESTS) if distinct_batch.is_certain(subject, i)]
            walks = distinct_batch.walks(mode, kind, subject.gumbel_dtype, certain)
            for i, walk in zip(certain, walks, strict=True):
                is_known[i] = walk.lead >= reference.NEAR_TIE
        calls_by_thread = [
            _repeated_call(subject, distinct_batch, requests, mode, kind, is_known)
            for requests in (order, order[::-1])
        ]
        rows = copies * sum(map(len, distinct_batch.target))
        what = f"{rows} rows of V = {size} in {dtype}, {mode}, {kind}"
        require_thread_free(subject, trial, what, calls_by_thread, OTHER_REPEATS if turn else FIRST_REPEATS)
        num_rows += rows
    return f"{num_rows} rows, {thread_words()}"


def _repeated_call(
    subject: VerifySubject,
    distinct_batch: DraftBatch,
    order: list[int],
    mode: VerifyMode,
    kind: DraftKind,
    is_known: list[bool],
) -> RepeatedCall:
    """Make the call of requests in some order; ``is_known`` marks chains known beyond a near tie."""
    batch = distinct_batch.select(order)
    logits, drafts = batch.logits(subject), batch.drafts(subject, kind)
    metadata = batch.metadata(drafts)
    differs = _make_differ(batch, [is_known[i] for i in order], _kept_lookup(subject, distinct_batch, order))
    return RepeatedCall(lambda: subject.new_call("verify", logits, drafts, metadata, mode=mode), differs)


def _kept_lookup(
    subject: VerifySubject, distinct_batch: DraftBatch, order: list[int]
) -> Callable[[int, int], Array]:
    """Make the lookup of the kept tokens of a row: [V] bool by request and step."""
    rule = subject.capabilities.tie_rule
    kept = [
        [expect(x, params, rule).possible for x in rows]
        for rows, params in zip(distinct_batch.target, distinct_batch.params, strict=True)
    ]
    return lambda i, step: kept[order[i]][step]


def _make_differ(batch: DraftBatch, is_known: list[bool], kept: Callable[[int, int], Array]) -> Differ:
    """Make the comparison of two outputs: settled chains are equal, all other chains hold kept tokens."""

    def differs(reference_output: VerifyOutput, output: VerifyOutput) -> str | None:
        for i, (expected, tokens) in enumerate(zip(chains(reference_output), chains(output), strict=True)):
            what = f"request {i}, {describe(batch.params[i])},"
            if is_known[i] and tokens != expected:
                return f"{what} needs the chain {expected}, as with one thread, found {tokens}"
            misses = [token for step, token in enumerate(tokens) if not kept(i, step)[token]]
            if misses:
                return f"{what} needs kept tokens, found {misses[0]}"
        for i in (reference_output.valid != output.valid).nonzero().flatten().tolist()[:1]:
            return f"request {i} needs valid {bool(reference_output.valid[i])}, found {bool(output.valid[i])}"
        return None

    return differs
