"""Reads the sampling parameters of a batch by row, for samplers in plain torch and for kernels from probabilities.

:class:`RowParameters` are columns [rows, 1] in the widest float, clamped to their ranges; other forms, such as
:class:`tokendraw.probabilities.Filters`, begin with :func:`filter_columns`. Filters that the host can rule out cost no
operation, and no value is read on the host, so nothing waits for a device. Seeds and positions come from
:func:`tokendraw.philox.seeds_and_positions`.

::

    params = RowParameters.of(metadata, len(logits), logits.device)
    y = (x - x.amax(-1, keepdim=True)) * params.inverse_temperature
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from tokendraw.parameters.metadata import SamplingMetadata

__all__ = [
    "FilterColumns",
    "FilterPresence",
    "PerRow",
    "RowParameters",
    "Temperatures",
    "clamped_filters",
    "filter_columns",
    "widest_float",
]


class PerRow:
    """A base for frozen dataclasses whose tensors have one entry a row in their first dimension."""

    __slots__ = ()

    def chunk(self, rows: slice | Tensor) -> Self:
        """Return the record of some of the rows.

        :param rows: a slice, or row numbers as [n] int64.
        """
        record: Any = self
        values = {field.name: getattr(self, field.name) for field in fields(record)}
        tensors = {name: value[rows] for name, value in values.items() if isinstance(value, Tensor)}
        return replace(record, **tensors)  # type: ignore[no-any-return]


class FilterPresence(NamedTuple):
    """Filters that may occur in a batch, by the facts of the host.

    :ivar top_k: Whether a row may have a top-k.
    :ivar top_p: Whether a row may have a top-p.
    :ivar min_p: Whether a row may have a min-p.
    :ivar joint: Whether a row may have the filter order ``joint``.
    """

    top_k: bool
    top_p: bool
    min_p: bool
    joint: bool

    @classmethod
    def of(cls, metadata: SamplingMetadata) -> Self:
        """Read the facts of a batch."""
        facts = metadata.facts
        return cls(
            metadata.top_k is not None and facts.max_top_k != 0,
            metadata.top_p is not None and facts.any_top_p,
            metadata.min_p is not None and facts.any_min_p,
            metadata.joint is not None and facts.any_joint,
        )


class FilterColumns(NamedTuple):
    """The caller's filter parameters, spread over the rows: [rows] each, or None where the host rules a filter out.

    :ivar top_k: int32 or int64.
    :ivar top_p: Floating point.
    :ivar min_p: Floating point.
    :ivar joint: bool: rows whose top-p counts the unfiltered mass.
    """

    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None
    joint: Tensor | None


def filter_columns(metadata: SamplingMetadata) -> FilterColumns:
    """Spread the filters of a batch over its rows, without any change of values."""
    facts, per_row = metadata.facts, metadata.per_row
    return FilterColumns(
        per_row("top_k") if facts.max_top_k != 0 else None,
        per_row("top_p") if facts.any_top_p else None,
        per_row("min_p") if facts.any_min_p else None,
        per_row("joint") if facts.any_joint else None,
    )


class Temperatures(NamedTuple):
    """Temperatures [rows, 1] in the widest float.

    :ivar temperature: Positive and finite; 1 in greedy rows.
    :ivar inverse_temperature: 1 / temperature, clamped so that it is finite and 0 times it is 0.
    :ivar greedy: bool; None where the host rules greedy rows out.
    """

    temperature: Tensor
    inverse_temperature: Tensor
    greedy: Tensor | None

    @classmethod
    def of(cls, metadata: SamplingMetadata, rows: int, device: torch.device) -> Self:
        """Read the temperatures of a batch of ``rows`` rows."""
        dtype = widest_float(device)
        largest = torch.finfo(dtype).max
        column, greedy = metadata.per_row("temperature"), None
        if column is None:
            temperature = torch.ones(rows, 1, dtype=dtype, device=device)
        else:
            temperature = column.to(dtype).unsqueeze(-1)
        if metadata.facts.any_greedy:
            greedy = ~(temperature > 0)  # 0, below, and NaN
            temperature = torch.where(greedy, 1.0, temperature)
        temperature = temperature.clamp(max=largest)
        return cls(temperature, temperature.reciprocal().clamp_(max=largest), greedy)


@dataclass(frozen=True, slots=True)
class RowParameters(PerRow):
    """Sampling parameters [rows, 1] of a batch; None where the host rules a parameter out.

    :ivar temperature: Positive and finite, in the widest float; 1 in greedy rows.
    :ivar inverse_temperature: 1 / temperature, clamped so that it is finite and 0 times it is 0.
    :ivar greedy: bool.
    :ivar top_k: int64. 0 and below, and V and above, are off.
    :ivar top_p: In the widest float. 1 and above is off.
    :ivar min_p: In the widest float. 0 and below, and NaN, are off.
    :ivar joint: bool: rows whose top-p counts the unfiltered mass.
    :ivar max_top_k: Largest active k; None: unknown.
    :ivar all_top_k: Whether every row is greedy or has an active k.
    """

    temperature: Tensor
    inverse_temperature: Tensor
    greedy: Tensor | None
    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None
    joint: Tensor | None
    max_top_k: int | None
    all_top_k: bool

    @classmethod
    def of(cls, metadata: SamplingMetadata, rows: int, device: torch.device) -> Self:
        """Read the parameters of a batch of ``rows`` rows."""
        facts = metadata.facts
        return cls(
            *Temperatures.of(metadata, rows, device),
            *clamped_filters(filter_columns(metadata), device),
            facts.max_top_k,
            facts.all_top_k,
        )

    @property
    def may_drop_tokens(self) -> bool:
        """Return whether a row may be greedy or have a filter."""
        return not (self.greedy is self.top_k is self.top_p is self.min_p is None)


def clamped_filters(columns: FilterColumns, device: torch.device) -> FilterColumns:
    """Bring filters [rows] into the form of :class:`RowParameters`: [rows, 1]."""
    top_k, top_p, min_p, joint = columns
    dtype = widest_float(device)
    return FilterColumns(
        None if top_k is None else top_k.to(torch.int64).unsqueeze(-1),
        None if top_p is None else top_p.to(dtype).unsqueeze(-1).nan_to_num(nan=1.0),
        None if min_p is None else min_p.to(dtype).unsqueeze(-1),
        None if joint is None else joint.to(torch.bool).unsqueeze(-1),
    )


def widest_float(device: torch.device) -> torch.dtype:
    """Return the widest float of a device: float64, except on MPS."""
    return torch.float32 if device.type == "mps" else torch.float64
