"""Checks verifications of a CPU backend whose threads share the rows of a call."""

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
from tokendraw_testing.rows.expected import expect
from tokendraw_testing.rows.requests import described, has_counter
from tokendraw_testing.verify.drafting import Batch, by_turns, chains, first_and_last_way
from tokendraw_testing.verify.verifying import Verifying

properties = Properties("verify")
Array = NDArray[Any]

_SIZE: Final = 2100
_DIFFERENT: Final = 32
"""Requests that differ; a call holds them several times."""


@properties.required("verify threads")
def threads(subject: Verifying, trial: Trial) -> str:
    """Large verifications give one thread's chains and flags with several threads, and of two objects at once."""
    require_cpu_threads(subject, trial)
    rng, offered = trial.generator("requests"), subject.capabilities
    size, looked = min(_SIZE, offered.max_vocab_size or _SIZE), 0
    looks = zip(first_and_last_way(offered), by_turns(subject), strict=False)
    for turn, ((mode, kind), dtype) in enumerate(looks):
        own = Batch.of(subject, rng, _DIFFERENT, size, dtype=dtype)
        copies = -(-LEAST_ROWS // sum(map(len, own.target)))
        order = rng.permutation(np.tile(np.arange(_DIFFERENT), copies)).tolist()
        known = [False] * _DIFFERENT
        if has_counter(offered):
            certain = [i for i in range(_DIFFERENT) if own.is_certain(subject, i)]
            walks = own.walks(mode, kind, subject.gumbel_dtype, certain)
            for i, walk in zip(certain, walks, strict=True):
                known[i] = walk.lead >= reference.NEAR_TIE
        repeated = [_repeated(subject, own, requests, mode, kind, known) for requests in (order, order[::-1])]
        rows = copies * sum(map(len, own.target))
        what = f"{rows} rows of V = {size} in {dtype}, {mode}, {kind}"
        require_thread_free(subject, trial, what, repeated, FEW_CALLS if turn else MANY_CALLS)
        looked += rows
    return f"{looked} rows, {thread_words()}"


def _repeated(
    subject: Verifying, own: Batch, order: list[int], mode: VerifyMode, kind: DraftKind, known: list[bool]
) -> RepeatedCall:
    """Make the call of requests in this order; ``known`` says which chains the reference knows beyond a near tie."""
    batch = own.picked(order)
    logits, drafts = batch.logits(subject), batch.drafts(subject, kind)
    metadata = batch.metadata(drafts)
    differs = _differ(batch, [known[i] for i in order], _kept(subject, own, order))
    return RepeatedCall(lambda: subject.new_call("verify", logits, drafts, metadata, mode=mode), differs)


def _kept(subject: Verifying, own: Batch, order: list[int]) -> Callable[[int, int], Array]:
    """Make the lookup of the kept tokens of a row: [V] bool by request and step."""
    rule = subject.capabilities.tie_rule
    kept = [
        [expect(x, params, rule).possible for x in rows]
        for rows, params in zip(own.target, own.params, strict=True)
    ]
    return lambda i, step: kept[order[i]][step]


def _differ(batch: Batch, known: list[bool], kept: Callable[[int, int], Array]) -> Differ:
    """Make the comparison of two outputs: settled chains are equal, all other chains hold kept tokens."""

    def differs(alone: VerifyOutput, found: VerifyOutput) -> str | None:
        for i, (needed, tokens) in enumerate(zip(chains(alone), chains(found), strict=True)):
            what = f"request {i}, {described(batch.params[i])},"
            if known[i] and tokens != needed:
                return f"{what} needs the chain {needed}, as with one thread, found {tokens}"
            wrong = [token for step, token in enumerate(tokens) if not kept(i, step)[token]]
            if wrong:
                return f"{what} needs kept tokens, found {wrong[0]}"
        for i in (alone.valid != found.valid).nonzero().flatten().tolist()[:1]:
            return f"request {i} needs valid {bool(alone.valid[i])}, found {bool(found.valid[i])}"
        return None

    return differs
