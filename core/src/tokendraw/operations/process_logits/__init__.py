"""The operation ``process_logits``: penalties, biases and masks of requests, written into their logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokendraw.backends.description.operation import Operation
from tokendraw.backends.resolution import row_checks
from tokendraw.calls.call import Call
from tokendraw.operations.process_logits.capabilities import REQUIREMENTS, ProcessCapabilities, ProcessNeed


def _prove(backend: Any, capabilities: ProcessCapabilities, device: Any, need: ProcessNeed) -> None:
    from tokendraw.operations.process_logits.proof import prove

    prove(backend, capabilities, device, need)


def _calls() -> Mapping[str, type[Call]]:
    from tokendraw.operations.process_logits.calls import Process

    return {"process": Process}


def _provider() -> type[Any]:
    from tokendraw.operations.process_logits.provider import LogitsProcessor

    return LogitsProcessor


OPERATION = Operation(
    name="process_logits",
    summary="penalties, biases and masks of requests, written into the logits before sampling",
    capabilities=ProcessCapabilities,
    need=ProcessNeed,
    methods=("process",),
    checks=(row_checks.dtype, row_checks.vocab_size),
    requirements=REQUIREMENTS,
    prove=_prove,
    calls=_calls,
    provider=_provider,
)
