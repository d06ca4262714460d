"""The parameters of a batch as tensors, and what the host knows about them without looking at the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tokendraw._errors import InvalidParameterError
from tokendraw._parameters import CHECKS, integer, widest
from tokendraw._params import SamplingParams


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchFacts:
    """What a batch may hold, known without reading the device. The defaults say "anything".

    ``any_*`` must be True unless no row is of that kind, ``all_*`` may be True only if every row is.
    """

    any_greedy: bool = True
    all_greedy: bool = False
    any_seeded: bool = True
    all_seeded: bool = False
    max_top_k: int | None = None
    """Largest active top_k; 0: no row has one; None: unknown."""
    all_top_k: bool = False
    """Whether every row is greedy or has an active top_k: none keeps more than ``max_top_k`` tokens, ties apart."""
    any_top_p: bool = True
    any_min_p: bool = True
    any_joint: bool = True
    any_top_k_first: bool = True
    """Whether a row of the order ``top_k_first`` may have top-p beside another filter: alone, both orders agree."""
    max_logprobs: int | None = None
    """Largest ``SamplingParams.logprobs`` of the batch (-1: a row wants all); None: no row wants any."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SamplingMetadata:
    """The parameters of a batch: tensors [slots] on the device of the logits, None where a parameter is off for all.

    Build it with :meth:`from_params`, which checks every value, or from ready tensors, whose values are not read
    (that would wait for the device) but clamped where they are used: ``top_k`` <= 0 or >= V, ``top_p`` >= 1 or NaN
    and ``min_p`` <= 0 or NaN are off, ``top_p`` <= 0 keeps only the likeliest, ``temperature`` <= 0 or NaN is greedy.

    Tensors may be changed in place between calls, also between replays of a CUDA graph, as long as ``facts`` stays
    true of them.
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
    facts: BatchFacts = BatchFacts()

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

    @classmethod
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
        facts = BatchFacts(
            any_greedy=0.0 in host["temperature"],
            all_greedy=bool(params) and all(t == 0.0 for t in host["temperature"]),
            any_seeded=any(has_seed),
            all_seeded=bool(params) and all(has_seed),
            max_top_k=max(host["top_k"], default=0),
            all_top_k=bool(params)
            and all(k or not t for k, t in zip(host["top_k"], host["temperature"], strict=True)),
            any_top_p=any(p < 1.0 for p in host["top_p"]),
            any_min_p=any(p > 0.0 for p in host["min_p"]),
            any_joint="joint" in orders,
            any_top_k_first=any(
                order == "top_k_first" and p < 1.0 and (k > 0 or m > 0.0)
                for order, p, k, m in zip(orders, host["top_p"], host["top_k"], host["min_p"], strict=True)
            ),
            max_logprobs=widest(logprobs),
        )
        device = torch.device(device or "cpu")
        real = torch.float32 if device.type == "mps" else torch.float64  # so that 0.9 stays 0.9
        return cls(
            temperature=torch.tensor(host["temperature"], dtype=real, device=device),
            top_k=torch.tensor(host["top_k"], dtype=torch.int64, device=device),
            top_p=torch.tensor(host["top_p"], dtype=real, device=device),
            min_p=torch.tensor(host["min_p"], dtype=real, device=device),
            seed=torch.tensor([s or 0 for s in seeds], dtype=torch.int64, device=device)
            if any(has_seed)
            else None,
            seeded=torch.tensor(has_seed, dtype=torch.bool, device=device) if any(has_seed) else None,
            positions=_indices("positions", positions, device),
            row_index=_indices("row_index", row_index, device, below=len(params)),
            joint=torch.tensor([o == "joint" for o in orders], dtype=torch.bool, device=device)
            if facts.any_joint
            else None,
            logprobs=torch.tensor([n or 0 for n in logprobs], dtype=torch.int64, device=device)
            if facts.max_logprobs is not None
            else None,
            facts=facts,
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

    def with_positions(self, positions: Tensor) -> SamplingMetadata:
        """The same parameters at other positions [rows]: what an engine does at each step, unless in place."""
        return replace(self, positions=positions)

    def per_row(self, name: str) -> Tensor | None:
        """The parameter ``name`` spread over the logits rows: [rows], or None where it is off for all."""
        tensor: Tensor | None = getattr(self, name)
        if tensor is None or self.row_index is None or name == "positions":
            return tensor
        return tensor[self.row_index]

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


def _indices(
    name: str, values: Sequence[int] | Tensor | None, device: torch.device, below: int = 2**63
) -> Tensor | None:
    """A [rows] int64 tensor; values that are on the host are checked, values on a device are not."""
    if values is None or isinstance(values, Tensor):
        return None if values is None else values.to(device=device, dtype=torch.int64)
    checked = [integer(name, value, row, 0, below - 1) for row, value in enumerate(values)]
    return torch.tensor(checked, dtype=torch.int64, device=device)
