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
from typing import Any, Self

import torch
from torch import Tensor

from tokendraw.parameters.fields import FACT_OF_COLUMN, FILTER_PARAMETERS, PARAMETERS
from tokendraw.parameters.metadata import SamplingMetadata, field_dtypes

__all__ = ["PerRow", "RowParameters", "filter_columns", "widest_float"]

_DEFAULT_XTC_THRESHOLD = next(p.neutral for p in PARAMETERS if p.name == "xtc_threshold")


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


def filter_columns(metadata: SamplingMetadata) -> dict[str, Tensor | None]:
    """Spread the filters and filter orders of a batch over its rows, without any change of values.

    :returns: by name: [rows], of the caller's dtype but no integer below int32; None where the host rules it out.
    """
    may_use = metadata.facts.may_use
    return {name: metadata.per_row(name) if may_use(name) else None for name in FACT_OF_COLUMN}


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
    :ivar filters: [rows, F] float32: the value of each filter from moments, for
        :func:`tokendraw.filters.combined_floor`.
    :ivar filter_names: Names of these F filters.
    :ivar typical_p: In the widest float. 1 and above is off.
    :ivar xtc_probability: In the widest float. 0 and below, and NaN, are off.
    :ivar xtc_threshold: In the widest float; None where no row may have XTC.
    :ivar temperature_last: bool: rows whose filters look at temperature 1, with min-p behind top-p.
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
    filters: Tensor | None = None
    filter_names: tuple[str, ...] = ()
    typical_p: Tensor | None = None
    xtc_probability: Tensor | None = None
    xtc_threshold: Tensor | None = None
    temperature_last: Tensor | None = None

    @classmethod
    def of(cls, metadata: SamplingMetadata, rows: int, device: torch.device) -> Self:
        """Read the parameters of a batch of ``rows`` rows."""
        facts, dtype = metadata.facts, widest_float(device)
        column, greedy = metadata.per_row("temperature"), None
        column = torch.ones(rows, dtype=dtype, device=device) if column is None else column
        temperature, largest = column.to(dtype).unsqueeze(-1), torch.finfo(dtype).max
        if facts.any_greedy:
            greedy = ~(temperature > 0)  # 0, below, and NaN
            temperature = torch.where(greedy, 1.0, temperature)
        temperature = temperature.clamp(max=largest)
        names, from_moments = metadata.filters_per_row() or ((), None)
        return cls(
            temperature=temperature,
            inverse_temperature=temperature.reciprocal().clamp_(max=largest),
            greedy=greedy,
            max_top_k=facts.max_top_k,
            all_top_k=facts.all_top_k,
            filters=from_moments,
            filter_names=names,
            **_clamped_filters(metadata, device),
        )

    @property
    def may_drop_tokens(self) -> bool:
        """Return whether a row may be greedy or have a filter."""
        names = ("greedy", "filters", *(p.name for p in FILTER_PARAMETERS))
        return any(getattr(self, name) is not None for name in names)

    @property
    def has_ceiling(self) -> Tensor | None:
        """Return the rows with typical-p or XTC, [rows, 1] bool; None where the host rules these out."""
        columns = []
        if self.typical_p is not None:
            columns.append(self.typical_p < 1)
        if self.xtc_probability is not None:
            columns.append(self.xtc_probability > 0)
        return None if not columns else columns[0] | columns[-1]


def _clamped_filters(metadata: SamplingMetadata, device: torch.device) -> dict[str, Any]:
    dtypes = field_dtypes(device.type)
    columns = filter_columns(metadata)
    for name, column in columns.items():
        columns[name] = None if column is None else column.to(dtypes[name]).unsqueeze(-1)
    for name in ("top_p", "typical_p"):
        if (column := columns[name]) is not None:
            columns[name] = column.nan_to_num(nan=1.0)
    if columns["xtc_threshold"] is None and (probability := columns["xtc_probability"]) is not None:
        columns["xtc_threshold"] = torch.full_like(probability, _DEFAULT_XTC_THRESHOLD)
    return columns


def widest_float(device: torch.device) -> torch.dtype:
    """Return the widest float of a device: float64, except on MPS."""
    return field_dtypes(device.type)["temperature"]
