"""Checks the tensors and counts of drafts. :func:`check_offsets` alone reads values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from tokendraw._torch.tensors import check_device_of, check_integers, check_plain
from tokendraw.backends.description.capabilities import INPUT_DTYPES
from tokendraw.errors.exceptions import InvalidInputError, InvalidParameterError
from tokendraw.parameters.ranges import integer

_DTYPES = frozenset(getattr(torch, name) for name in INPUT_DTYPES)


def check_ids(ids: Tensor, offsets: Tensor) -> None:
    """Check the types, shapes and dtypes of ids and offsets.

    :param ids: ``draft_token_ids``.
    :param offsets: ``cu_num_logits``.
    """
    check_plain("draft_token_ids", ids, "Pass a tensor of ids, or use Drafts.from_lists.")
    check_plain("cu_num_logits", offsets, "Pass a tensor, or use Drafts.from_lists.")
    if ids.dim() not in (1, 2):
        raise InvalidInputError(f"'draft_token_ids' needs shape [L - B] or [B, K], found {list(ids.shape)}.")
    check_integers("draft_token_ids", ids)
    if offsets.dim() != 1 or not offsets.shape[0]:
        raise InvalidInputError(f"'cu_num_logits' needs shape [B + 1], found {list(offsets.shape)}.")
    check_integers("cu_num_logits", offsets)
    if ids.dim() == 2 and ids.shape[0] != offsets.shape[0] - 1:
        raise InvalidInputError(
            f"'draft_token_ids' of two dimensions needs a row for each of the {offsets.shape[0] - 1} requests in "
            f"'cu_num_logits', found {ids.shape[0]}."
        )
    check_device_of("cu_num_logits", offsets.device, "'draft_token_ids'", ids.device)


def check_distributions(ids: Tensor, probs: Tensor | None, logits: Tensor | None) -> None:
    """Check the probabilities or logits of drafts against the ids."""
    distributions = {name: tensor for name, tensor in _named(probs, logits) if tensor is not None}
    for name, tensor in distributions.items():
        check_plain(name, tensor, f"Pass torch.as_tensor({name}).")
    if len(distributions) > 1:
        raise InvalidInputError("'drafts' needs draft_probs or draft_logits, found both. Pass one of them.")
    if probs is not None and not probs.is_floating_point():
        raise InvalidInputError(f"'draft_probs' needs a floating-point dtype, found {probs.dtype}.")
    if logits is not None and logits.dtype not in _DTYPES:
        raise InvalidInputError(
            f"'draft_logits' needs dtype {', '.join(INPUT_DTYPES)}, found {logits.dtype}."
        )
    for name, tensor in distributions.items():
        if tensor.dim() != 2 or tensor.shape[1] == 0:
            raise InvalidInputError(
                f"'{name}' needs shape [L - B, V] with V >= 1, found {list(tensor.shape)}."
            )
        if ids.dim() == 1 and tensor.shape[0] != ids.shape[0]:
            raise InvalidInputError(
                f"'{name}' needs a row for each of the {ids.shape[0]} draft_token_ids, found {tensor.shape[0]}."
            )
        check_device_of(name, tensor.device, "'draft_token_ids'", ids.device)


def check_counts(
    num_drafts: Sequence[int], requests: int, ids: Tensor, probs: Tensor | None, logits: Tensor | None
) -> None:
    """Check the number of drafts of each request against the tensors.

    :param requests: B.
    """
    if len(num_drafts) != requests:
        raise InvalidParameterError(
            f"'num_drafts' needs a number for each of the {requests} requests in 'cu_num_logits', "
            f"found {len(num_drafts)}."
        )
    if ids.dim() == 2 and max(num_drafts, default=0) > ids.shape[1]:
        request = next(i for i, n in enumerate(num_drafts) if n > ids.shape[1])
        raise InvalidParameterError(
            f"'num_drafts' of request {request} needs an integer in [0, {ids.shape[1]}], the width of "
            f"'draft_token_ids', found {num_drafts[request]}."
        )
    total = sum(num_drafts)
    for name, tensor in (("draft_token_ids", ids if ids.dim() == 1 else None), *_named(probs, logits)):
        if tensor is not None and tensor.shape[0] != total:
            raise InvalidInputError(
                f"'{name}' needs {total} rows, the sum of 'num_drafts', found {tensor.shape[0]}."
            )


def first_rows(num_drafts: Sequence[int]) -> list[int]:
    """Compute ``cu_num_logits`` from the drafts of each request."""
    return [0, *accumulate(count + 1 for count in num_drafts)]


def check_offsets(cu_num_logits: Tensor, num_drafts: Sequence[int] | None, rows: int | None) -> None:
    """Read the first row of each request, and refuse impossible offsets.

    :param rows: L, or None where the host does not know it.
    """
    offsets = cu_num_logits.tolist()
    if num_drafts is not None and offsets == first_rows(num_drafts):
        return
    if offsets[0] != 0:
        raise InvalidParameterError(f"'cu_num_logits' needs 0 first, found {offsets[0]}.")
    for request, (first, end) in enumerate(pairwise(offsets)):
        least = first + 1 + (0 if num_drafts is None else num_drafts[request])
        if end < least or (end > least and num_drafts is not None):
            needed = f"{least} or more" if num_drafts is None else f"{least}, as 'num_drafts' says,"
            raise InvalidParameterError(
                f"'cu_num_logits' needs {needed} where request {request} ends, which begins at {first}, found {end}."
            )
    if rows is not None and offsets[-1] > rows:
        raise InvalidParameterError(
            f"'cu_num_logits' needs at most {rows} last, one for each draft and one more for each of the "
            f"{len(offsets) - 1} requests, found {offsets[-1]}."
        )


def most_drafts(max_drafts: int, num_drafts: Sequence[int] | None, ids: Tensor) -> int:
    """Return ``max_drafts``, or for -1 the host's upper bound."""
    if max_drafts != -1:
        return integer("max_drafts", max_drafts, None, max(num_drafts or (0,)), 2**62)
    if ids.dim() == 2:
        return ids.shape[1]
    if num_drafts is not None:
        return max(num_drafts, default=0)
    raise InvalidParameterError(
        "'max_drafts' needs to be known on the host, since it is the width of the result, found neither it nor "
        "'num_drafts'. Pass max_drafts=."
    )


def _named(probs: Tensor | None, logits: Tensor | None) -> tuple[tuple[str, Tensor | None], ...]:
    return ("draft_probs", probs), ("draft_logits", logits)
