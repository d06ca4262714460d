"""The operation ``plan_paged_kv``: the page metadata of a batch, from lengths known to the device alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokendraw.backends.description.capabilities import HostCapabilities, HostNeed
from tokendraw.backends.description.operation import Operation
from tokendraw.calls.call import Call


def _prove(backend: Any, capabilities: HostCapabilities, device: Any, need: HostNeed) -> None:
    from tokendraw.operations.plan_paged_kv.proof import prove

    prove(backend, device)


def _calls() -> Mapping[str, type[Call]]:
    from tokendraw.operations.plan_paged_kv.calls import PlanPagedKV

    return {"plan": PlanPagedKV}


def _provider() -> type[Any]:
    from tokendraw.operations.plan_paged_kv.provider import PagedKVPlanner

    return PagedKVPlanner


OPERATION = Operation(
    name="plan_paged_kv",
    summary="page metadata of a batch, from lengths on the device, without a wait",
    methods=("plan",),
    prove=_prove,
    calls=_calls,
    provider=_provider,
)
