"""The protocol of verifiers, built by plugins for the operation ``verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tokendraw.operations.verify.capabilities import VerifyMode

if TYPE_CHECKING:
    import torch

    from tokendraw.operations.verify.output import VerifyOutput
    from tokendraw.output import SamplerOutput
    from tokendraw.parameters.drafts import Drafts
    from tokendraw.parameters.metadata import SamplingMetadata


@runtime_checkable
class VerifierBackend(Protocol):
    """The verifier returned by ``tokendraw_build`` for ``verify``; the same object may serve ``sample`` too."""

    def verify(
        self,
        target_logits: torch.Tensor,
        drafts: Drafts,
        metadata: SamplingMetadata,
        *,
        mode: VerifyMode = "rejection",
    ) -> VerifyOutput:
        """Verify the drafts of a batch, as :class:`tokendraw.Sampler` describes.

        :param target_logits: [L, V] float32, bfloat16 or float16 on the device it was built for, any row stride. Not
            to be modified. The core has checked that drafts and metadata fit them.
        :param metadata: the parameters of the L rows.
        """
        ...

    def sample(
        self, logits: torch.Tensor, metadata: SamplingMetadata, *, draft: bool = False
    ) -> SamplerOutput:
        """Draw a token for each row, as :class:`tokendraw.plugin.SamplerBackend` does.

        :param draft: draw with noise that no verification at the same seeds and positions uses: the streams
            ``DRAFT_TOKEN`` and ``DRAFT_TILE`` of :mod:`tokendraw.philox` where rows have seeds.
        """
        ...
