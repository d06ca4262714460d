"""Timing the operation ``scale`` of the tests: all that the bench needs to know of it."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch

from tokendraw_bench.operation import Axis, BenchOperation, Preset, copy_of


@dataclass(frozen=True)
class ScaleCell:
    operation: ClassVar[str] = "scale"
    rows: int
    factor: int

    @property
    def nbytes(self) -> int:
        return 4 * self.rows


_PRESET = Preset(shapes=((2,), (3,)), axes={"factor": (2, -3)})
BENCH = BenchOperation(
    name="scale",
    cell=ScaleCell,
    axes=(
        Axis(field="rows", option="--rows-to-scale", title="numbers", help="A row each.", subject="scaling"),
        Axis(field="factor", option="--factor", help="Of all rows.", subject="scaling", changes_inputs=False),
    ),
    shape=("rows",),
    presets=MappingProxyType({"quick": _PRESET, "design": _PRESET}),
    floor=copy_of("the numbers", lambda numbers: numbers),
    make_inputs=lambda cell, device, generator: torch.ones(cell.rows, device=device),
    step=lambda scaler, cell, arguments: lambda numbers: scaler.scale(numbers, cell.factor),
    measured=lambda cell, numbers: {"sum": float(numbers.sum())},
    note="Numbers are multiplied.",
)
