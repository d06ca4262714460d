"""Checks the tensors of a batch's parameters against each other, and reads values on the host.

Forms are looked at whenever metadata is made. To look at a value on another device would wait for it: there they are
looked at with ``TOKENDRAW_DEBUG=1`` alone, call by call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import UnionType
from typing import get_args

import torch
from torch import Tensor

from tokendraw._torch.tensors import Column, check_integers, check_plain, check_vector
from tokendraw.errors.exceptions import InvalidInputError, InvalidParameterError
from tokendraw.errors.formatting import type_name
from tokendraw.parameters.batch_facts import RowKinds, slots_of_rows
from tokendraw.parameters.fields import FILTER_PREFIX, SLOT_FIELDS
from tokendraw.parameters.ranges import integers

ROW_FIELDS = ("positions", "row_index")
MAX_POSITION = 2**63 - 1


def check_form(name: str, tensor: Tensor) -> None:
    """Refuse anything but a vector, or a matrix of ids, of a field's dtype. Reads no values."""
    if name == "logprob_token_ids":
        check_plain(name, tensor)
        if tensor.dim() != 2:
            raise InvalidInputError(f"'{name}' needs shape [slots, M], found {list(tensor.shape)}.")
        check_integers(name, tensor)
        return
    check_vector(name, tensor, "Pass a tensor with an entry for each, or use SamplingMetadata.from_params.")
    kind = "real" if name.startswith(FILTER_PREFIX) else SLOT_FIELDS.get(name)
    if kind == "real":
        if not tensor.is_floating_point():
            raise InvalidInputError(f"'{name}' needs a floating-point dtype, found {tensor.dtype}.")
    elif kind == "flag":
        if tensor.dtype != torch.bool:
            raise InvalidInputError(f"'{name}' needs dtype torch.bool, found {tensor.dtype}.")
    else:
        check_integers(name, tensor)


def check_together(tensors: Mapping[str, Tensor]) -> None:
    """Check the lengths and devices of tensors, by field, against each other. Reads no values."""
    rows = {name: tensor for name, tensor in tensors.items() if name in ROW_FIELDS}
    slots = {name: tensor for name, tensor in tensors.items() if name not in ROW_FIELDS}
    _check_lengths(slots if "row_index" in tensors else tensors)
    _check_lengths(rows)
    if len({tensor.device for tensor in tensors.values()}) > 1:
        found = ", ".join(f"{name} on {tensor.device}" for name, tensor in tensors.items())
        raise InvalidInputError(f"the tensors need one device, found {found}.")


def _check_lengths(tensors: Mapping[str, Tensor]) -> None:
    if len({tensor.shape[0] for tensor in tensors.values()}) > 1:
        found = ", ".join(f"{name} {tensor.shape[0]}" for name, tensor in tensors.items())
        raise InvalidInputError(f"the tensors need one length, found {found}.")


def num_slots(tensors: Mapping[str, Tensor]) -> int | None:
    """Count the requests of the parameters; None without parameters."""
    of_slots = (
        tensor for name, tensor in tensors.items() if name in SLOT_FIELDS or name.startswith(FILTER_PREFIX)
    )
    return next((tensor.shape[0] for tensor in of_slots), None)


def check_indices(tensors: Mapping[str, Tensor], *, anywhere: bool = False) -> None:
    """Refuse slots out of range, and positions below 0.

    :param anywhere: look at values on other devices than the CPU too, and wait for those.
    """
    index = tensors.get("row_index")
    if index is not None and (anywhere or index.is_cpu) and index.shape[0]:
        slots = num_slots(tensors)
        least, largest = index.aminmax()
        if least < 0 or (slots is not None and largest >= slots):
            slots_of_rows(index.tolist(), 2**63 if slots is None else slots)
    if "positions" in tensors:
        check_positions(tensors["positions"], anywhere=anywhere)


def check_positions(positions: Tensor, *, anywhere: bool = False) -> None:
    """Refuse positions below 0; see :func:`check_indices`."""
    if positions.shape[0] and (anywhere or positions.is_cpu) and int(positions.min()) < 0:
        integers("positions", positions.tolist(), 0, MAX_POSITION)


def missing_positions(owner: str = "") -> InvalidParameterError:
    """Make the error for a seed without positions.

    :param owner: of the seed, such as `` of row 3``.
    """
    return InvalidParameterError(
        f"'seed'{owner} needs 'positions', found none: without them every step would draw with the same noise. "
        "Pass positions, one integer a row: the sequence length minus one."
    )


def check_record(name: str, value: object, needed: type | UnionType) -> None:
    """Refuse anything but a record of the host's knowledge."""
    if not isinstance(value, needed):
        record = (get_args(needed) or (needed,))[0].__name__
        raise InvalidParameterError(
            f"'{name}' needs a tokendraw.{record}, found {type_name(value)}. Leave it out where nothing is known."
        )


def check_kinds(row_kinds: RowKinds, slots: int | None, row_index: Tensor | None) -> None:
    """Check the numbers of slots and rows of row kinds."""
    if slots is not None and slots != len(row_kinds.of_slot):
        raise InvalidInputError(
            f"'row_kinds' needs one entry a slot, {slots}, found {len(row_kinds.of_slot)}."
        )
    slot_of_row = row_kinds.slot_of_row
    if row_index is not None and slot_of_row is not None and row_index.shape[0] != len(slot_of_row):
        raise InvalidInputError(
            f"'row_kinds' needs the slots of as many rows as 'row_index' has, {row_index.shape[0]}, "
            f"found {len(slot_of_row)}. Pass row_index= to RowKinds.of."
        )


def index_column(name: str, indices: Iterable[int] | Tensor, device: torch.device) -> Tensor | Column:
    """Return positions or slots as a tensor [rows] int64 on the device, or as a column to be uploaded."""
    if isinstance(indices, Tensor):
        check_form(name, indices)
        if device.type == "cpu" or not indices.is_cpu:
            return indices.to(device=device, dtype=torch.int64)
        indices = indices.tolist()
    return integers(name, indices, 0, MAX_POSITION), torch.int64
