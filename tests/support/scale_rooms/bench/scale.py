"""Timing the operation ``scale`` of the tests: all that the bench needs to know of it."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch

import tokendraw
from tokendraw.bench import Cell
from tokendraw.bench.operation import Axis, BenchOperation, Preset


@dataclass(frozen=True)
class ScaleCell(Cell):
    operation: ClassVar[str] = "scale"
    factor: int = 2


_PRESET = Preset(
    shapes=((2, 200),),
    dtypes=("float32",),
    filters=("none",),
    families=("flat",),
    axes={"factor": (2, 3)},
)
BENCH = BenchOperation(
    name="scale",
    cell=ScaleCell,
    presets=MappingProxyType({"quick": _PRESET, "design": _PRESET}),
    axes=(Axis(field="factor", option="--factor", help="Of all rows.", about="numbers to scale"),),
    note="Numbers are multiplied.",
    make_buffer=lambda cell, device, generator: torch.ones(cell.num_rows, cell.vocab_size, device=device),
    load=lambda name, device, dtype, vocab_size: tokendraw.load("scale", name, device=device),
    lacking=lambda capabilities, cell, metadata: None if cell.factor < 3 else "factors above 2",
    step=lambda provider, cell, metadata: lambda rows: provider.scale(rows, cell.factor),
)
