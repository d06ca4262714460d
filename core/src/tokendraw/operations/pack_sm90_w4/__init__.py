"""The operation ``pack_sm90_w4``: 4-bit weights and their scales as FlashInfer's SM90 mixed-input GEMM reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokendraw.backends.description.capabilities import HostNeed
from tokendraw.backends.description.operation import Operation
from tokendraw.calls.call import Call
from tokendraw.operations.pack_sm90_w4.capabilities import REQUIREMENTS, Sm90W4Capabilities


def _prove(backend: Any, capabilities: Sm90W4Capabilities, device: Any, need: HostNeed) -> None:
    from tokendraw.operations.pack_sm90_w4.proof import prove

    prove(backend, capabilities, device)


def _calls() -> Mapping[str, type[Call]]:
    from tokendraw.operations.pack_sm90_w4 import calls

    return {
        "pack_weights": calls.PackWeights,
        "pack_scales": calls.PackScales,
        "unpack_weights": calls.UnpackWeights,
        "unpack_scales": calls.UnpackScales,
    }


def _provider() -> type[Any]:
    from tokendraw.operations.pack_sm90_w4.provider import Sm90W4Packer

    return Sm90W4Packer


OPERATION = Operation(
    name="pack_sm90_w4",
    summary="4-bit weights and scales in the layouts of FlashInfer's SM90 mixed-input GEMM",
    capabilities=Sm90W4Capabilities,
    methods=("pack_weights", "pack_scales"),
    requirements=REQUIREMENTS,
    prove=_prove,
    calls=_calls,
    provider=_provider,
)
