"""The object that ``tokendraw.load("verify")`` returns."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tokendraw._torch.untraced import untraced
from tokendraw.calls.drawing import Draft
from tokendraw.calls.provider import Provider
from tokendraw.calls.warmup import warm_up
from tokendraw.operations.verify.calls import Verify
from tokendraw.operations.verify.capabilities import VerifyMode
from tokendraw.operations.verify.output import VerifyOutput
from tokendraw.operations.verify.warmup import VerifyWarmup
from tokendraw.output import SamplerOutput
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.metadata import SamplingMetadata


class VerifyProvider(Provider):
    """Draws and verifies the drafts of speculative decoding."""

    @untraced
    def verify(
        self,
        target_logits: Tensor,
        drafts: Drafts,
        metadata: SamplingMetadata,
        *,
        mode: VerifyMode = "rejection",
    ) -> VerifyOutput:
        """Verify the drafts of B requests, as :meth:`tokendraw.Sampler.verify` does."""
        call = Verify(target_logits, drafts, metadata, mode=mode)
        output: VerifyOutput = self._dispatcher.dispatch_rows(call)
        return output

    @untraced
    def draft(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Draw a draft for each row, as :meth:`tokendraw.Sampler.draft` does."""
        output: SamplerOutput = self._dispatcher.dispatch_rows(Draft(logits, metadata))
        return output

    @untraced
    def warmup(
        self, vocab_size: int, *, max_drafts: int, progress: bool | None = None, **options: Any
    ) -> float:
        """Draw and verify made-up drafts, as :meth:`tokendraw.Sampler.warmup` does.

        :param options: other arguments of that method.
        """
        warmup = VerifyWarmup.of(vocab_size, max_drafts=max_drafts, **options)
        return warm_up([(self._dispatcher, warmup)], progress=progress)
