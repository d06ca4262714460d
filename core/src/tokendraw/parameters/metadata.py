"""The parameters of a batch as tensors, with the host's knowledge of the batch.

Forms are looked at whenever metadata is made. To look at a value on another device would wait for it: there they are
looked at with ``TOKENDRAW_DEBUG=1`` alone, call by call.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from tokendraw._torch.importing import made_untraced, untraced
from tokendraw._torch.tensors import (
    INTEGERS,
    Column,
    check_integers,
    check_plain,
    check_vector,
    device_of,
    is_plain,
    uploaded,
)
from tokendraw.errors import InvalidInputError, InvalidParameterError, type_name
from tokendraw.filters.installed import find_filter
from tokendraw.output import PAD_TOKEN_ID
from tokendraw.parameters.batch_facts import BatchFacts, RowKinds
from tokendraw.parameters.fields import FILTER_PREFIX, PARAMETERS, SLOT_FIELDS, Columns, integers
from tokendraw.parameters.params import SamplingParams, check_columns

_ANYTHING = BatchFacts()
_SLOT_TENSORS = (*SLOT_FIELDS, "logprob_token_ids")
_ROW_FIELDS = ("positions", "row_index")
_TENSORS = (*_SLOT_TENSORS, *_ROW_FIELDS)
_VALUE_TYPES = {name: field.value_type for name, field in SLOT_FIELDS.items()} | dict.fromkeys(
    _ROW_FIELDS, "integer"
)
"""The kinds of the tensors that are vectors; those of filters from moments are real."""
_COMMON = {p.name for p in PARAMETERS if p.is_common and not p.is_optional}
MAX_POSITION = 2**63 - 1
_SMALL_INTEGERS = INTEGERS - {torch.int32, torch.int64}


@made_untraced
@dataclass(frozen=True, kw_only=True, eq=False)
class SamplingMetadata:
    """The parameters of a batch: tensors [slots] on the device of the logits, None where a parameter is off for all.

    Build it with :meth:`from_params`, which checks every value, or from ready tensors, whose values are not read
    (that would wait for the device) but clamped where they are used: ``top_k`` <= 0 or >= V, ``top_p`` >= 1 or NaN
    and ``min_p`` <= 0 or NaN are off, ``top_p`` <= 0 keeps only the likeliest, ``temperature`` <= 0 or NaN is greedy,
    +inf the largest float64. ``typical_p`` is clamped as ``top_p``, where 0 keeps the tokens closest to the entropy,
    and ``xtc_probability`` as ``min_p``. ``xtc_threshold`` > 0.5 or NaN drops nothing; <= 0 counts every kept token.
    ``row_index`` and ``positions`` that lie on the CPU are looked at when the metadata is made, elsewhere with
    ``TOKENDRAW_DEBUG=1`` alone. Integers are int8 to int64 or uint8.

    Tensors may be changed in place between calls and replays of a CUDA graph, if ``facts`` and ``row_kinds`` stay true.

    :ivar temperature: [slots] floating point: temperature of each slot; 0 is greedy.
    :ivar top_k: [slots] integer: top_k of each slot; 0, -1 or at least V: off. None: no slot has one.
    :ivar top_p: [slots] floating point: top_p of each slot; 1: off. None: no slot has one.
    :ivar min_p: [slots] floating point: min_p of each slot; 0: off. None: no slot has one.
    :ivar typical_p: [slots] floating point: typical_p of each slot; 1: off. None: no slot has one.
    :ivar xtc_probability: [slots] floating point: xtc_probability of each slot; 0: off. None: no slot has one.
    :ivar xtc_threshold: [slots] floating point: xtc_threshold of each slot; None: 0.1 in every slot.
    :ivar seed: [slots] int64, the 64 bits of each seed. Needs ``positions``.
    :ivar seeded: [slots] bool: which rows ``seed`` holds for; None: all of them.
    :ivar positions: [rows] integer: index in the sequence of the token whose hidden state made the row's logits.
    :ivar row_index: [rows] integer: the slot of each logits row; None: row i is slot i.
    :ivar joint: [slots] bool: rows whose filter order is ``joint``.
    :ivar temperature_last: [slots] bool: rows whose filter order is ``temperature_last``.
    :ivar logprobs: [slots] integer: how many best tokens each row wants (-1: all); None: ``facts.max_logprobs``.
    :ivar logprob_token_ids: [slots, M] integer: the ids whose log-probabilities each slot wants, -1 behind the last; an
        id outside [0, V) is padding. None: no slot wants any. Needs ``facts.max_logprobs``.
    :ivar filters: {name: [slots] float32}: the value of each filter from moments in each slot, see
        :mod:`tokendraw.filters`; the filter's ``off``, and NaN, are off. None: no slot has one.
    :ivar facts: Facts about the batch that the host knows; the default says that the batch may hold anything.
    :ivar row_kinds: Kind of each row; None: the rows of a batch cannot be told apart, and go the same way.
    :raises InvalidInputError: a ValueError: a field is no dense tensor of its dtype, or the tensors do not fit.
    :raises InvalidParameterError: a ValueError: a slot or position on the CPU is out of range, or ``seed``,
        ``logprobs`` or ``logprob_token_ids`` lacks what it needs beside it.
    """

    temperature: Tensor | None = None
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None
    typical_p: Tensor | None = None
    xtc_probability: Tensor | None = None
    xtc_threshold: Tensor | None = None
    seed: Tensor | None = None
    seeded: Tensor | None = None
    positions: Tensor | None = None
    row_index: Tensor | None = None
    joint: Tensor | None = None
    temperature_last: Tensor | None = None
    logprobs: Tensor | None = None
    logprob_token_ids: Tensor | None = None
    filters: Mapping[str, Tensor] | None = None
    facts: BatchFacts = _ANYTHING
    row_kinds: RowKinds | None = None

    def __post_init__(self) -> None:
        records = ("facts", self.facts, BatchFacts), ("row_kinds", self.row_kinds, RowKinds)
        for name, record, needed in records:
            if not isinstance(record, needed) and not (name == "row_kinds" and record is None):
                raise InvalidParameterError(
                    f"'{name}' needs a tokendraw.{needed.__name__}, found {type_name(record)}. "
                    "Leave it out where nothing is known."
                )
        if self.filters is not None and not isinstance(self.filters, Mapping):
            found = type_name(self.filters)
            raise InvalidInputError(f"'filters' needs {{name: tensor [slots]}}, found {found}. Pass a dict.")
        for name in self.filters or ():
            find_filter(name)
        tensors = self._tensors()
        for name, tensor in tensors.items():
            check_form(name, tensor)
        _check_together(tensors)
        if self.seed is not None and self.positions is None:
            raise missing_positions()
        for name in ("logprobs", "logprob_token_ids"):
            if name in tensors and self.facts.max_logprobs is None:
                raise InvalidParameterError(
                    f"'{name}' needs 'facts.max_logprobs', found None: it is the width of the result. "
                    "Pass facts=BatchFacts(max_logprobs=...)."
                )
        _check_indices(tensors)
        object.__setattr__(self, "facts", self.facts.tightened(tensors))
        # Cached properties that every call asks for; computing one later takes a lock in Python 3.11.
        any_tensor = tensors.get("row_index", next(iter(tensors.values()), None))
        known = (None, None) if any_tensor is None else (any_tensor.shape[0], any_tensor.device)
        vars(self).update(num_rows=known[0], device=known[1], memo={})
        kinds = self.row_kinds
        if kinds is None:
            return
        filters = [tensor for _, tensor in sorted((self.filters or {}).items())]
        if kinds.describes([self.row_index, *(tensors.get(name) for name in _SLOT_TENSORS), *filters]):
            _check_kinds(kinds, _num_slots(tensors), self.row_index)
        else:  # dataclasses.replace put other tensors in their place
            object.__setattr__(self, "row_kinds", None)

    @classmethod
    @untraced
    def from_params(
        cls,
        params: Iterable[SamplingParams],
        *,
        device: torch.device | str | None = None,
        positions: Iterable[int] | Tensor | None = None,
        row_index: Iterable[int] | Tensor | None = None,
    ) -> SamplingMetadata:
        """Check the parameters of a batch and lay them out as tensors, once; no later call waits for the device.

        Neither does this one: everything goes there in one copy on the device's current stream.

        :param params: one entry a request (slot).
        :param device: device of the logits; None: the CPU.
        :param positions: one integer a logits row; needed as soon as one request has a seed. A tensor of int64 that
            lies on ``device`` is kept, so that it may be changed in place; any other is copied.
        :param row_index: slot of each logits row, where several rows belong to one request. Tensors as ``positions``.
        :raises InvalidParameterError: a ValueError that names the field, the row and the value.
        :raises InvalidInputError: a CUDA graph is being captured.
        """
        checked, device = check_columns(params), device_of(device)
        seeded = (row for row, seed in enumerate(checked["seed"]) if seed is not None)
        if positions is None and (row := next(seeded, None)) is not None:
            raise missing_positions(f" of row {row}")
        num_slots = len(checked["seed"])
        if row_index is not None and not isinstance(row_index, Tensor):
            row_index = integers("row_index", row_index, 0, num_slots - 1)
        row_kinds = RowKinds(checked, None if isinstance(row_index, Tensor) else row_index)
        facts = row_kinds.facts
        columns = _slot_columns(checked, facts, device)
        kept = {}
        for name, indices in (("positions", positions), ("row_index", row_index)):
            if isinstance(indices, Tensor):
                check_form(name, indices)
                if device.type == "cpu" or not indices.is_cpu:
                    kept[name] = indices.to(device=device, dtype=torch.int64)
                    continue
            if indices is not None:
                values = indices.tolist() if isinstance(indices, Tensor) else indices
                columns[name] = integers(name, values, 0, MAX_POSITION), torch.int64
        tensors = uploaded(columns, device)
        if "logprob_token_ids" in tensors:
            tensors["logprob_token_ids"] = tensors["logprob_token_ids"].view(num_slots, -1)
        filters = {name: tensors.pop(f"{FILTER_PREFIX}{name}") for name in facts.filters or ()}
        return cls(**tensors, **kept, filters=filters or None, facts=facts, row_kinds=row_kinds)

    @property
    def given_ids(self) -> Tensor | None:
        """``logprob_token_ids`` [slots, M], or None where ``facts`` rule out that a row has any."""
        return self.logprob_token_ids if self.facts.any_logprob_token_ids else None

    @cached_property
    def num_rows(self) -> int | None:
        """Number of logits rows; None without tensors: fits any batch."""
        if self.row_index is not None:
            return self.row_index.shape[0]
        return next((tensor.shape[0] for tensor in self._tensors().values()), None)

    @cached_property
    def device(self) -> torch.device | None:
        """Device of the tensors; None without tensors."""
        return next((tensor.device for tensor in self._tensors().values()), None)

    @cached_property
    def memo(self) -> dict[Hashable, Any]:
        """Results computed by samplers from this metadata, by keys of their own.

        All metadata that :meth:`with_positions` makes of it shares it. So it may hold what follows from facts, shapes,
        dtypes, devices and which tensors there are, but nothing from values or from where ``positions`` lie.
        """
        return {}

    @untraced
    def with_positions(self, positions: Iterable[int] | Tensor) -> SamplingMetadata:
        """Copy the parameters to other positions [rows], as an engine does at each step unless in place.

        :param positions: integers on the device, or on the host, which are copied as by :meth:`from_params`.
        :raises InvalidInputError: a ValueError: they are no tensor of integers, one a row, on the device.
        :raises InvalidParameterError: a ValueError: one on the host is out of range.
        """
        if not isinstance(positions, Tensor):
            values = integers("positions", positions, 0, MAX_POSITION)
            device = self.device or torch.device("cpu")
            positions = uploaded({"positions": (values, torch.int64)}, device)["positions"]
        found = self.positions
        if (
            found is None
            or not is_plain(positions)
            or positions.dtype is not found.dtype
            or positions.shape != found.shape
            or positions.device != found.device
        ):
            return replace(self, positions=positions)  # checks everything, and says what does not fit
        check_positions(positions)
        moved = object.__new__(type(self))
        vars(moved).update(vars(self), positions=positions, memo=self.memo)
        return moved

    def for_rows(self, row_index: Tensor, positions: Tensor | None) -> SamplingMetadata:
        """Give the parameters of slots to logits rows. Looks at nothing: the caller knows that the tensors fit.

        :param row_index: [rows] integer on the device: the slot of each row.
        :param positions: [rows] integer on the device; None where the slots have none.
        """
        layout = "for_rows", row_index.shape, row_index.dtype, None if positions is None else positions.dtype
        changed = {"row_index": row_index, "positions": positions, "row_kinds": None}
        spread = object.__new__(type(self))
        vars(spread).update(vars(self), **changed, memo=self.memo.setdefault(layout, {}))
        vars(spread).pop("num_rows", None)
        return spread

    def per_row(self, name: str) -> Tensor | None:
        """Spread the parameter ``name`` over the logits rows: [rows], or None for a parameter without a tensor.

        Integers come as int32 or int64: smaller ones do not hold V, and do not index.
        """
        tensor: Tensor | None = getattr(self, name)
        if tensor is None or self.row_index is None or name == "positions":
            return None if tensor is None else _widened(tensor)
        return _widened(tensor)[_widened(self.row_index)]

    def filters_per_row(self) -> tuple[tuple[str, ...], Tensor] | None:
        """Spread the filters from moments over the logits rows, as far as ``facts`` say that a row may have them.

        :returns: the names of F filters, and [rows, F] float32; None where no row may have any.
        """
        if not self.filters or not self.facts.any_filters:
            return None
        names = self.facts.filters or ()  # that of made metadata is known
        columns = [self.filters[name].to(torch.float32) for name in names]
        values = torch.stack(columns, -1) if len(columns) > 1 else columns[0].unsqueeze(-1)
        return names, values if self.row_index is None else values[_widened(self.row_index)]

    def check_values(self) -> None:
        """Check the values of ``row_index`` and ``positions`` on any device, and wait for the device.

        :raises InvalidParameterError: a slot or position is out of range; names the row and the value.
        """
        _check_indices(self._tensors(), anywhere=True)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without the memo

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {name: tensor for name in _TENSORS if (tensor := getattr(self, name)) is not None}
        if self.filters:
            tensors |= {f"{FILTER_PREFIX}{name}": tensor for name, tensor in self.filters.items()}
        return tensors


def _widened(tensor: Tensor) -> Tensor:
    return tensor.to(torch.int64) if tensor.dtype in _SMALL_INTEGERS else tensor


@cache
def field_dtypes(device_type: str) -> dict[str, torch.dtype]:
    """Return the dtype of each field with an entry a slot, on devices of a type."""
    real = torch.float32 if device_type == "mps" else torch.float64  # so that 0.9 stays 0.9
    dtypes = {"real": real, "integer": torch.int64, "flag": torch.bool}
    return {name: dtypes[field.value_type] for name, field in SLOT_FIELDS.items()}


def _slot_columns(columns: Columns, facts: BatchFacts, device: torch.device) -> dict[str, Column]:
    """Return a column [slots] for each field of the metadata that a request uses."""
    dtypes, used = field_dtypes(device.type), _COMMON.union(columns["filter_order"])
    uploads: dict[str, Column] = {
        name: (field.entries(columns[field.source]), dtypes[name])
        for name, field in SLOT_FIELDS.items()
        if name in used or facts.may_use(name)
    }
    given_ids = columns["logprob_token_ids"]
    width = max(map(len, given_ids), default=0)
    if width:  # [slots * M]
        padded_ids = [[*ids, *[PAD_TOKEN_ID] * (width - len(ids))] for ids in given_ids]
        uploads["logprob_token_ids"] = [*chain.from_iterable(padded_ids)], torch.int64
    by_slot = [dict(active) for active in columns["filters"]] if facts.filters else []
    for name in facts.filters or ():
        off = find_filter(name).off
        uploads[f"{FILTER_PREFIX}{name}"] = [values.get(name, off) for values in by_slot], torch.float32
    return uploads


def check_form(name: str, tensor: Tensor) -> None:
    """Refuse anything but a vector, or a matrix of ids, of a field's dtype. Reads no values."""
    if name == "logprob_token_ids":
        check_plain(name, tensor)
        if tensor.dim() != 2:
            raise InvalidInputError(f"'{name}' needs shape [slots, M], found {list(tensor.shape)}.")
        check_integers(name, tensor)
        return
    check_vector(name, tensor, "Pass a tensor with an entry for each, or use SamplingMetadata.from_params.")
    value_type = _VALUE_TYPES.get(name, "real")
    if value_type == "integer":
        check_integers(name, tensor)
    elif value_type == "real" and not tensor.is_floating_point():
        raise InvalidInputError(f"'{name}' needs a floating-point dtype, found {tensor.dtype}.")
    elif value_type == "flag" and tensor.dtype != torch.bool:
        raise InvalidInputError(f"'{name}' needs dtype torch.bool, found {tensor.dtype}.")


def _check_together(tensors: Mapping[str, Tensor]) -> None:
    rows = {name: tensor for name, tensor in tensors.items() if name in _ROW_FIELDS}
    slots = {name: tensor for name, tensor in tensors.items() if name not in _ROW_FIELDS}
    for equal in (slots if "row_index" in tensors else tensors, rows):
        if len({tensor.shape[0] for tensor in equal.values()}) > 1:
            found = ", ".join(f"{name} {tensor.shape[0]}" for name, tensor in equal.items())
            raise InvalidInputError(f"the tensors need one length, found {found}.")
    if len({tensor.device for tensor in tensors.values()}) > 1:
        found = ", ".join(f"{name} on {tensor.device}" for name, tensor in tensors.items())
        raise InvalidInputError(f"the tensors need one device, found {found}.")


def _num_slots(tensors: Mapping[str, Tensor]) -> int | None:
    return next((tensor.shape[0] for name, tensor in tensors.items() if name not in _ROW_FIELDS), None)


def _check_indices(tensors: Mapping[str, Tensor], *, anywhere: bool = False) -> None:
    index = tensors.get("row_index")
    if index is not None and (anywhere or index.is_cpu) and index.shape[0]:
        slots = _num_slots(tensors)
        least, largest = index.aminmax()
        if least < 0 or (slots is not None and largest >= slots):
            integers("row_index", index.tolist(), 0, (2**63 if slots is None else slots) - 1)
    if "positions" in tensors:
        check_positions(tensors["positions"], anywhere=anywhere)


def check_positions(positions: Tensor, *, anywhere: bool = False) -> None:
    if positions.shape[0] and (anywhere or positions.is_cpu) and int(positions.min()) < 0:
        integers("positions", positions.tolist(), 0, MAX_POSITION)


def missing_positions(owner: str = "") -> InvalidParameterError:
    return InvalidParameterError(
        f"'seed'{owner} needs 'positions', found none: without them every step would draw with the same noise. "
        "Pass positions, one integer a row: the sequence length minus one."
    )


def _check_kinds(row_kinds: RowKinds, slots: int | None, row_index: Tensor | None) -> None:
    if slots is not None and slots != len(row_kinds.of_slot):
        found = len(row_kinds.of_slot)
        raise InvalidInputError(f"'row_kinds' needs one entry a slot, {slots}, found {found}.")
    slot_of_row = row_kinds.slot_of_row
    if row_index is not None and slot_of_row is not None and row_index.shape[0] != len(slot_of_row):
        raise InvalidInputError(
            f"'row_kinds' needs the slots of as many rows as 'row_index' has, {row_index.shape[0]}, "
            f"found {len(slot_of_row)}. Pass row_index= to RowKinds.of."
        )
