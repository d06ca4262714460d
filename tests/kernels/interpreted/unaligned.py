"""Rows at every address beside aligned copies, in Triton's interpreter: statistics of tiles, and loads of passes.

Pages without access enclose a row, so that a read outside ends the process.
"""

import ctypes
import mmap

import numpy as np
import torch
import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.arguments import (
    Counts,
    DraftRows,
    LargeSetConfig,
    Logits,
    MomentSums,
    RankedTokens,
    TileConfig,
    TileStatistics,
    WorkQueue,
)
from tokendraw_triton_gumbel.kernels.large_set_passes import as_logits, load_group
from tokendraw_triton_gumbel.kernels.rows import RowAddress
from tokendraw_triton_gumbel.kernels.tile_pass import tile_statistics
from tokendraw_triton_gumbel.kernels.values import element_ids
from tokendraw_triton_gumbel.plan import RowAccess, row_layout, tiles_of

TILES = 2
"""Tiles a program."""
CAPACITY = 4096
"""Logits between the pages without access."""


class GuardedMemory:
    """Memory for logits, between two pages without access."""

    def __init__(self, dtype):
        size, page = CAPACITY * dtype.itemsize, mmap.PAGESIZE
        self._pages = mmap.mmap(-1, size + 2 * page)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for address in (first, first + page + size):
            assert protect(ctypes.c_void_p(address), page, 0) == 0
        self.logits = torch.frombuffer(self._pages, dtype=dtype, count=CAPACITY, offset=page)


def statistics(rows, vector):
    """Return maxima, sums, sums at T = 1, granules, entropies, sums for moments and a rank of each row, as bits."""
    count, size = rows.shape
    tiles = tiles_of(size)
    out = TileStatistics(*(torch.zeros(count, tiles * n) for n in (1, 1, 1, 16, 1)))
    moments = MomentSums(*(torch.zeros(count, tiles) for _ in MomentSums._fields))
    ranked = RankedTokens(7 * torch.arange(count) % size, torch.zeros(count, dtype=torch.int64))
    access = RowAccess.of(row_layout(rows))
    tile_statistics[-(-tiles // TILES), count, 1](
        Logits(rows, rows.stride(0), size),
        DraftRows(),
        Counts(count, count, tiles, 0, 0),
        torch.full((count,), 0.7),
        None,
        None,
        out,
        moments,
        ranked,
        WorkQueue(),
        None,
        config=TileConfig(TILES, vector, access.is_aligned, IS_NVIDIA=False),
    )
    return torch.cat(
        (torch.cat((*out, *moments), 1).view(torch.int32), ranked.ranks.to(torch.int32)[:, None]), 1
    )


@triton.jit
def copy_groups(base, size, out, config: tl.constexpr):
    row = RowAddress(base, size)
    group = tl.program_id(0)
    ids = group * (config.WARPS * 1024) + element_ids(config.WARPS, config.VECTOR)
    tl.store(out + ids, as_logits(load_group(row, group, config), row, config))


def loaded(row, vector):
    """Return the logits of a row as the passes over large sets load them, as bits."""
    groups = -(-len(row) // (TILES * 1024))
    is_aligned = row.data_ptr() % 16 == 0
    config = LargeSetConfig(False, 256, 4, TILES, vector, is_aligned, 1, IS_NVIDIA=False)
    out = torch.zeros(groups * TILES * 1024)
    copy_groups[(groups,)](row, len(row), out, config=config)
    return out.view(torch.int32)


def compare(name):
    """Compare rows of a dtype at each address modulo 16: how many, and which differ."""
    dtype, rng, compared, wrong = getattr(torch, name), np.random.default_rng(5), 0, []
    vector = 16 // dtype.itemsize
    memory = GuardedMemory(dtype).logits
    for offset in range(1, vector):
        places = {
            "a part of a tile at the end": (offset, CAPACITY),
            "less than a vector behind a full group": (CAPACITY - 2048 - vector + offset, CAPACITY),
            "full groups alone": (offset, offset + 2048),
        }
        for place, (start, end) in places.items():
            for special in (None, float("nan"), float("inf")):
                memory.fill_(torch.inf)
                memory[1::2] = torch.nan
                row = memory[start:end]
                row.copy_(torch.from_numpy(rng.normal(0, 3, len(row))))
                if special is not None:
                    row[rng.integers(0, len(row), 3)] = special
                copy = row.clone()
                same = torch.equal(loaded(row, vector), loaded(copy, vector))
                same &= torch.equal(statistics(row[None], vector), statistics(copy[None], vector))
                assert copy.data_ptr() % 16 == 0 != row.data_ptr() % 16
                compared += 1
                wrong += [] if same else [[offset, place, str(special)]]
    return {"compared": compared, "wrong": wrong}
