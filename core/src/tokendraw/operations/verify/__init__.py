"""The operation ``verify``: accepts or rejects the drafts of speculative decoding, and draws a token more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokendraw.backends.description.capabilities import Need
from tokendraw.backends.description.operation import Operation
from tokendraw.backends.resolution import row_checks
from tokendraw.calls import row_limits
from tokendraw.calls.call import Call
from tokendraw.operations.verify.capabilities import VerifyCapabilities, unsupported_kinds


def _prove(backend: Any, capabilities: VerifyCapabilities, device: Any, need: Need) -> None:
    from tokendraw.operations.verify.proof import prove

    prove(backend, capabilities, device, need)


def _calls() -> Mapping[str, type[Call]]:
    from tokendraw.calls.drawing import Draft
    from tokendraw.operations.verify.calls import Verify

    return {"verify": Verify, "draft": Draft}


def _warm_up(vocab_size: int, **arguments: Any) -> Any:
    from tokendraw.operations.verify.warmup import VerifyWarmup

    return VerifyWarmup.of(vocab_size, **arguments)


OPERATION = Operation(
    name="verify",
    summary="which drafts of speculative decoding stand, and one token more for each request",
    capabilities=VerifyCapabilities,
    need=Need,
    methods=("verify", "sample"),
    checks=row_checks.CHECKS,
    default_checks=(row_checks.processed_logprobs,),
    gaps=unsupported_kinds,
    whole_call_gaps=frozenset({row_limits.VOCABULARY}),
    offered=row_limits.offered,
    proof="the proof draw",
    prove=_prove,
    calls=_calls,
    splits_rows=True,  # those of drafts: a verification tells of no rows
    warm_up=_warm_up,
)
