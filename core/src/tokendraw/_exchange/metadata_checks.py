"""The tensors of a batch's parameters held against each other, and their values where those lie on the host.

Forms are looked at whenever metadata is made. To look at a value on another device would wait for it: there they are
looked at with ``TOKENDRAW_DEBUG=1`` alone, call by call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokendraw._exchange.facts import BatchFacts, RowKinds, checked_slots
from tokendraw._exchange.ranges import integers
from tokendraw._messages.errors import InvalidParameterError
from tokendraw._messages.words import type_name
from tokendraw._torch.tensor_checks import check_integers, check_plain, is_plain

if TYPE_CHECKING:
    from tokendraw._exchange.metadata import SamplingMetadata

_REALS = frozenset(("temperature", "top_p", "min_p"))
_FLAGS = frozenset(("seeded", "joint"))
SLOT_FIELDS = ("temperature", "top_k", "top_p", "min_p", "seed", "seeded", "joint", "logprobs")
LARGEST_POSITION = 2**63 - 1
ROW_FIELDS = ("positions", "row_index")
_FIELDS = (*SLOT_FIELDS, *ROW_FIELDS)
_FROM_PARAMS = "Pass a tensor with an entry for each, or use SamplingMetadata.from_params."


def check_forms(metadata: SamplingMetadata) -> None:
    """Refuse tensors that are none, or that do not fit each other. Reads no values.

    :raises InvalidParameterError: names the field, what it needs to be and what it is.
    """
    if not isinstance(metadata.facts, BatchFacts):
        raise _no_record("facts", "BatchFacts", metadata.facts)
    if not isinstance(metadata.row_kinds, RowKinds | None):
        raise _no_record("row_kinds", "RowKinds", metadata.row_kinds)
    tensors = {}
    for name in _FIELDS:
        if (tensor := getattr(metadata, name)) is not None:
            check_form(name, tensor)
            tensors[name] = tensor
    rows = {name: tensors[name] for name in ROW_FIELDS if name in tensors}
    slots = {name: tensor for name, tensor in tensors.items() if name not in ROW_FIELDS}
    _check_lengths(slots if metadata.row_index is not None else tensors)
    _check_lengths(rows)
    if len({tensor.device for tensor in tensors.values()}) > 1:
        found = ", ".join(f"{name} on {tensor.device}" for name, tensor in tensors.items())
        raise InvalidParameterError(f"the tensors need one device, found {found}.")


def check_values(metadata: SamplingMetadata, *, anywhere: bool = False) -> None:
    """Refuse slots that there are not, and positions below 0.

    :param anywhere: look at values on other devices than the CPU too, and wait for those.
    :raises InvalidParameterError: names the field, the row and the value.
    """
    index = metadata.row_index
    if index is not None and (anywhere or index.is_cpu) and len(index):
        slots = num_slots(metadata)
        least, largest = index.aminmax()
        if least < 0 or (slots is not None and largest >= slots):
            checked_slots(index.tolist(), 2**63 if slots is None else slots)
    if metadata.positions is not None:
        check_positions(metadata.positions, anywhere=anywhere)


def check_positions(positions: Tensor, *, anywhere: bool = False) -> None:
    """Refuse positions below 0; see :func:`check_values`."""
    if (anywhere or positions.is_cpu) and len(positions) and int(positions.min()) < 0:
        integers("positions", positions.tolist(), 0, LARGEST_POSITION)


def num_slots(metadata: SamplingMetadata) -> int | None:
    """How many requests the parameters are of; None where all are off."""
    for name in SLOT_FIELDS:
        if (tensor := getattr(metadata, name)) is not None:
            return len(tensor)
    return None


def check_form(name: str, tensor: Tensor) -> None:
    """Refuse what is no vector of the dtype of a field. Reads no values.

    :raises InvalidParameterError: names the field, what it needs to be and what it is.
    """
    if not is_plain(tensor):
        check_plain(name, tensor, _FROM_PARAMS, InvalidParameterError)
    if tensor.dim() != 1:
        raise InvalidParameterError(f"'{name}' needs one dimension, found shape {list(tensor.shape)}.")
    if name in _REALS:
        if not tensor.is_floating_point():
            raise InvalidParameterError(f"'{name}' needs a floating-point dtype, found {tensor.dtype}.")
    elif name in _FLAGS:
        if tensor.dtype != torch.bool:
            raise InvalidParameterError(f"'{name}' needs dtype torch.bool, found {tensor.dtype}.")
    else:
        check_integers(name, tensor, InvalidParameterError)


def _no_record(name: str, needed: str, found: object) -> InvalidParameterError:
    return InvalidParameterError(
        f"'{name}' needs a tokendraw.{needed}, found {type_name(found)}. Leave it out where nothing is known."
    )


def _check_lengths(tensors: dict[str, Tensor]) -> None:
    lengths = {name: tensor.shape[0] for name, tensor in tensors.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InvalidParameterError(f"the tensors need one length, found {found}.")


def check_kinds(metadata: SamplingMetadata, row_kinds: RowKinds) -> None:
    """Refuse kinds of other numbers of slots and rows.

    :raises InvalidParameterError: with both numbers.
    """
    slots = num_slots(metadata)
    if slots is not None and slots != len(row_kinds.of_slot):
        raise InvalidParameterError(
            f"'row_kinds' needs one entry a slot, {slots}, found {len(row_kinds.of_slot)}."
        )
    rows = metadata.row_index
    if rows is not None and row_kinds.slot_of_row is not None and len(rows) != len(row_kinds.slot_of_row):
        raise InvalidParameterError(
            f"'row_kinds' needs the slots of as many rows as 'row_index' has, {len(rows)}, "
            f"found {len(row_kinds.slot_of_row)}. Pass row_index= to RowKinds.of."
        )
