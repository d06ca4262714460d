"""Drafts and verifications: the object that ``tokendraw.load("verify")`` returns, and the proof of a verifier."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch

from tokendraw._torch.untraced import untraced
from tokendraw.backends.description.capabilities import DraftKind, Need
from tokendraw.backends.description.operation import Operation
from tokendraw.calls.provider import Provider, method
from tokendraw.calls.rows import PEAK, proof_logits, proof_output, proof_params
from tokendraw.calls.warmup import warm_up
from tokendraw.calls.warmup_batches import Batches
from tokendraw.errors.exceptions import PluginError
from tokendraw.operations.verify import OPERATION, VerifierBackend, VerifyCapabilities, VerifyMode
from tokendraw.operations.verify.calls import draft, verify
from tokendraw.operations.verify.warmup import VerifyWarmup
from tokendraw.output import SamplerOutput, VerifyOutput
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.metadata import SamplingMetadata


class VerifyProvider(Provider):
    """Draws and verifies the drafts of speculative decoding."""

    _operations: ClassVar[tuple[Operation, ...]] = (OPERATION,)

    verify = method(OPERATION, verify, VerifyOutput)
    draft = method(OPERATION, draft, SamplerOutput)

    @untraced
    def warmup(
        self,
        vocab_size: int,
        *,
        max_drafts: int,
        verify_modes: Iterable[VerifyMode] = ("rejection",),
        draft_kinds: Iterable[DraftKind] = ("logits",),
        progress: bool | None = None,
        **options: Any,
    ) -> float:
        """Draw and verify made-up drafts, as :meth:`tokendraw.Sampler.warmup` does.

        :param options: other arguments of that method.
        """
        warmup = VerifyWarmup(Batches(vocab_size, **options), max_drafts, verify_modes, draft_kinds)
        return warm_up(self._negotiator, [(OPERATION, warmup.groups)], progress=progress)


def prove(
    backend: VerifierBackend, capabilities: VerifyCapabilities, device: torch.device, need: Need
) -> None:
    """Verify the drafts of two requests: a certain token, and an impossible token.

    :raises PluginError: the output is not what it has to be.
    """
    logits = proof_logits(4, capabilities, device, need)
    vocab_size = logits.shape[1]
    peak = vocab_size // 2
    logits[:, peak] = PEAK
    probs = torch.zeros(2, vocab_size, device=device, dtype=torch.float32)
    probs[0, peak] = probs[1, 0] = 1.0
    kind = "probs" if "probs" in capabilities.draft_kinds else (*capabilities.draft_kinds, "chosen")[0]
    distributions = {
        "probs": {"draft_probs": probs},
        "logits": {"draft_logits": probs.mul(PEAK).to(logits.dtype)},
    }
    drafts = Drafts.from_lists([[peak], [0]], device=device, **distributions.get(kind, {}))
    metadata = SamplingMetadata.from_params([proof_params(capabilities, need)] * 4, device=device)
    mode = (*capabilities.verify_modes, "rejection")[0]
    output = proof_output(verify(logits, drafts, metadata, mode=mode), backend, need)
    found = (output.token_ids.tolist(), output.num_accepted.tolist())
    if found != ([[peak, peak], [peak, -1]], [1, 0]):
        raise PluginError(
            f"the proof draw needs the tokens {[[peak, peak], [peak, -1]]} of {vocab_size} logits and [1, 0] accepted, "
            f"found {found[0]} and {found[1]}"
        )


CALLS = {"verify": verify, "draft": draft}
PROVIDER = VerifyProvider
