"""The form of what a call returns: shapes, dtypes, devices, ids in range, and chains that can be.

Each function says what was needed and what was found, or returns None. All but :func:`misfit` read values, and so wait
for the device.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw._drafts import Drafts
from tokendraw._output import PAD_TOKEN_ID


def misfit(
    name: str, found: object, shape: list[int], dtype: torch.dtype, device: torch.device
) -> str | None:
    """Compare an output tensor with what it needs to be. Reads no values."""
    needed = f"{name} {shape} {dtype} on {device}"
    if not isinstance(found, Tensor):
        return f"{needed}, found {type(found).__name__}"
    if (found.dtype, found.device, list(found.shape)) != (dtype, device, shape):
        return f"{needed}, found {list(found.shape)} {found.dtype} on {found.device}"
    return None


def wrong_tokens(output: object, logits: Tensor) -> str | None:
    """Hold what ``sample`` or ``draft`` returned against :class:`tokendraw.SamplerOutput`."""
    rows, vocab_size = logits.shape
    reason = _misfits(
        output, logits.device, {"token_ids": ([rows], torch.int64), "valid": ([rows], torch.bool)}
    )
    if reason is not None:
        return reason
    ids: Tensor = output.token_ids  # type: ignore[attr-defined]
    for (row,) in _first((ids < 0) | (ids >= vocab_size)):
        return f"token_ids in [0, {vocab_size}), found {int(ids[row])} in row {row} of {rows}"
    return None


def wrong_chains(output: object, target_logits: Tensor, drafts: Drafts) -> str | None:
    """Hold what ``verify`` returned against :class:`tokendraw.VerifyOutput`."""
    requests, width, vocab_size = drafts.num_requests, drafts.max_drafts + 1, target_logits.shape[1]
    needed = {
        "token_ids": ([requests, width], torch.int64),
        "num_accepted": ([requests], torch.int32),
        "valid": ([requests], torch.bool),
    }
    reason = _misfits(output, target_logits.device, needed)
    if reason is not None:
        return reason
    tokens: Tensor = output.token_ids.cpu()  # type: ignore[attr-defined]
    accepted: Tensor = output.num_accepted.cpu()  # type: ignore[attr-defined]
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


def _misfits(
    output: object, device: torch.device, needed: Mapping[str, tuple[list[int], torch.dtype]]
) -> str | None:
    reasons = (
        misfit(name, getattr(output, name, None), shape, dtype, device)
        for name, (shape, dtype) in needed.items()
    )
    return next((reason for reason in reasons if reason is not None), None)


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
