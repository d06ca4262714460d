"""Configurations of the kernels' launches, by architecture: chosen from a table, never tuned at run time.

No configuration changes what is drawn. A tile is always reduced by one warp in the same order, so a configuration only
says how many tiles, warps and granules work side by side.

What led to the entries, on an H200 (torch 2.11, Triton 3.6), microseconds:

=========================================  =======  =======  =======  =======  =======
tiles, warps a program of the first pass      1, 1     2, 1     2, 2     4, 4     4, 2
=========================================  =======  =======  =======  =======  =======
1024 x 151936 bfloat16 (read 70.1)            94.4     77.8     77.2     78.2     77.2
64 x 128256 bfloat16 (read 5.6)                7.2      7.3      7.3      7.5      7.5
64 x 128256 float32 (read 9.3)                10.4     10.9     10.4     11.0     12.1
1 x 128256 bfloat16 (read 1.9)                 2.4      3.0      2.9      2.9      3.5
1 x 128256 float32 (read 2.0)                  2.5      2.9      2.5      3.1      4.2
=========================================  =======  =======  =======  =======  =======

The whole call, top-k and top-p, by the registers of the launch over the rows: 1024 x 151936 float32 takes 198.5 with
128, 209.9 with 96, 223.1 with 80 (read 137.4), and 217.0 with all that it wants and 64 granules at once; 1 x 128256
takes 17.1, 18.0, 19.0 and 16.7. Two warps a row took 22.8 there and gained 2 % at 1024 rows; eight gained 3 % and lost
8 %. (Before bounds and candidates were found with fewer exchanges, which took the last one from 16.4 to 12.4.) To
begin a launch while the one before ends (programmatic dependent launch) gains 0.6 at one row, and costs 7 at 256.

Without filters, by the warps of that launch, 4 and 8: 1 x 128256 takes 6.9 and 5.9, 64 x 128256 bfloat16 12.1 and 11.0.

The whole call, top-p on gaussian logits, by warps, programs a multiprocessor and registers of the launch for large
sets:

==========================================  ==========  ==========  =============  =============  =============
warps, programs, registers                   4, 4, 128   8, 2, 128      4, 6, 80*      8, 3, 80*      4, 5, 96
==========================================  ==========  ==========  =============  =============  =============
1 x 128256 bfloat16 (read 1.9)                    28.7        27.0           29.0           27.1           29.3
64 x 128256 float32 (read 9.1)                    81.4        74.1           91.3           81.0           96.1
256 x 151936 float32 (read 35.7)                 149.7       143.7          162.5          157.2          175.9
1024 x 151936 float32 (read 135.0)               388.0       390.2          417.2          408.8          472.6
1024 x 151936 bfloat16 (read 68.9)               305.5       326.2          282.0          289.6          319.3
==========================================  ==========  ==========  =============  =============  =============

With * nothing was read ahead; to read two groups ahead took 445 in the last line. One group it is.

That launch in a verification with top-p alone on gaussian logits, by the parts of a row in its later passes: 256
requests with four drafts, V = 151936, bfloat16, take 869 with 16, 803 with 4 and 797 with 2; 64 requests 243, 231 and
240.

AMD's entry is not measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True, eq=False)
class Configuration:
    """A configuration of the launches; it equals only itself, so that it is quickly looked up."""

    span: int = 1
    """Tiles a program of the first pass, of float32 logits."""
    span_half: int = 2
    """Tiles a program of the first pass, of bfloat16 and float16 logits."""
    tile_warps: int = 1
    """Warps a program of the first pass; at most as many as it has tiles."""
    raw_registers: int | None = None
    """Most registers a thread there, for float32 logits that are weighed at T = 1, too. NVIDIA."""
    raw_registers_half: int | None = None
    """Most registers a thread there, for bfloat16 and float16 logits."""
    row_warps: int = 4
    """Warps that draw a row. The same in all configurations of a kind of device: its sums depend on it."""
    plain_row_warps: int = 4
    """Warps that draw a row without filters, where no sum is formed."""
    row_registers: int | None = None
    """Most registers a thread there; None: as many as the compiler takes. NVIDIA."""
    granules_at_once: int = 32
    """Granules that a row reads at once: more take registers, fewer take turns."""
    large_set_warps: int = 4
    """Warps a program of the launch for large sets, and tiles that it reads at once."""
    large_set_registers: int | None = None
    """Most registers a thread there. NVIDIA."""
    large_set_programs: int = 4
    """Programs a multiprocessor of that launch."""
    large_set_exact_parts: int = 16
    """Parts of a row in its later passes there, where thresholds are wanted."""


TABLE = MappingProxyType(
    {
        "cuda": Configuration(
            raw_registers=80,
            raw_registers_half=96,
            row_registers=128,
            large_set_registers=128,
            large_set_exact_parts=4,
        ),
        "cuda, few rows": Configuration(
            span_half=1,
            plain_row_warps=8,
            granules_at_once=64,
            large_set_warps=8,
            large_set_programs=2,
            large_set_registers=128,
        ),
        "hip": Configuration(span=4, span_half=4, tile_warps=4),
    }
)
"""Choose by the kind of device, and by the shape where that matters."""

FEW_ROWS = 128
"""Rows, at most, where what happens once a row counts more than what happens once a tile."""

_forced: ContextVar[Configuration | None] = ContextVar("_forced", default=None)


@contextlib.contextmanager
def forced(configuration: Configuration) -> Iterator[None]:
    """Launch with this one inside the context, whatever the device: for tests and measurements."""
    token = _forced.set(configuration)
    try:
        yield
    finally:
        _forced.reset(token)


def forced_here() -> Configuration | None:
    """Return the configuration that :func:`forced` has set, or None."""
    return _forced.get()


def chosen(family: str, rows: int) -> Configuration:
    """Look up the configuration for a batch.

    :param family: ``cuda`` or ``hip``; ``cpu`` for the interpreter, which takes the one of ``cuda``.
    """
    forced_one = forced_here()
    if forced_one is not None:
        return forced_one
    if family == "hip":
        return TABLE["hip"]
    return TABLE["cuda, few rows" if rows <= FEW_ROWS else "cuda"]
