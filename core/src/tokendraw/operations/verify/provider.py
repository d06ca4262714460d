"""Drafts and verifications: the object that ``tokendraw.load("verify")`` returns, and the proof of a verifier."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from tokendraw._torch.untraced import untraced
from tokendraw.backends.description.capabilities import DraftKind, Need
from tokendraw.backends.description.operation import Operation
from tokendraw.calls import proof_rows
from tokendraw.calls.dispatch import dispatch
from tokendraw.calls.drawing import Draft
from tokendraw.calls.provider import Provider
from tokendraw.calls.warmup import Batches, CallGroups, checked_choices, checked_integer, warm_up
from tokendraw.errors.exceptions import PluginError
from tokendraw.operations.verify import (
    DRAFT_KINDS,
    OPERATION,
    VERIFY_MODES,
    VerifierBackend,
    VerifyCapabilities,
    VerifyMode,
)
from tokendraw.operations.verify.calls import Verify
from tokendraw.output import SamplerOutput, VerifyOutput
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.metadata import SamplingMetadata


class VerifyProvider(Provider):
    """Draws and verifies the drafts of speculative decoding."""

    _operations: ClassVar[tuple[Operation, ...]] = (OPERATION,)

    @untraced
    def verify(
        self,
        target_logits: Tensor,
        drafts: Drafts,
        metadata: SamplingMetadata,
        *,
        mode: VerifyMode = "rejection",
    ) -> VerifyOutput:
        """Verify the drafts of B requests: emit the accepted drafts and a token more, distributed as by the target.

        ``rejection`` accepts as many drafts as can be where it is known what they were drawn from. ``coupled`` accepts
        those that plain sampling draws at the same seeds and positions, so that the text is token for token what it
        would be without drafts; it looks at no draft's distribution. ``block`` judges the drafts of a request together
        (Sun et al., 2024, arXiv 2403.10444) and accepts at least as many as ``rejection`` on average. All leave the
        target's distribution as it is; ``block`` does so if the drafts of successive verifications share no noise: draw
        them without seeds, or with seeds of each verification's own.

        Waits for the device only where whoever verifies does (``Capabilities.sync_free``), or where
        ``TOKENDRAW_DEBUG=1`` has the call checked. A verifier that fails is replaced as in
        :meth:`tokendraw.Sampler.sample`, where it was given copies of the logits and of the drafts.

        :param target_logits: [L, V] float32, bfloat16 or float16, any row stride: of each request one row for every
            draft, in order, and its bonus row. Never modified.
        :param drafts: on the same device.
        :param metadata: one entry a request, with the positions of their first rows, or one a row, as
            ``row_index`` makes it; on the same device.
        :raises InvalidInputError: a ValueError, before anything is launched.
        :raises InvalidParameterError: a ValueError: there is no such mode.
        :raises SamplerUnavailableError: nobody here can verify this batch, or the sampler that was asked for verifies
            nothing.
        :raises PluginError: what a verifier returned has the wrong type, shape, dtype or device, or
            ``TOKENDRAW_DEBUG=1`` found another fault.
        """
        call = Verify(target_logits, drafts, metadata, mode=mode)
        output: VerifyOutput = dispatch(self._negotiator, OPERATION, call)
        return output

    @untraced
    def draft(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Draw a draft for each row, from noise unused by verifications at the same seeds and positions.

        It is :meth:`tokendraw.Sampler.sample` otherwise, but that whoever verifies draws.
        """
        output: SamplerOutput = dispatch(self._negotiator, OPERATION, Draft(logits, metadata))
        return output

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
        verified = verified_by(
            Batches(self.device, vocab_size, **options), max_drafts, verify_modes, draft_kinds
        )
        return warm_up(self._negotiator, [(OPERATION, verified)], progress=progress)


def verified_by(
    batches: Batches, max_drafts: int, verify_modes: Iterable[VerifyMode], draft_kinds: Iterable[DraftKind]
) -> CallGroups:
    """Make up drafts and verifications of batches, from arguments of :meth:`tokendraw.Sampler.warmup`."""
    max_drafts = checked_integer("max_drafts", max_drafts, 1)
    modes = checked_choices("verify_modes", verify_modes, "modes", VERIFY_MODES)
    kinds = checked_choices("draft_kinds", draft_kinds, "kinds", DRAFT_KINDS)
    # ``coupled`` reads no distribution.
    ways = [(mode, kind) for mode in modes for kind in (kinds[:1] if mode == "coupled" else kinds)]
    return partial(batches.verified, Verify, max_drafts, ways)


def prove(
    backend: VerifierBackend, capabilities: VerifyCapabilities, device: torch.device, need: Need
) -> None:
    """Verify the drafts of two requests: a certain token, and an impossible token.

    :raises PluginError: the output is not what it has to be.
    """
    logits = proof_rows.zeros(4, capabilities, device, need)
    vocab_size = logits.shape[1]
    peak = vocab_size // 2
    logits[:, peak] = proof_rows.PEAK
    probs = torch.zeros(2, vocab_size, device=device, dtype=torch.float32)
    probs[0, peak] = probs[1, 0] = 1.0
    kind = "probs" if "probs" in capabilities.draft_kinds else (*capabilities.draft_kinds, "chosen")[0]
    distributions = {
        "probs": {"draft_probs": probs},
        "logits": {"draft_logits": probs.mul(proof_rows.PEAK).to(logits.dtype)},
    }
    drafts = Drafts.from_lists([[peak], [0]], device=device, **distributions.get(kind, {}))
    metadata = SamplingMetadata.from_params([proof_rows.params(capabilities, need)] * 4, device=device)
    mode = (*capabilities.verify_modes, "rejection")[0]
    output = proof_rows.output_of(Verify(logits, drafts, metadata, mode=mode), backend, need)
    found = (output.token_ids.tolist(), output.num_accepted.tolist())
    if found != ([[peak, peak], [peak, -1]], [1, 0]):
        raise PluginError(
            f"the proof draw needs the tokens {[[peak, peak], [peak, -1]]} of {vocab_size} logits and [1, 0] accepted, "
            f"found {found[0]} and {found[1]}"
        )


CALLS = {"verify": Verify, "draft": Draft}
PROVIDER = VerifyProvider
