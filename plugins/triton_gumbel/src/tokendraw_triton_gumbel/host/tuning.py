"""Configurations of the launches, by architecture and batch size: read from a table, never tuned at run time.

No configuration changes what is drawn: one warp reduces a tile, always in the same order. ``benchmarks/results/
h200_triton_gumbel_tuning.md`` has the measurements behind the entries; the entry of AMD is not measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True, eq=False)
class Configuration:
    """Warps, tiles, registers and programs of the launches; compared by identity, as a part of cache keys."""

    span_float32: int = 1
    """Tiles a program of the first pass, of float32 logits."""
    span_16_bit: int = 2
    """Tiles a program of the first pass, of bfloat16 and float16 logits."""
    tile_warps: int = 1
    """Warps a program of the first pass; at most as many as tiles."""
    raw_registers_float32: int | None = None
    """Limit of registers a thread of the first pass where it also sums at T = 1, of float32 logits. NVIDIA."""
    raw_registers_16_bit: int | None = None
    """The same limit, of bfloat16 and float16 logits."""
    row_warps: int = 4
    """Warps that draw a row. The same in all configurations of a kind of device: sums depend on it."""
    plain_row_warps: int = 4
    """Warps that draw a row without filters, where nothing is summed."""
    row_registers: int | None = None
    """Limit of registers a thread that draws a row; None: no limit. NVIDIA."""
    granules_at_once: int = 32
    """Granules that a row reads at once: more take registers, fewer take turns."""
    large_set_warps: int = 4
    """Warps a program of the launch for large sets, and tiles that it reads at once."""
    large_set_registers: int | None = None
    """Limit of registers a thread of the launch for large sets. NVIDIA."""
    large_set_programs: int = 4
    """Programs a multiprocessor of the launch for large sets."""
    large_set_exact_parts: int = 16
    """Parts of a row in its passes after the first, where thresholds are wanted."""

    def span(self, itemsize: int) -> int:
        """Return the tiles a program of the first pass, of logits of ``itemsize`` bytes."""
        return self.span_float32 if itemsize == 4 else self.span_16_bit

    def raw_registers(self, itemsize: int) -> int | None:
        """Return the limit of registers a thread of a first pass with sums at T = 1."""
        return self.raw_registers_float32 if itemsize == 4 else self.raw_registers_16_bit


TABLE = MappingProxyType(
    {
        "cuda": Configuration(
            raw_registers_float32=80,
            raw_registers_16_bit=96,
            row_registers=128,
            large_set_registers=128,
            large_set_exact_parts=4,
        ),
        "cuda, few rows": Configuration(
            span_16_bit=1,
            plain_row_warps=8,
            granules_at_once=64,
            large_set_warps=8,
            large_set_programs=2,
            large_set_registers=128,
        ),
        "hip": Configuration(span_float32=4, span_16_bit=4, tile_warps=4),
    }
)
"""The configurations by kind of device and, on NVIDIA, by batch size."""

SMALL_BATCH_ROWS = 128
"""Upper limit of rows of a small batch, where work once a row costs more than work once a tile."""

_override: ContextVar[Configuration | None] = ContextVar("_override", default=None)
current_override = _override.get
"""Returns the configuration that :func:`override` has set, or None."""


@contextlib.contextmanager
def override(configuration: Configuration) -> Iterator[None]:
    """Launch with ``configuration`` inside the context, whatever the device: for tests and measurements."""
    token = _override.set(configuration)
    try:
        yield
    finally:
        _override.reset(token)


def configuration_for(family: str, rows: int) -> Configuration:
    """Look up the configuration for a batch.

    :param family: ``cuda`` or ``hip``; ``cpu`` for the interpreter, which takes the one of ``cuda``.
    """
    overriding = current_override()
    if overriding is not None:
        return overriding
    if family == "hip":
        return TABLE["hip"]
    return TABLE["cuda, few rows" if rows <= SMALL_BATCH_ROWS else "cuda"]
