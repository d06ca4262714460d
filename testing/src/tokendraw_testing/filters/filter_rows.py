"""Rows of logits with a value of the filter, and their moments and floors in float64."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from tokendraw.filters import Filter, RowMoments
from tokendraw_testing import reference_floors
from tokendraw_testing.filters.floor_calls import floors, read_moments
from tokendraw_testing.reference import SortedLogits
from tokendraw_testing.sample.filters_from_moments import designs

Array = NDArray[Any]

TEMPERATURES: Final = (1.0, 0.7, 2.5, 0.003, 1e-6, 150.0)
_TOPS: Final = (0.0, -3.0, 20.0)
"""Largest logits of rows."""


@dataclass(frozen=True)
class FilterRow:
    """Row with the filter.

    :ivar design: The shape of the row in words.
    :ivar logits: [V] on the CPU, in the dtype of its batch.
    :ivar temperature: A float32.
    :ivar value: The value of the filter, a float32.
    """

    design: str
    logits: Tensor
    temperature: float
    value: float

    def __str__(self) -> str:
        dtype = str(self.logits.dtype).removeprefix("torch.")
        return (
            f"{self.design}, {dtype}, {len(self.logits)} tokens, temperature {self.temperature:g}, "
            f"value {self.value:g}"
        )

    @property
    def levels(self) -> SortedLogits:
        """Return the row, read and sorted in float64."""
        return SortedLogits.of(self.logits.double().numpy())

    @property
    def y(self) -> Array:
        """Return y of the finite logits, [n] float64."""
        y = self.levels.scaled(self.temperature)
        return y[y > -np.inf]


def make_rows(
    rng: Generator, sizes: Iterable[int], dtypes: Sequence[torch.dtype], values: Sequence[float]
) -> list[FilterRow]:
    """Make a row of each design and size for each value; dtypes and temperatures take turns."""
    rows: list[FilterRow] = []
    shapes = [(design, y) for size in sizes for design, y in designs(rng, size).items()]
    for i, (design, y) in enumerate(shapes):
        for j, value in enumerate(values):
            temperature = float(np.float32(TEMPERATURES[(i + j) % len(TEMPERATURES)]))
            with np.errstate(over="ignore"):
                logits = torch.from_numpy(y * temperature + _TOPS[j % len(_TOPS)])
            rows.append(FilterRow(design, logits.to(dtypes[(2 * i + j) % len(dtypes)]), temperature, value))
    return rows


def moments_of(rule: Filter, rows: Sequence[FilterRow]) -> RowMoments:
    """Compute the moments that a filter reads, [rows] float64."""
    found = []
    for row in rows:
        levels = row.levels
        found.append(reference_floors.moments(levels.depths(row.temperature), levels.levels[1]))
    fields = {"count": "number"}
    return read_moments(
        rule,
        lambda name: torch.tensor(
            [getattr(row, fields.get(name, name)) for row in found], dtype=torch.float64
        ),
    )


def values_of(rows: Sequence[FilterRow], dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the values of the filter in some rows, [rows]."""
    return torch.tensor([row.value for row in rows], dtype=dtype)


def reference_floors_of(rule: Filter, rows: Sequence[FilterRow]) -> list[float]:
    """Return the clamped floor of each row, by the filter's own code in float64.

    :raises Violation: that code raised.
    """
    found: list[float] = floors(rule, moments_of(rule, rows), values_of(rows)).tolist()
    return found
