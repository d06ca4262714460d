"""Checks the form of a verification's output, and the consistency of its tokens with the drafts.

Each function says what was needed and what was found, or returns None. Those of forms read no values; the other one
waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw.calls.output_checks import first_of, misfit, wrong_logprobs
from tokendraw.operations.verify.output import VerifyOutput
from tokendraw.output import PAD_TOKEN_ID
from tokendraw.parameters.drafts import Drafts


def wrong_verify_output(
    output: object, target_logits: Tensor, drafts: Drafts, width: int | None, *, ranks: bool = True
) -> str | None:
    """Compare the output of ``verify`` with the form of :class:`tokendraw.VerifyOutput`.

    :param width: how many best tokens the batch asked for, as ``BatchFacts.logprobs_width`` says; None: no logprobs.
    :param ranks: whether their ranks are needed too.
    """
    shape = (drafts.num_requests, drafts.max_drafts + 1)
    return wrong_verify_form(output, shape, target_logits.device, width, ranks=ranks)


def wrong_verify_form(
    output: object, shape: tuple[int, int], device: torch.device, width: int | None, *, ranks: bool
) -> str | None:
    """Compare the output of ``verify`` with the form of :class:`tokendraw.VerifyOutput`.

    :param shape: [B, K + 1].
    :param width: as for :func:`wrong_verify_output`.
    """
    if not isinstance(output, VerifyOutput):
        return f"a VerifyOutput, found {type(output).__name__}"
    requests = shape[:1]
    reason = (
        misfit("token_ids", output.token_ids, shape, torch.int64, device)
        or misfit("num_accepted", output.num_accepted, requests, torch.int32, device)
        or misfit("valid", output.valid, requests, torch.bool, device)
    )
    if reason is not None or width is None:
        return reason
    return wrong_logprobs(output.logprobs, shape, width, device, ranks=ranks) or misfit(
        "log_kept_mass", output.log_kept_mass, shape, torch.float32, device
    )


def wrong_chains(output: VerifyOutput, target_logits: Tensor, drafts: Drafts) -> str | None:
    """Compare the tokens of a verification, of the right form, with the drafts."""
    requests, width, vocab_size = drafts.num_requests, drafts.max_drafts + 1, target_logits.shape[1]
    tokens, accepted = output.token_ids.cpu(), output.num_accepted.cpu()
    draft_ids, counts = _by_step(drafts)
    for (b,) in first_of((accepted < 0) | (accepted > counts)):
        return (
            f"num_accepted in [0, {int(counts[b])}], found {int(accepted[b])} for request {b} of {requests}"
        )
    steps, num_accepted = torch.arange(width), accepted.unsqueeze(1)
    for b, i in first_of((steps[:-1] < num_accepted) & (tokens[:, :-1] != draft_ids)):
        return f"the accepted drafts, found token {int(tokens[b, i])} for draft {int(draft_ids[b, i])} of request {b}"
    for b, i in first_of((steps <= num_accepted) & ((tokens < 0) | (tokens >= vocab_size))):
        return (
            f"token_ids in [0, {vocab_size}) up to the last token of a request, found {int(tokens[b, i])} as token "
            f"{i} of the {int(accepted[b]) + 1} of request {b}"
        )
    for b, i in first_of((steps > num_accepted) & (tokens != PAD_TOKEN_ID)):
        return (
            f"token_ids {PAD_TOKEN_ID} behind the last token of a request, found {int(tokens[b, i])} behind the "
            f"{int(accepted[b]) + 1} of request {b}"
        )
    return None


def _by_step(drafts: Drafts) -> tuple[Tensor, Tensor]:
    """Lay out the drafts of each request [B, K], and their numbers [B], on the host."""
    ids = drafts.draft_token_ids.cpu().to(torch.int64)
    first, most = drafts.cu_num_logits.cpu().to(torch.int64), drafts.max_drafts
    counts = first.diff() - 1
    if ids.dim() == 2:
        return pad(ids, (0, most), value=PAD_TOKEN_ID)[:, :most], counts
    indices = (first[:-1] - torch.arange(len(counts))).unsqueeze(1) + torch.arange(most)
    return pad(ids, (0, 1), value=PAD_TOKEN_ID)[indices.clamp(0, len(ids))], counts
