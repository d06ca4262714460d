"""The tensors and numbers of drafts held against each other. Values are read by :func:`check_offsets` alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch

from tokendraw._exchange.capabilities import INPUT_DTYPES
from tokendraw._exchange.ranges import integer
from tokendraw._messages.errors import InvalidInputError, InvalidParameterError
from tokendraw._messages.words import shown
from tokendraw._torch.tensor_checks import check_integers, check_plain

if TYPE_CHECKING:
    from tokendraw.operations.verify.drafts import Drafts

_DTYPES = frozenset(getattr(torch, name) for name in INPUT_DTYPES)


def check_tensors(drafts: Drafts) -> None:
    """Refuse what are no tensors, or do not fit each other.

    :raises InvalidInputError: names the tensor, what it needs to be and what it is.
    """
    ids, offsets = drafts.draft_token_ids, drafts.cu_num_logits
    check_plain("draft_token_ids", ids, "Pass a tensor of ids, or use Drafts.from_lists.")
    check_plain("cu_num_logits", offsets, "Pass a tensor, or use Drafts.from_lists.")
    for name in ("draft_probs", "draft_logits"):
        if (tensor := getattr(drafts, name)) is not None:
            check_plain(name, tensor, f"Pass torch.as_tensor({name}).")
    for name, tensor, dims, needed in (
        ("draft_token_ids", ids, (1, 2), "[L - B] or [B, K]"),
        ("cu_num_logits", offsets, (1,), "[B + 1]"),
    ):
        if tensor.dim() not in dims or (tensor is offsets and not len(offsets)):
            raise InvalidInputError(f"'{name}' needs shape {needed}, found {list(tensor.shape)}.")
        check_integers(name, tensor)
    if ids.dim() == 2 and len(ids) != len(offsets) - 1:
        raise InvalidInputError(
            f"'draft_token_ids' of two dimensions needs a row for each of the {len(offsets) - 1} requests in "
            f"'cu_num_logits', found {len(ids)}."
        )
    if drafts.draft_probs is not None and drafts.draft_logits is not None:
        raise InvalidInputError("'drafts' needs draft_probs or draft_logits, found both. Pass one of them.")
    if drafts.draft_probs is not None and not drafts.draft_probs.is_floating_point():
        raise InvalidInputError(
            f"'draft_probs' needs a floating-point dtype, found {drafts.draft_probs.dtype}."
        )
    logits = drafts.draft_logits
    if logits is not None and logits.dtype not in _DTYPES:
        raise InvalidInputError(
            f"'draft_logits' needs dtype {', '.join(INPUT_DTYPES)}, found {logits.dtype}."
        )
    for name in ("draft_probs", "draft_logits"):
        tensor = getattr(drafts, name)
        if tensor is not None and (tensor.dim() != 2 or tensor.shape[1] == 0):
            raise InvalidInputError(
                f"'{name}' needs shape [L - B, V] with V >= 1, found {list(tensor.shape)}."
            )
        if tensor is not None and ids.dim() == 1 and len(tensor) != len(ids):
            raise InvalidInputError(
                f"'{name}' needs a row for each of the {len(ids)} draft_token_ids, found {len(tensor)}."
            )
    for name in ("cu_num_logits", "draft_probs", "draft_logits"):
        tensor = getattr(drafts, name)
        if tensor is not None and tensor.device != ids.device:
            raise InvalidInputError(
                f"'{name}' needs the device of 'draft_token_ids', {ids.device}, found {tensor.device}."
            )


def check_counts(drafts: Drafts) -> None:
    """Refuse counts that do not fit the tensors.

    :raises InvalidInputError: a tensor has another number of rows.
    :raises InvalidParameterError: a count has no place in them.
    """
    ids, counts = drafts.draft_token_ids, drafts.num_drafts or ()
    if len(counts) != drafts.num_requests:
        raise InvalidParameterError(
            f"'num_drafts' needs a number for each of the {drafts.num_requests} requests in 'cu_num_logits', "
            f"found {len(counts)}."
        )
    if ids.dim() == 2 and max(counts, default=0) > ids.shape[1]:
        request = next(i for i, n in enumerate(counts) if n > ids.shape[1])
        raise InvalidParameterError(
            f"'num_drafts' of request {request} needs an integer in [0, {ids.shape[1]}], the width of "
            f"'draft_token_ids', found {counts[request]}."
        )
    for name in ("draft_token_ids", "draft_probs", "draft_logits"):
        tensor = getattr(drafts, name)
        if tensor is None or (tensor is ids and ids.dim() == 2):
            continue
        if len(tensor) != sum(counts):
            raise InvalidInputError(
                f"'{name}' needs {sum(counts)} rows, the sum of 'num_drafts', found {len(tensor)}."
            )


def first_rows(num_drafts: Sequence[int]) -> list[int]:
    """``cu_num_logits`` as it follows from the drafts of each request."""
    return [0, *accumulate(count + 1 for count in num_drafts)]


def check_offsets(drafts: Drafts) -> None:
    """Read the rows at which the requests begin, and refuse them where they cannot be.

    :raises InvalidParameterError: names the request, what is needed there and what is found.
    """
    offsets, counts, rows = drafts.cu_num_logits.tolist(), drafts.num_drafts, drafts.num_rows
    if counts is not None and offsets == first_rows(counts):
        return
    if offsets[0] != 0:
        raise InvalidParameterError(f"'cu_num_logits' needs 0 first, found {offsets[0]}.")
    for request, (first, end) in enumerate(pairwise(offsets)):
        least = first + 1 + (0 if counts is None else counts[request])
        if end < least or (end > least and counts is not None):
            needed = f"{least} or more" if counts is None else f"{least}, as 'num_drafts' says,"
            raise InvalidParameterError(
                f"'cu_num_logits' needs {needed} where request {request} ends, which begins at {first}, found {end}."
            )
    if rows is not None and offsets[-1] > rows:
        raise InvalidParameterError(
            f"'cu_num_logits' needs at most {rows} last, one for each draft and one more for each of the "
            f"{drafts.num_requests} requests, found {offsets[-1]}."
        )


def known_most_drafts(drafts: Drafts) -> int:
    """``max_drafts``, or what the host knows in its place.

    :raises InvalidParameterError: it knows nothing, or it is less than one of the counts.
    """
    if type(drafts.any_placeholder) is not bool:
        raise InvalidParameterError(
            f"'any_placeholder' needs True or False, found {shown(drafts.any_placeholder)}."
        )
    if drafts.max_drafts != -1:
        return integer("max_drafts", drafts.max_drafts, None, max(drafts.num_drafts or (0,)), 2**62)
    if drafts.draft_token_ids.dim() == 2:
        return drafts.draft_token_ids.shape[1]
    if drafts.num_drafts is not None:
        return max(drafts.num_drafts, default=0)
    raise InvalidParameterError(
        "'max_drafts' needs to be known on the host, since it is the width of the result, found neither it nor "
        "'num_drafts'. Pass max_drafts=."
    )
