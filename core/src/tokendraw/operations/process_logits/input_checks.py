"""Checks the arguments of an edit before anything runs. No value on another device than the CPU is read."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw._torch.tensor_checks import check_integers, check_plain, check_vector
from tokendraw.calls import input_checks
from tokendraw.errors.exceptions import InvalidInputError
from tokendraw.errors.formatting import type_name
from tokendraw.parameters.batch_facts import checked_slots
from tokendraw.parameters.drafts import Drafts
from tokendraw.request_slots.slots import RequestSlots


def check_logits(logits: Tensor, device: torch.device) -> None:
    """Refuse logits unfit for editing in place.

    :raises InvalidInputError: says what they need to be and what they are.
    """
    input_checks.check_logits("logits", logits, device, built="processor")
    if logits.requires_grad:
        raise InvalidInputError(
            "'logits' needs to be free of gradients, since it is edited in place, found requires_grad. "
            "Pass logits.detach()."
        )
    rows, vocab_size = logits.shape
    if vocab_size > 1 and logits.stride(1) != 1:
        raise InvalidInputError(
            f"'logits' needs the ids of a row one behind the other, found stride {logits.stride(1)}. "
            "Pass logits.contiguous(), and use what is returned."
        )
    if rows > 1 and logits.stride(0) < vocab_size:
        raise InvalidInputError(
            f"'logits' needs rows with memory of their own, since it is edited in place, found row stride "
            f"{logits.stride(0)} of {vocab_size} ids. Pass logits.contiguous(), and use what is returned."
        )


def check_slots(slots: RequestSlots, logits: Tensor) -> None:
    """Refuse anything but slots for these logits.

    :raises InvalidInputError: says what it needs to be and what it is.
    """
    if not isinstance(slots, RequestSlots):
        raise InvalidInputError(
            f"'slots' needs a tokendraw.RequestSlots, found {type_name(slots)}. "
            "Pass the one that the requests were added to."
        )
    if slots.device != logits.device:
        raise InvalidInputError(
            f"'slots' needs the device of 'logits', {logits.device}, found {slots.device}. "
            "Make the slots with device= of the logits."
        )
    if slots.vocab_size != logits.shape[1]:
        raise InvalidInputError(
            f"'logits' needs the vocabulary of 'slots', {slots.vocab_size}, found {logits.shape[1]}. "
            "Pass slots that were made with the vocab_size of the logits."
        )


def check_row_index(row_index: Tensor, slots: RequestSlots, logits: Tensor, drafts: Drafts | None) -> None:
    """Refuse anything but a slot for each row, or for each request with drafts.

    :raises InvalidInputError: says what it needs to be and what it is.
    """
    check_vector("row_index", row_index, "Pass a tensor of slots on the device of the logits.")
    check_integers("row_index", row_index)
    _check_device("row_index", row_index, logits)
    each, needed = ("row", logits.shape[0]) if drafts is None else ("request", drafts.num_requests)
    if row_index.shape[0] != needed:
        raise InvalidInputError(
            f"'row_index' needs one slot for each {each}, {needed}, found {row_index.shape[0]}."
        )
    if row_index.is_cpu:
        check_range(row_index, slots)


def check_range(row_index: Tensor, slots: RequestSlots) -> None:
    """Refuse slots out of range. Waits for the device of ``row_index``.

    :raises InvalidParameterError: names the row and the slot.
    """
    if row_index.shape[0]:
        least, largest = row_index.aminmax()
        if least < 0 or largest >= slots.num_slots:
            checked_slots(row_index.tolist(), slots.num_slots)


def check_bitmask(bitmask: Tensor, logits: Tensor) -> None:
    """Refuse anything but a mask [R, ceil(V / 32)] of int32.

    :raises InvalidInputError: says what it needs to be and what it is.
    """
    check_plain("bitmask", bitmask, "Pass a tensor of int32 words, or None.")
    rows, vocab_size = logits.shape
    words = -(-vocab_size // 32)
    if bitmask.shape != (rows, words):
        raise InvalidInputError(
            f"'bitmask' needs shape {[rows, words]}, one bit for each of {vocab_size} ids, found {list(bitmask.shape)}."
        )
    if bitmask.dtype is not torch.int32:
        raise InvalidInputError(
            f"'bitmask' needs dtype torch.int32, found {bitmask.dtype}. Pass 32 ids a word, as xgrammar does."
        )
    _check_device("bitmask", bitmask, logits)
    if words > 1 and bitmask.stride(1) != 1:
        raise InvalidInputError(
            f"'bitmask' needs the words of a row one behind the other, found stride {bitmask.stride(1)}. "
            "Pass bitmask.contiguous()."
        )


def check_drafts(drafts: Drafts, logits: Tensor) -> None:
    """Refuse drafts of a verification with other rows.

    :raises InvalidInputError: says what they need to be and what they are.
    """
    if not isinstance(drafts, Drafts):
        raise InvalidInputError(
            f"'drafts' needs a tokendraw.Drafts or None, found {type_name(drafts)}. "
            "Pass Drafts.from_lists(draft_token_ids, device=...)."
        )
    drafts.check(logits, "logits")


def _check_device(name: str, tensor: Tensor, logits: Tensor) -> None:
    if tensor.device != logits.device:
        raise InvalidInputError(
            f"'{name}' needs the device of 'logits', {logits.device}, found {tensor.device}. "
            f"Pass {name}.to('{logits.device}')."
        )
