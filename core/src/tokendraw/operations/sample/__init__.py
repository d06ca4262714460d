"""The operation ``sample``: a token for each row of logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tokendraw.backends.description.capabilities import Capabilities, Need
from tokendraw.backends.description.operation import Operation
from tokendraw.backends.resolution import row_checks
from tokendraw.calls.call import Call
from tokendraw.calls.row_requirements import ROW_REQUIREMENTS, SHARDED


def _prove(backend: Any, capabilities: Capabilities, device: Any, need: Need) -> None:
    from tokendraw.operations.sample.proof import prove

    prove(backend, capabilities, device, need)


def _calls() -> Mapping[str, Callable[..., Call]]:
    from tokendraw.calls.sharded import sample_call

    return {"sample": sample_call}


def _provider() -> type[Any]:
    from tokendraw.operations.sample.provider import SampleProvider

    return SampleProvider


OPERATION = Operation(
    name="sample",
    summary="one token for each row of logits",
    capabilities=Capabilities,
    need=Need,
    methods=("sample",),
    checks=(*row_checks.CHECKS, row_checks.vocab_parallel),
    default_checks=(row_checks.processed_logprobs,),
    requirements=(SHARDED, *ROW_REQUIREMENTS),
    prove=_prove,
    calls=_calls,
    provider=_provider,
    splits_rows=True,
)
