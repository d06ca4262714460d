"""The operation ``verify``: accepts or rejects the drafts of speculative decoding, and draws a token more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokendraw.backends.description.capabilities import Need
from tokendraw.backends.description.operation import Operation
from tokendraw.backends.resolution import row_checks
from tokendraw.calls.call import Call
from tokendraw.operations.verify.capabilities import REQUIREMENTS, VerifyCapabilities


def _prove(backend: Any, capabilities: VerifyCapabilities, device: Any, need: Need) -> None:
    from tokendraw.operations.verify.proof import prove

    prove(backend, capabilities, device, need)


def _calls() -> Mapping[str, type[Call]]:
    from tokendraw.calls.drawing import Draft
    from tokendraw.operations.verify.calls import Verify

    return {"verify": Verify, "draft": Draft}


def _provider() -> type[Any]:
    from tokendraw.operations.verify.provider import VerifyProvider

    return VerifyProvider


OPERATION = Operation(
    name="verify",
    summary="which drafts of speculative decoding stand, and one token more for each request",
    capabilities=VerifyCapabilities,
    need=Need,
    methods=("verify", "sample"),
    checks=row_checks.CHECKS,
    default_checks=(row_checks.processed_logprobs,),
    requirements=REQUIREMENTS,
    prove=_prove,
    calls=_calls,
    provider=_provider,
    splits_rows=True,  # rows of drafts; a verification is not divided
)
