"""The shapes of weights and scales, natural and packed, and their required multiples by layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tokendraw.backends.description.weight_layouts import Layout

Shape: TypeAlias = Sequence[int]

ROWS: Final[dict[Layout, int]] = {"v1": 16, "v2": 64}
COLUMNS: Final[dict[Layout, int]] = {"v1": 64, "v2": 128}
GROUP: Final = 32
"""Columns of a scale."""
_SCALED_COLUMNS: Final = 128
"""Columns of scales stored together in either layout."""


@dataclass(frozen=True)
class Multiple:
    """A dimension required to be a multiple of a number."""

    name: str
    """In words, such as ``N, dimension 1,``."""
    dimension: int
    times: int
    """Factor of the dimension: two columns of weights a byte, 32 a scale."""
    of: int


@dataclass(frozen=True)
class TensorForm:
    """The form of a call's tensor, and the shape of its result."""

    shape: str
    """Its dimensions in words."""
    multiples: tuple[Multiple, ...]
    result: Callable[[Shape], tuple[int, ...]]
    """Computes the shape of the result from the shape of the tensor."""
    last: tuple[int, ...] = ()
    """Sizes of its last dimensions, if the layout fixes them."""

    @property
    def dimensions(self) -> int:
        """Number of dimensions."""
        return self.shape.count(",") + 1


def weights(layout: Layout) -> TensorForm:
    """Return the form of weights; packing keeps their shape."""
    rows = Multiple("N, dimension 1,", 1, 1, ROWS[layout])
    columns = Multiple("K, twice dimension 2,", 2, 2, COLUMNS[layout])
    return TensorForm("[E, N, K / 2]", (rows, columns), tuple)


def scales(layout: Layout) -> TensorForm:
    """Return the form of scales as a quantizer makes them."""
    rows = Multiple("N, dimension 1,", 1, 1, ROWS[layout])
    columns = Multiple(f"K, {GROUP} times dimension 2,", 2, GROUP, _SCALED_COLUMNS)
    result = _packed_v1 if layout == "v1" else _packed_v2
    return TensorForm(f"[E, N, K / {GROUP}]", (rows, columns), result)


def packed_scales(layout: Layout) -> TensorForm:
    """Return the form of packed scales."""
    if layout == "v1":
        rows = Multiple("4 N, dimension 2,", 2, 1, 4 * ROWS[layout])
        return TensorForm("[E, K / 128, 4 N]", (rows,), _unpacked_v1)
    return TensorForm("[E, N / 64, K / 128, 16, 16]", (), _unpacked_v2, last=(16, 16))


def _packed_v1(shape: Shape) -> tuple[int, ...]:
    experts, rows, groups = shape
    return experts, groups // 4, 4 * rows


def _packed_v2(shape: Shape) -> tuple[int, ...]:
    experts, rows, groups = shape
    return experts, rows // 64, groups // 4, 16, 16


def _unpacked_v1(shape: Shape) -> tuple[int, ...]:
    experts, blocks, values = shape
    return experts, values // 4, 4 * blocks


def _unpacked_v2(shape: Shape) -> tuple[int, ...]:
    return shape[0], 64 * shape[1], 4 * shape[2]
