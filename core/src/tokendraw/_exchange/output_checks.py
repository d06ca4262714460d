"""The form of what a call returns: types, shapes, dtypes, devices; ids in range, and chains that can be.

Each function says what was needed and what was found, or returns None. :func:`wrong_output` and
:func:`wrong_verify_output` read no values, and look at every call; the others wait for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw._exchange.output import PAD_TOKEN_ID, LogprobsTensors, SamplerOutput, VerifyOutput
from tokendraw.operations.verify.drafts import Drafts


def wrong_output(output: object, logits: Tensor, width: int | None, *, ranks: bool = True) -> str | None:
    """Hold what ``sample`` or ``draft`` returned against :class:`tokendraw.SamplerOutput`.

    :param width: how many best tokens the batch asked for, as ``BatchFacts.logprobs_width`` says; None: no logprobs.
    :param ranks: whether their ranks are needed too.
    """
    if not isinstance(output, SamplerOutput):
        return f"a SamplerOutput, found {type(output).__name__}"
    shape, device = (logits.shape[0],), logits.device
    reason = _misfit("token_ids", output.token_ids, shape, torch.int64, device) or _misfit(
        "valid", output.valid, shape, torch.bool, device
    )
    if reason is not None or width is None:
        return reason
    return _wrong_logprobs(output.logprobs, shape, width, device, ranks=ranks) or _misfit(
        "log_kept_mass", output.log_kept_mass, shape, torch.float32, device
    )


def wrong_verify_output(
    output: object, target_logits: Tensor, drafts: Drafts, width: int | None, *, ranks: bool = True
) -> str | None:
    """Hold what ``verify`` returned against :class:`tokendraw.VerifyOutput`; as :func:`wrong_output`."""
    if not isinstance(output, VerifyOutput):
        return f"a VerifyOutput, found {type(output).__name__}"
    requests, device = (drafts.num_requests,), target_logits.device
    shape = (*requests, drafts.max_drafts + 1)
    reason = (
        _misfit("token_ids", output.token_ids, shape, torch.int64, device)
        or _misfit("num_accepted", output.num_accepted, requests, torch.int32, device)
        or _misfit("valid", output.valid, requests, torch.bool, device)
    )
    if reason is not None or width is None:
        return reason
    return _wrong_logprobs(output.logprobs, shape, width, device, ranks=ranks)


def wrong_tokens(output: SamplerOutput, logits: Tensor) -> str | None:
    """Hold the ids that ``sample`` or ``draft`` returned, of the right form, against the vocabulary."""
    rows, vocab_size = logits.shape
    ids = output.token_ids
    for (row,) in _first((ids < 0) | (ids >= vocab_size)):
        return f"token_ids in [0, {vocab_size}), found {int(ids[row])} in row {row} of {rows}"
    return None


def wrong_chains(output: VerifyOutput, target_logits: Tensor, drafts: Drafts) -> str | None:
    """Hold the chains that ``verify`` returned, of the right form, against the drafts."""
    requests, width, vocab_size = drafts.num_requests, drafts.max_drafts + 1, target_logits.shape[1]
    tokens, accepted = output.token_ids.cpu(), output.num_accepted.cpu()
    given, counts = _by_step(drafts)
    for (b,) in _first((accepted < 0) | (accepted > counts)):
        return (
            f"num_accepted in [0, {int(counts[b])}], found {int(accepted[b])} for request {b} of {requests}"
        )
    steps, num_accepted = torch.arange(width), accepted.unsqueeze(1)
    for b, i in _first((steps[:-1] < num_accepted) & (tokens[:, :-1] != given)):
        return f"the accepted drafts, found token {int(tokens[b, i])} for draft {int(given[b, i])} of request {b}"
    for b, i in _first((steps <= num_accepted) & ((tokens < 0) | (tokens >= vocab_size))):
        return (
            f"token_ids in [0, {vocab_size}) up to the last token of a request, found {int(tokens[b, i])} as token "
            f"{i} of the {int(accepted[b]) + 1} of request {b}"
        )
    for b, i in _first((steps > num_accepted) & (tokens != PAD_TOKEN_ID)):
        return (
            f"token_ids {PAD_TOKEN_ID} behind the last token of a request, found {int(tokens[b, i])} behind the "
            f"{int(accepted[b]) + 1} of request {b}"
        )
    return None


def _wrong_logprobs(
    found: object,
    shape: tuple[int, ...],
    width: int,
    device: torch.device,
    *,
    ranks: bool,
) -> str | None:
    if not isinstance(found, LogprobsTensors):
        return f"logprobs of the type LogprobsTensors, found {type(found).__name__}"
    wide = (*shape, 1 + width)
    return (
        _misfit("logprobs.token_ids", found.token_ids, wide, torch.int64, device)
        or _misfit("logprobs.logprobs", found.logprobs, wide, torch.float32, device)
        or (
            _misfit("logprobs.ranks", found.ranks, shape, torch.int64, device)
            if ranks or found.ranks is not None
            else None
        )
    )


def _misfit(
    name: str, found: object, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> str | None:
    if not isinstance(found, Tensor):
        return f"{name} {list(shape)} {dtype} on {device}, found {type(found).__name__}"
    if found.shape == shape and found.dtype is dtype and found.device == device:
        return None
    return (
        f"{name} {list(shape)} {dtype} on {device}, found {list(found.shape)} {found.dtype} on {found.device}"
    )


def _first(wrong: Tensor) -> list[list[int]]:
    """The indices of the first element that is True; nothing if none is."""
    found: list[list[int]] = wrong.nonzero()[:1].tolist()
    return found


def _by_step(drafts: Drafts) -> tuple[Tensor, Tensor]:
    """The drafts [B, K] of each request, and how many they are [B], on the host."""
    ids = drafts.draft_token_ids.cpu().to(torch.int64)
    first, most = drafts.cu_num_logits.cpu().to(torch.int64), drafts.max_drafts
    counts = first.diff() - 1
    if ids.dim() == 2:
        return pad(ids, (0, most), value=PAD_TOKEN_ID)[:, :most], counts
    places = (first[:-1] - torch.arange(len(counts))).unsqueeze(1) + torch.arange(most)
    return pad(ids, (0, 1), value=PAD_TOKEN_ID)[places.clamp(0, len(ids))], counts
