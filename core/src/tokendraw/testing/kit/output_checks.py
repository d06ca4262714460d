"""The form of what a sampler returns, held against the contract by the checks that every call goes through."""

from __future__ import annotations

import torch

from tokendraw._exchange.output import SamplerOutput, VerifyOutput
from tokendraw._exchange.output_checks import wrong_chains, wrong_output, wrong_tokens, wrong_verify_output
from tokendraw.operations.verify.drafts import Drafts
from tokendraw.testing.kit.trial import Violation


def check_form(output: SamplerOutput, logits: torch.Tensor) -> None:
    """Hold the form of an output against the contract.

    :raises Violation: names the field, what it needs and what was found.
    """
    _require(wrong_output(output, logits, None) or wrong_tokens(output, logits))


def check_chains(output: VerifyOutput, target_logits: torch.Tensor, drafts: Drafts) -> None:
    """Hold the form of a verification against the contract: accepted drafts, one token more, padding.

    :raises Violation: names the field, what it needs and what was found.
    """
    _require(
        wrong_verify_output(output, target_logits, drafts, None)
        or wrong_chains(output, target_logits, drafts)
    )


def _require(reason: str | None) -> None:
    if reason is not None:
        raise Violation(f"a call needs to return {reason}")
