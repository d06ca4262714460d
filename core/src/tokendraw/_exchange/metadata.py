"""The parameters of a batch as tensors, beside what the host knows of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from tokendraw._exchange.facts import BatchFacts, RowKinds, checked_slots
from tokendraw._exchange.metadata_checks import (
    LARGEST_POSITION,
    SLOT_FIELDS,
    check_form,
    check_forms,
    check_kinds,
    check_positions,
    check_values,
)
from tokendraw._exchange.params import SamplingParams
from tokendraw._exchange.ranges import all_checked, integers
from tokendraw._messages.errors import InvalidParameterError
from tokendraw._torch.tensor_checks import INTEGERS
from tokendraw._torch.untraced import made_untraced, untraced
from tokendraw._torch.upload import Column, device_of, uploaded

_ANYTHING = BatchFacts()
_SMALL_INTEGERS = INTEGERS - {torch.int32, torch.int64}


@made_untraced
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SamplingMetadata:
    """The parameters of a batch: tensors [slots] on the device of the logits, None where a parameter is off for all.

    Build it with :meth:`from_params`, which checks every value, or from ready tensors, whose values are not read
    (that would wait for the device) but clamped where they are used: ``top_k`` <= 0 or >= V, ``top_p`` >= 1 or NaN
    and ``min_p`` <= 0 or NaN are off, ``top_p`` <= 0 keeps only the likeliest, ``temperature`` <= 0 or NaN is greedy.
    ``row_index`` and ``positions`` that lie on the CPU are looked at when the metadata is made, elsewhere with
    ``TOKENDRAW_DEBUG=1`` alone. Integers are int8 to int64 or uint8.

    Tensors may be changed in place between calls, also between replays of a CUDA graph, as long as ``facts`` and
    ``row_kinds`` stay true of them.

    :raises InvalidParameterError: a ValueError: a field is no dense tensor of its dtype, they do not fit each other, or
        a slot or position on the CPU is out of range.
    """

    temperature: Tensor | None = None
    """[slots] floating point."""
    top_k: Tensor | None = None
    """[slots] integer."""
    top_p: Tensor | None = None
    """[slots] floating point."""
    min_p: Tensor | None = None
    """[slots] floating point."""
    seed: Tensor | None = None
    """[slots] int64, the 64 bits of each seed. Needs ``positions``."""
    seeded: Tensor | None = None
    """[slots] bool: which rows ``seed`` holds for; None: all of them."""
    positions: Tensor | None = None
    """[rows] integer: index in its sequence of the token whose hidden state made the row's logits."""
    row_index: Tensor | None = None
    """[rows] integer: the slot of each logits row; None: row i is slot i."""
    joint: Tensor | None = None
    """[slots] bool: rows whose filter order is ``joint``."""
    logprobs: Tensor | None = None
    """[slots] integer: how many best tokens each row wants (-1: all); None: ``facts.max_logprobs`` for every row."""
    facts: BatchFacts = _ANYTHING
    row_kinds: RowKinds | None = None
    """Of which kind each row is; None: the rows of a batch cannot be told apart, and go the same way."""

    def __post_init__(self) -> None:
        check_forms(self)
        if self.seed is not None and self.positions is None:
            raise InvalidParameterError(
                "'seed' needs 'positions', found none: without them every step would draw with the same noise. "
                "Pass positions, one integer a row: the sequence length minus one."
            )
        if self.logprobs is not None and self.facts.max_logprobs is None:
            raise InvalidParameterError(
                "'logprobs' needs 'facts.max_logprobs', found None: it is the width of the result. "
                "Pass facts=BatchFacts(max_logprobs=...)."
            )
        check_values(self)
        object.__setattr__(self, "facts", _tightened(self))
        if self.row_kinds is not None and not self.row_kinds.is_about(self._kind_tensors()):
            object.__setattr__(
                self, "row_kinds", None
            )  # dataclasses.replace put other tensors in their place
        elif self.row_kinds is not None:
            check_kinds(self, self.row_kinds)

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
        requests, device = all_checked(params), device_of(device)
        temperature, top_k, top_p, min_p, seed, logprobs, order, _ = (
            zip(*requests, strict=True) if requests else [()] * 8
        )
        has_seed = [one is not None for one in seed]
        if any(has_seed) and positions is None:
            raise InvalidParameterError(
                f"'seed' of row {has_seed.index(True)} needs 'positions', found none: without them every step would "
                "draw with the same noise. Pass positions, one integer a row: the sequence length minus one."
            )
        slots = None if isinstance(row_index, Tensor) else checked_slots(row_index, len(requests))
        row_kinds = RowKinds.sorted(requests, slots)
        facts = BatchFacts.merged(row_kinds.kinds)
        real = torch.float32 if device.type == "mps" else torch.float64  # so that 0.9 stays 0.9
        columns: dict[str, Column] = {
            "temperature": (temperature, real),
            "top_k": (top_k, torch.int64),
            "top_p": (top_p, real),
            "min_p": (min_p, real),
        }
        if any(has_seed):
            columns["seed"] = [one or 0 for one in seed], torch.int64
            columns["seeded"] = has_seed, torch.bool
        if facts.any_joint:
            columns["joint"] = [one == "joint" for one in order], torch.bool
        if facts.max_logprobs is not None:
            columns["logprobs"] = [n or 0 for n in logprobs], torch.int64
        kept = {}
        for name, indices in (("positions", positions), ("row_index", row_index if slots is None else slots)):
            if indices is None:
                continue
            given = _indices(name, indices, device)
            if isinstance(given, Tensor):
                kept[name] = given
            else:
                columns[name] = given, torch.int64
        return cls(**uploaded(columns, device), **kept, facts=facts, row_kinds=row_kinds)

    @property
    def num_rows(self) -> int | None:
        """How many logits rows it describes; None if it holds no tensor and so fits any batch."""
        tensor = self._any_tensor()
        return None if tensor is None else tensor.shape[0]

    @property
    def device(self) -> torch.device | None:
        """Device of its tensors; None if it holds none."""
        tensor = self._any_tensor()
        return None if tensor is None else tensor.device

    @untraced
    def with_positions(self, positions: Iterable[int] | Tensor) -> SamplingMetadata:
        """The same parameters at other positions [rows]: what an engine does at each step, unless in place.

        :param positions: integers on the device, or on the host, which are copied as by :meth:`from_params`.
        :raises InvalidParameterError: a ValueError: they are none, or not one a row.
        """
        if not isinstance(positions, Tensor):
            values = integers("positions", positions, 0, LARGEST_POSITION)
            device = self.device or torch.device("cpu")
            positions = uploaded({"positions": (values, torch.int64)}, device)["positions"]
        found = self.positions
        if found is None or type(self) is not SamplingMetadata:  # others may check more than this
            return replace(self, positions=positions)
        check_form("positions", positions)
        if positions.shape != found.shape or positions.device != found.device:
            return replace(self, positions=positions)  # says what it does not fit
        check_positions(positions)
        moved = object.__new__(SamplingMetadata)
        for name in _FIELDS:
            object.__setattr__(moved, name, getattr(self, name))
        object.__setattr__(moved, "positions", positions)
        return moved

    def per_row(self, name: str) -> Tensor | None:
        """The parameter ``name`` spread over the logits rows: [rows], or None where it is off for all.

        Integers come as int32 or int64: smaller ones do not hold V, and do not index.
        """
        tensor: Tensor | None = getattr(self, name)
        if tensor is None or self.row_index is None or name == "positions":
            return None if tensor is None else _widened(tensor)
        return _widened(tensor)[_widened(self.row_index)]

    def _any_tensor(self) -> Tensor | None:
        """One whose length is the number of rows."""
        if self.row_index is not None:
            return self.row_index
        for name in _ROW_OR_SLOT_FIELDS:
            tensor: Tensor | None = getattr(self, name)
            if tensor is not None:
                return tensor
        return None

    def _kind_tensors(self) -> tuple[Tensor | None, ...]:
        """Those that decide of which kind a row is."""
        return (self.row_index, *(getattr(self, name) for name in SLOT_FIELDS))


_FIELDS = tuple(field.name for field in fields(SamplingMetadata))
_ROW_OR_SLOT_FIELDS = ("positions", *SLOT_FIELDS)


def _tightened(metadata: SamplingMetadata) -> BatchFacts:
    """A parameter whose tensor is absent is off: say so, whatever the caller left at "may hold"."""
    facts, m = metadata.facts, metadata
    max_top_k = facts.max_top_k if m.top_k is not None else 0
    any_top_p = facts.any_top_p and m.top_p is not None
    any_min_p = facts.any_min_p and m.min_p is not None
    tight = {
        "any_greedy": facts.any_greedy and m.temperature is not None,
        "any_seeded": facts.any_seeded and m.seed is not None,
        "all_seeded": facts.all_seeded or (m.seed is not None and m.seeded is None),
        "max_top_k": max_top_k,
        "all_top_k": facts.all_greedy
        or (facts.all_top_k and m.top_k is not None and facts.max_top_k is not None),
        "any_top_p": any_top_p,
        "any_min_p": any_min_p,
        "any_joint": facts.any_joint and m.joint is not None,
        "any_top_k_first": facts.any_top_k_first and any_top_p and (max_top_k != 0 or any_min_p),
    }
    if all(getattr(facts, name) == value for name, value in tight.items()):
        return facts
    return replace(facts, **tight)  # type: ignore[arg-type]


def _widened(tensor: Tensor) -> Tensor:
    return tensor.to(torch.int64) if tensor.dtype in _SMALL_INTEGERS else tensor


def _indices(name: str, given: Iterable[int] | Tensor, device: torch.device) -> Tensor | list[int]:
    """Positions or slots: a tensor [rows] int64 on the device, or numbers that are to be copied there."""
    if not isinstance(given, Tensor):
        return integers(name, given, 0, LARGEST_POSITION)
    check_form(name, given)
    if given.is_cpu and device.type != "cpu":
        return integers(name, given.tolist(), 0, LARGEST_POSITION)
    return given.to(device=device, dtype=torch.int64)
