"""Checks the inputs of a call before anything is launched: tensors of the right form on the right device.

The checks raise an InvalidInputError that says what is needed and what was found, and read no values. More logprobs
than the need grants are an InvalidParameterError.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from tokendraw._torch.graphs import is_capturing
from tokendraw._torch.tensor_checks import check_device_of, check_plain, is_plain, same_device
from tokendraw.backends.description.capabilities import INPUT_DTYPES, Need
from tokendraw.errors.exceptions import InvalidInputError, InvalidParameterError
from tokendraw.errors.formatting import type_name
from tokendraw.parameters.fields import check_logprobs, of_row
from tokendraw.parameters.metadata import SamplingMetadata

LogitsForm: TypeAlias = tuple[torch.Size, torch.dtype, torch.device]

_DTYPES = frozenset(getattr(torch, name) for name in INPUT_DTYPES)


def check_logits(
    name: str, logits: Tensor, device: torch.device, *, built: str = "sampler", least_columns: int = 1
) -> None:
    """Refuse anything but a batch of logits on a sampler's device.

    :param name: of the argument.
    :param built: names what was built for the device.
    :param least_columns: 0 where they are those of one rank of several.
    """
    if not is_plain(logits):
        check_plain(name, logits, f"Pass torch.as_tensor({name}), of shape [B, V].")
    if logits.dim() != 2 or logits.shape[1] < least_columns:
        needed = "[B, V] with V >= 1" if least_columns else "[B, n]"
        raise InvalidInputError(f"'{name}' needs shape {needed}, found {list(logits.shape)}.")
    if logits.dtype not in _DTYPES:
        raise InvalidInputError(f"'{name}' needs dtype {', '.join(INPUT_DTYPES)}, found {logits.dtype}.")
    if not same_device(logits.device, device):
        raise InvalidInputError(
            f"'{name}' needs device {device}, where the {built} was built, found {logits.device}. "
            f"Move the logits, or load a {built} for {logits.device}."
        )


def form_of(logits: Tensor) -> LogitsForm:
    """Return the properties of checked logits by which :func:`check_logits` decides."""
    return logits.shape, logits.dtype, logits.device


def has_form(logits: object, form: LogitsForm) -> bool:
    """Whether logits have a checked form, so that :func:`check_logits` would accept them."""
    return (
        type(logits) is Tensor
        and not logits.is_nested
        and logits.shape == form[0]
        and logits.dtype is form[1]
        and logits.device == form[2]
        and logits.layout is torch.strided
        and not logits.is_neg()
    )


def check_type(name: str, value: object, needed: type, mend: str) -> None:
    """Refuse anything but an object of one of tokendraw's public classes."""
    if not isinstance(value, needed):
        raise InvalidInputError(
            f"'{name}' needs a tokendraw.{needed.__name__}, found {type_name(value)}. {mend}"
        )


def check_batch(
    name: str, logits: Tensor, metadata: SamplingMetadata, need: Need, vocab_size: int | None = None
) -> None:
    """Refuse metadata unfit for the logits, an entry a row, or beyond the need; V is by default the columns."""
    check_metadata(name, logits, metadata, need, vocab_size)
    rows = metadata.num_rows
    if rows is not None and rows != logits.shape[0]:
        raise InvalidInputError(
            f"'metadata' needs as many rows as '{name}', {logits.shape[0]}, found {rows}."
        )


def check_metadata(
    name: str, logits: Tensor, metadata: SamplingMetadata, need: Need, vocab_size: int | None = None
) -> None:
    """Refuse anything but metadata on the device of the logits, of any number of rows."""
    mend = "Pass SamplingMetadata.from_params(params, device=...)."
    check_type("metadata", metadata, SamplingMetadata, mend)
    if type(metadata) is not SamplingMetadata:
        raise InvalidInputError(
            f"'metadata' needs a tokendraw.SamplingMetadata itself, found its subclass {type_name(metadata)}. Pass "
            "values of your own as SamplingParams(filters={...}), see tokendraw.filters."
        )
    device = metadata.device
    if device is not None and device != logits.device:
        mend = "Pass device= to SamplingMetadata.from_params."
        check_device_of("metadata", device, f"'{name}'", logits.device, mend)
    given_id, size = metadata.facts.max_logprob_token_id, vocab_size or logits.shape[1]
    if given_id is not None and given_id >= size:
        raise InvalidParameterError(
            f"'logprob_token_ids'{_slot_with(given_id, metadata)} needs token ids in [0, {size}), found {given_id}. "
            "Ask for ids of the vocabulary."
        )
    ids = metadata.logprob_token_ids
    if given_id is not None and ids is not None and ids.shape[1] > size:
        raise InvalidParameterError(
            f"'logprob_token_ids' needs at most {size} ids of a vocabulary of {size}, found {ids.shape[1]}. "
            "Name each id once."
        )
    if need.max_logprobs is not None:
        check_logprobs(metadata.facts.max_logprobs, size, need.max_logprobs)


def _slot_with(given_id: int, metadata: SamplingMetadata) -> str:
    """Write which slot holds an id, for a message; nothing if its tensor cannot be read now."""
    ids = metadata.logprob_token_ids
    if ids is None or is_capturing():
        return ""
    slots: list[int] = (ids == given_id).any(-1).nonzero().flatten().tolist()
    return of_row(slots[0]) if slots else ""
