"""The parameters of a batch as tensors, beside what the host knows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tokendraw._batch_facts import BatchFacts, RowKinds, checked_slots
from tokendraw._errors import InvalidParameterError
from tokendraw._parameters import CHECKS, integer
from tokendraw._params import SamplingParams
from tokendraw._untraced import made_untraced, untraced

_ANYTHING = BatchFacts()


@made_untraced
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SamplingMetadata:
    """The parameters of a batch: tensors [slots] on the device of the logits, None where a parameter is off for all.

    Build it with :meth:`from_params`, which checks every value, or from ready tensors, whose values are not read
    (that would wait for the device) but clamped where they are used: ``top_k`` <= 0 or >= V, ``top_p`` >= 1 or NaN
    and ``min_p`` <= 0 or NaN are off, ``top_p`` <= 0 keeps only the likeliest, ``temperature`` <= 0 or NaN is greedy.

    Tensors may be changed in place between calls, also between replays of a CUDA graph, as long as ``facts`` and
    ``row_kinds`` stay true of them.
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
        _check_shapes(self)
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
        object.__setattr__(self, "facts", _tightened(self))
        if self.row_kinds is not None and not self.row_kinds.is_about(self._kind_tensors()):
            object.__setattr__(
                self, "row_kinds", None
            )  # dataclasses.replace put other tensors in their place
        elif self.row_kinds is not None:
            _check_kinds(self, self.row_kinds)

    @classmethod
    @untraced
    def from_params(
        cls,
        params: Sequence[SamplingParams],
        *,
        device: torch.device | str | None = None,
        positions: Sequence[int] | Tensor | None = None,
        row_index: Sequence[int] | Tensor | None = None,
    ) -> SamplingMetadata:
        """Check the parameters of a batch and lay them out as tensors, once; no later call waits for the device.

        :param params: one entry a request (slot).
        :param device: device of the logits; None: the CPU.
        :param positions: one integer a logits row; needed as soon as one request has a seed.
        :param row_index: slot of each logits row, where several rows belong to one request.
        :raises InvalidParameterError: a ValueError that names the field, the row and the value.
        """
        host = {name: [check(p, row) for row, p in enumerate(params)] for name, check in CHECKS.items()}
        seeds, orders, logprobs = host["seed"], host["filter_order"], host["logprobs"]
        has_seed = [seed is not None for seed in seeds]
        if any(has_seed) and positions is None:
            raise InvalidParameterError(
                f"'seed' of row {has_seed.index(True)} needs 'positions', found none: without them every step would "
                "draw with the same noise. Pass positions, one integer a row: the sequence length minus one."
            )
        slots = None if isinstance(row_index, Tensor) else checked_slots(row_index, len(params))
        row_kinds = RowKinds.checked(host, slots)
        facts = BatchFacts.merged(row_kinds.kinds)
        device = torch.device(device or "cpu")
        real = torch.float32 if device.type == "mps" else torch.float64  # so that 0.9 stays 0.9

        def column(values: Sequence[float | int | bool], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        with torch.inference_mode(False):  # inference tensors do not count their changes
            return cls(
                temperature=column(host["temperature"], real),
                top_k=column(host["top_k"], torch.int64),
                top_p=column(host["top_p"], real),
                min_p=column(host["min_p"], real),
                seed=column([s or 0 for s in seeds], torch.int64) if any(has_seed) else None,
                seeded=column(has_seed, torch.bool) if any(has_seed) else None,
                positions=_indices("positions", positions, device),
                row_index=_indices("row_index", row_index if slots is None else slots, device),
                joint=column([o == "joint" for o in orders], torch.bool) if facts.any_joint else None,
                logprobs=column([n or 0 for n in logprobs], torch.int64)
                if facts.max_logprobs is not None
                else None,
                facts=facts,
                row_kinds=row_kinds,
            )

    @property
    def num_rows(self) -> int | None:
        """How many logits rows it describes; None if it holds no tensor and so fits any batch."""
        for tensor in (self.row_index, self.positions, *self._slot_tensors().values()):
            if tensor is not None:
                return tensor.shape[0]
        return None

    @property
    def device(self) -> torch.device | None:
        """Device of its tensors; None if it holds none."""
        for tensor in (self.row_index, self.positions, *self._slot_tensors().values()):
            if tensor is not None:
                return tensor.device
        return None

    @untraced
    def with_positions(self, positions: Tensor) -> SamplingMetadata:
        """The same parameters at other positions [rows]: what an engine does at each step, unless in place."""
        return replace(self, positions=positions)

    def per_row(self, name: str) -> Tensor | None:
        """The parameter ``name`` spread over the logits rows: [rows], or None where it is off for all."""
        tensor: Tensor | None = getattr(self, name)
        if tensor is None or self.row_index is None or name == "positions":
            return tensor
        return tensor[self.row_index]

    def _kind_tensors(self) -> tuple[Tensor | None, ...]:
        """Those that decide of which kind a row is."""
        return (self.row_index, *(getattr(self, name) for name in _SLOT_FIELDS))

    def _slot_tensors(self) -> dict[str, Tensor | None]:
        return {name: getattr(self, name) for name in _SLOT_FIELDS}


_SLOT_FIELDS = ("temperature", "top_k", "top_p", "min_p", "seed", "seeded", "joint", "logprobs")


def _tightened(metadata: SamplingMetadata) -> BatchFacts:
    """A parameter whose tensor is absent is off: say so, whatever the caller left at "may hold"."""
    facts, m = metadata.facts, metadata
    max_top_k = facts.max_top_k if m.top_k is not None else 0
    any_top_p = facts.any_top_p and m.top_p is not None
    any_min_p = facts.any_min_p and m.min_p is not None
    return replace(
        facts,
        any_greedy=facts.any_greedy and m.temperature is not None,
        any_seeded=facts.any_seeded and m.seed is not None,
        all_seeded=facts.all_seeded or (m.seed is not None and m.seeded is None),
        max_top_k=max_top_k,
        all_top_k=facts.all_greedy
        or (facts.all_top_k and m.top_k is not None and facts.max_top_k is not None),
        any_top_p=any_top_p,
        any_min_p=any_min_p,
        any_joint=facts.any_joint and m.joint is not None,
        any_top_k_first=facts.any_top_k_first and any_top_p and (max_top_k != 0 or any_min_p),
    )


def _check_shapes(metadata: SamplingMetadata) -> None:
    tensors = {n: t for n, t in metadata._slot_tensors().items() if t is not None}
    rows = {n: t for n in ("positions", "row_index") if (t := getattr(metadata, n)) is not None}
    for name, tensor in (tensors | rows).items():
        if tensor.dim() != 1:
            raise InvalidParameterError(f"'{name}' needs one dimension, found shape {list(tensor.shape)}.")
    for group in (tensors if metadata.row_index is not None else tensors | rows, rows):
        lengths = {name: tensor.shape[0] for name, tensor in group.items()}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise InvalidParameterError(f"the tensors need one length, found {found}.")
    devices = {name: tensor.device for name, tensor in (tensors | rows).items()}
    if len(set(devices.values())) > 1:
        found = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise InvalidParameterError(f"the tensors need one device, found {found}.")
    for name in ("seeded", "joint"):
        if name in tensors and tensors[name].dtype != torch.bool:
            raise InvalidParameterError(f"'{name}' needs dtype torch.bool, found {tensors[name].dtype}.")
    for name in ("temperature", "top_p", "min_p"):
        if name in tensors and not tensors[name].is_floating_point():
            raise InvalidParameterError(
                f"'{name}' needs a floating-point dtype, found {tensors[name].dtype}."
            )
    for name in ("top_k", "seed", "logprobs", "positions", "row_index"):
        tensor = (tensors | rows).get(name)
        if tensor is not None and (tensor.is_floating_point() or tensor.dtype == torch.bool):
            raise InvalidParameterError(f"'{name}' needs an integer dtype, found {tensor.dtype}.")


def _check_kinds(metadata: SamplingMetadata, row_kinds: RowKinds) -> None:
    slots = {len(t) for t in metadata._slot_tensors().values() if t is not None}
    if slots and slots != {len(row_kinds.of_slot)}:
        raise InvalidParameterError(
            f"'row_kinds' needs one entry a slot, {slots.pop()}, found {len(row_kinds.of_slot)}."
        )
    rows = metadata.row_index
    if rows is not None and row_kinds.slot_of_row is not None and len(rows) != len(row_kinds.slot_of_row):
        raise InvalidParameterError(
            f"'row_kinds' needs the slots of as many rows as 'row_index' has, {len(rows)}, "
            f"found {len(row_kinds.slot_of_row)}. Pass row_index= to RowKinds.of."
        )


def _indices(name: str, values: Sequence[int] | Tensor | None, device: torch.device) -> Tensor | None:
    """A [rows] int64 tensor; values that are on the host are checked, values on a device are not."""
    if values is None or isinstance(values, Tensor):
        return None if values is None else values.to(device=device, dtype=torch.int64)
    checked = [integer(name, value, row, 0, 2**63 - 1) for row, value in enumerate(values)]
    return torch.tensor(checked, dtype=torch.int64, device=device)
