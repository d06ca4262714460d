"""Divides a row into tiles of 1024 ids, each of 16 granules of 64.

A warp owns a tile, and a block of tiles has the dimensions [lane, tile, chunk, vector], in the order in which the
compiler hands out lanes, warps and registers: so every reduction of a tile stays in registers and shuffles. A granule
is what four neighbouring lanes hold of one half of the tile: runs of four vectors, one of every chunk of that half.
Four vectors are the 64 bytes that memory is read in.
"""

from __future__ import annotations

import triton
import triton.language as tl

TILE_SIZE = tl.constexpr(1024)
"""Ids a tile."""
GRANULES_PER_TILE = tl.constexpr(16)
GRANULE_SIZE = tl.constexpr(64)
"""Ids a granule."""
GRANULE_LANES = tl.constexpr(4)
"""Neighbouring lanes that hold a granule."""
GRANULES_PER_HALF = tl.constexpr(8)
"""Granules of the first half of a tile, which come before those of the second."""
LANES = tl.constexpr(32)
"""Threads of a tile; on AMD too, where 32 threads are half a wavefront."""
VECTORS = {"float32": 4, "bfloat16": 8, "float16": 8}
"""Neighbouring logits a lane, 16 bytes, by dtype. Fixed: it decides the logits of a granule."""


@triton.jit
def element_ids(SPAN: tl.constexpr, VECTOR: tl.constexpr):
    """Return the ids within ``SPAN`` neighbouring tiles: [LANES, SPAN, chunks, VECTOR]."""
    lane = tl.arange(0, LANES)[:, None, None, None]
    tile = tl.arange(0, SPAN)[None, :, None, None]
    chunk = tl.arange(0, TILE_SIZE // (LANES * VECTOR))[None, None, :, None]
    element = tl.arange(0, VECTOR)[None, None, None, :]
    return tile * TILE_SIZE + chunk * (LANES * VECTOR) + lane * VECTOR + element


@triton.jit
def granule_ids(granule, element, VECTOR: tl.constexpr):
    """Return the id of an element in [0, 64) of a granule."""
    RUN: tl.constexpr = GRANULE_LANES * VECTOR
    first = (granule // GRANULES_PER_HALF) * (TILE_SIZE // 2) + (granule % GRANULES_PER_HALF) * RUN
    return first + (element // RUN) * (LANES * VECTOR) + element % RUN


@triton.jit
def lane_sums(block):
    """Sum [LANES, SPAN, chunks, VECTOR] to [LANES, SPAN]."""
    return tl.sum(tl.sum(block, 3), 2)


@triton.jit
def tile_sums(block):
    """Sum [LANES, SPAN, chunks, VECTOR] to [SPAN]."""
    return tl.sum(lane_sums(block), 0)
