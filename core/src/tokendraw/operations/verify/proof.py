"""Proves a verifier by a verification of known outcome."""

from __future__ import annotations

import torch

from tokendraw.backends.description.capabilities import Need
from tokendraw.calls import proof_rows
from tokendraw.errors.exceptions import PluginError
from tokendraw.operations.verify.capabilities import VerifierBackend, VerifyCapabilities
from tokendraw.operations.verify.output_checks import wrong_verify_output
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.metadata import SamplingMetadata


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
    probs = torch.zeros(2, vocab_size, device=device)
    probs[0, peak] = probs[1, 0] = 1.0
    kind = "probs" if "probs" in capabilities.draft_kinds else (*capabilities.draft_kinds, "chosen")[0]
    distributions = {
        "probs": {"draft_probs": probs},
        "logits": {"draft_logits": probs.mul(proof_rows.PEAK).to(logits.dtype)},
    }
    drafts = Drafts.from_lists([[peak], [0]], device=device, **distributions.get(kind, {}))
    metadata = SamplingMetadata.from_params([proof_rows.params(capabilities, need)] * 4, device=device)
    mode = (*capabilities.verify_modes, "rejection")[0]
    output = backend.verify(logits, drafts, metadata, mode=mode)
    proof_rows.require(wrong_verify_output(output, logits, drafts, None))
    found = (output.token_ids.tolist(), output.num_accepted.tolist())
    if found != ([[peak, peak], [peak, -1]], [1, 0]):
        raise PluginError(
            f"the proof draw needs the tokens {[[peak, peak], [peak, -1]]} of {vocab_size} logits and [1, 0] accepted, "
            f"found {found[0]} and {found[1]}"
        )
