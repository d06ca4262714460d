"""Times the operation ``pack_sm90_w4`` on random bytes: the values of weights change no time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from tokendraw.sm90_w4 import Format, Layout
from tokendraw_bench.operation import Axis, BenchOperation, Preset, copy_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokendraw_bench.timing.timer import Draw

_SCALES = "scales"
_SCALE_COLUMNS = 32
"""Logical columns of one scale."""
_DIRECTIONS = ("pack", "unpack")


@dataclass(frozen=True)
class PackCell:
    """A packing to time: of E experts with weights [N, K] of 4 bits, or their scales."""

    operation: ClassVar[str] = "pack_sm90_w4"
    experts: int
    rows: int
    """N."""
    columns: int
    """K, logical columns: two a byte of weights, 32 a scale."""
    format: str
    """Format of the weights, or ``scales``: their scales."""
    layout: Layout
    direction: Literal["pack", "unpack"]

    @property
    def method(self) -> str:
        """Name the timed method of a packer."""
        return f"{self.direction}_{_SCALES if self.format == _SCALES else 'weights'}"

    @property
    def natural_shape(self) -> tuple[int, int, int]:
        """Return the shape of the weights or scales in a checkpoint."""
        return self.experts, self.rows, self.columns // (_SCALE_COLUMNS if self.format == _SCALES else 2)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the input."""
        if self.direction == "pack" or self.format != _SCALES:
            return self.natural_shape
        experts, rows, groups = self.natural_shape
        if self.layout == "v1":
            return experts, groups // 4, 4 * rows
        return experts, rows // 64, groups // 4, 16, 16

    @property
    def nbytes(self) -> int:
        """Return the size of the input in bytes."""
        return math.prod(self.natural_shape)

    def __str__(self) -> str:
        shape = f"{self.experts} x {self.rows} x {self.columns}"
        return f"{shape} {self.format}, {self.direction} {self.layout}"


# The shape of GPT-OSS's first projection. K is 2880 there, which v2 and the scales take in whole tiles of 128 alone.
_COLUMNS, _TILED_COLUMNS = 2880, 2944
PRESETS = MappingProxyType(
    {
        "quick": Preset(
            shapes=(("fp4", "v1", 256), ("fp4", "v2", 256), (_SCALES, "v1", 256), (_SCALES, "v2", 256)),
            axes={"experts": (2,), "rows": (256,), "direction": _DIRECTIONS},
        ),
        "design": Preset(
            shapes=(
                ("fp4", "v1", _COLUMNS),
                ("fp4", "v2", _TILED_COLUMNS),
                ("int4", "v1", _COLUMNS),
                ("int4", "v2", _TILED_COLUMNS),
                ("fp4_fp8", "v2", _TILED_COLUMNS),
                (_SCALES, "v1", _TILED_COLUMNS),
                (_SCALES, "v2", _TILED_COLUMNS),
            ),
            axes={"experts": (32,), "rows": (5760,), "direction": _DIRECTIONS},
        ),
    }
)


def _axis(field: str, noun: str, choices: tuple[str, ...] = (), minimum: int = 1) -> Axis:
    return Axis(
        field=field,
        help=f"{noun}, with --op pack_sm90_w4; may be given again.",
        subject="weights to pack",
        choices=choices,
        minimum=minimum,
    )


AXES = (
    _axis("experts", "Matrices of weights"),
    _axis("rows", "Rows N of each", minimum=16),
    _axis("columns", "Logical columns K of each", minimum=64),
    _axis("format", "Format of the weights, or scales for theirs", (*get_args(Format), _SCALES)),
    _axis("layout", "Layout that is packed into or unpacked", get_args(Layout)),
    _axis("direction", "Whether to pack or to unpack", _DIRECTIONS),
)


def _make_inputs(cell: PackCell, device: torch.device, generator: torch.Generator) -> Tensor:
    import torch

    return torch.randint(256, cell.shape, generator=generator, device=device, dtype=torch.uint8)


def _step(packer: Any, cell: PackCell, arguments: None) -> Draw:
    options = {} if cell.format == _SCALES else {"format": cell.format}
    return partial(getattr(packer, cell.method), layout=cell.layout, **options)


BENCH = BenchOperation(
    name="pack_sm90_w4",
    cell=PackCell,
    axes=AXES,
    shape=("format", "layout", "columns"),
    presets=PRESETS,
    floor=copy_of("the bytes that go in", lambda inputs: inputs),
    make_inputs=_make_inputs,
    step=_step,
    measured=lambda cell, inputs: {"bytes": cell.nbytes},
)
