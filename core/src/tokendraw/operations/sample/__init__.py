"""The operation ``sample``: a token for each row of logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tokendraw.backends.description.capabilities import Capabilities, Need
from tokendraw.backends.description.operation import Operation
from tokendraw.backends.resolution import row_checks
from tokendraw.calls import row_limits
from tokendraw.calls.call import Call


def _prove(backend: Any, capabilities: Capabilities, device: Any, need: Need) -> None:
    from tokendraw.operations.sample.proof import prove

    prove(backend, capabilities, device, need)


def _calls() -> Mapping[str, Callable[..., Call]]:
    from tokendraw.calls.sharded import sample_call

    return {"sample": sample_call}


def _warm_up(vocab_size: int, **arguments: Any) -> Any:
    from tokendraw.operations.sample.warmup import SampleWarmup

    return SampleWarmup.of(vocab_size, **arguments)


OPERATION = Operation(
    name="sample",
    summary="one token for each row of logits",
    capabilities=Capabilities,
    need=Need,
    methods=("sample",),
    checks=(*row_checks.CHECKS, row_checks.vocab_parallel),
    default_checks=(row_checks.processed_logprobs,),
    gaps=row_limits.beyond,
    whole_call_gaps=frozenset({row_limits.VOCABULARY}),
    offered=row_limits.offered,
    proof="the proof draw",
    prove=_prove,
    calls=_calls,
    warm_up=_warm_up,
    splits_rows=True,
)
