"""The operation ``process_logits``: penalties, biases and masks of requests, written into their logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokendraw.backends.description.operation import Operation
from tokendraw.backends.resolution import row_checks
from tokendraw.calls.call import Call
from tokendraw.calls.row_limits import VOCABULARY
from tokendraw.operations.process_logits.capabilities import (
    ProcessCapabilities,
    ProcessNeed,
    unsupported_kinds,
)


def _prove(backend: Any, capabilities: ProcessCapabilities, device: Any, need: ProcessNeed) -> None:
    from tokendraw.operations.process_logits.proof import prove

    prove(backend, capabilities, device, need)


def _calls() -> Mapping[str, type[Call]]:
    from tokendraw.operations.process_logits.calls import Process

    return {"process": Process}


def _warm_up(vocab_size: int, **arguments: Any) -> Any:
    from tokendraw.operations.process_logits.warmup import ProcessWarmup

    return ProcessWarmup.of(vocab_size, **arguments)


OPERATION = Operation(
    name="process_logits",
    summary="penalties, biases and masks of requests, written into the logits before sampling",
    capabilities=ProcessCapabilities,
    need=ProcessNeed,
    methods=("process",),
    checks=(row_checks.dtype, row_checks.vocab_size),
    gaps=unsupported_kinds,
    whole_call_gaps=frozenset({VOCABULARY}),
    prove=_prove,
    calls=_calls,
    warm_up=_warm_up,
)
