"""The form of what a sampler returns: shapes, dtypes, devices, ids in range, and chains that can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw._drafts import Drafts
from tokendraw._output import PAD_TOKEN_ID, SamplerOutput, VerifyOutput
from tokendraw.testing._trial import Violation


def check_form(output: SamplerOutput, logits: torch.Tensor) -> None:
    """Hold the form of an output against the contract.

    :raises Violation: names the field, what it needs and what was found.
    """
    rows, vocab_size = logits.shape
    _check_tensors(output, logits.device, (("token_ids", [rows], torch.int64), ("valid", [rows], torch.bool)))
    outside = (output.token_ids < 0) | (output.token_ids >= vocab_size)
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise Violation(
            f"token_ids need to lie in [0, {vocab_size}), found {int(output.token_ids[row])} in row {row} of {rows}"
        )


def check_chains(output: VerifyOutput, target_logits: torch.Tensor, drafts: Drafts) -> None:
    """Hold the form of a verification against the contract: accepted drafts, one token more, padding.

    :raises Violation: names the field, what it needs and what was found.
    """
    requests, width, size = drafts.num_requests, drafts.max_drafts + 1, target_logits.shape[1]
    needed = (
        ("token_ids", [requests, width], torch.int64),
        ("num_accepted", [requests], torch.int32),
        ("valid", [requests], torch.bool),
    )
    _check_tensors(output, target_logits.device, needed)
    tokens, accepted = output.token_ids.cpu().numpy(), output.num_accepted.cpu().numpy()
    given, counts = _by_step(drafts)
    for request in np.flatnonzero((accepted < 0) | (accepted > counts)):
        raise Violation(
            f"num_accepted needs to lie in [0, {counts[request]}] for request {request}, found {accepted[request]}"
        )
    steps = np.arange(width)
    emitted = steps <= accepted[:, None]
    for request, step in np.argwhere((steps[:-1] < accepted[:, None]) & (tokens[:, :-1] != given)):
        raise Violation(
            f"accepted tokens need to be the drafts, found {tokens[request, step]} for draft {given[request, step]}"
        )
    for request, step in np.argwhere(emitted & ((tokens < 0) | (tokens >= size))):
        raise Violation(
            f"token_ids need to lie in [0, {size}) up to the last token of a request, found {tokens[request, step]} "
            f"as token {step} of {accepted[request] + 1}"
        )
    for request, step in np.argwhere(~emitted & (tokens != PAD_TOKEN_ID)):
        raise Violation(
            f"token_ids need {PAD_TOKEN_ID} behind the last token of a request, found {tokens[request, step]}"
        )


def _by_step(drafts: Drafts) -> tuple[NDArray[Any], NDArray[Any]]:
    """The drafts [B, K] of each request, and how many they are [B]."""
    ids, first = drafts.draft_token_ids.cpu().numpy(), drafts.cu_num_logits.cpu().numpy().astype(np.int64)
    counts = np.diff(first) - 1
    if ids.ndim == 2:
        return ids[:, : drafts.max_drafts], counts
    place = (first[:-1] - np.arange(len(counts)))[:, None] + np.arange(drafts.max_drafts)
    return np.append(ids, PAD_TOKEN_ID)[np.minimum(place, len(ids))], counts


def _check_tensors(
    output: object, device: torch.device, needed: Sequence[tuple[str, list[int], torch.dtype]]
) -> None:
    for field, shape, dtype in needed:
        tensor = getattr(output, field, None)
        words = f"{field} needs {shape} {dtype} on {device}"
        if not isinstance(tensor, torch.Tensor):
            raise Violation(f"{words}, found {type(tensor).__name__}")
        if (list(tensor.shape), tensor.dtype, tensor.device) != (shape, dtype, device):
            raise Violation(f"{words}, found {list(tensor.shape)} {tensor.dtype} on {tensor.device}")
