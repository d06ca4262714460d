"""Hash tables of ids, one for each row: how often an id is in the window of penalties, and its longest match of DRY.

An id is looked for from the entry on that its hash names, and stands there in front of all smaller ids. So programs
insert side by side, by an atomic maximum a step, and a search ends at the first smaller id (Shun and Blelloch 2014,
"Phase-concurrent hash tables for determinism"). Half of the entries remain empty. Where a table would have as many
entries as there are ids, each id has its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logits_processing.edited_row import DRY, LAST_N

_MULTIPLIER = tl.constexpr(0x9E3779B1)
"""2**32 by the golden ratio: neighbouring ids get hashes far apart."""


class IdTable(NamedTuple):
    """The table of a row."""

    keys: Any
    counts: Any
    """The first key and the first count; see :class:`.argument_groups.IdTables`."""
    size: Any
    """Number of entries; 0: no table."""
    vocab_size: Any


@triton.jit
def load_table(row, tables, flags):
    """Return the :class:`IdTable` of a row."""
    offset = row.row * tables.room
    size = tl.load(tables.sizes + row.row, mask=(flags & (LAST_N | DRY)) != 0, other=0)
    return IdTable(tables.keys + offset, tables.counts + offset, size, row.vocab_size)


@triton.jit
def new_keys(ids, matches):
    """Return the keys of ids with the lengths of their matches of DRY; -1: none."""
    return ((ids.to(tl.int64) + 1) << 32) | (matches + 1).to(tl.int64)


@triton.jit
def listed_ids(table, index):
    """Return the ids in some entries: -1 for empty ones."""
    keys = tl.load(table.keys + index, mask=index < table.size, other=0)
    return ((keys >> 32) - 1).to(tl.int32)


@triton.jit
def longest_matches(table, entry, mask):
    """Return the longest match of DRY in some entries; -1: none."""
    return tl.load(table.keys + entry, mask=mask, other=0).to(tl.int32) - 1


@triton.jit
def _first_entry(ids, table):
    hashed = ids.to(tl.uint32) * _MULTIPLIER
    entry = ((hashed.to(tl.int64) * table.size) >> 32).to(tl.int32)
    return tl.where(table.size == table.vocab_size, ids, entry)


@triton.jit
def insert_keys(keys, mask, table):
    """Insert keys into the table of a row, where no key has the same id and a match as long.

    An id with a shorter match is replaced. A smaller id makes room, and is inserted further on.
    """
    entry = _first_entry(((keys >> 32) - 1).to(tl.int32), table)
    present = tl.load(table.keys + entry, mask=mask, other=0)
    active = (mask & (((present >> 32) != (keys >> 32)) | (present < keys))).to(tl.int32)
    while tl.max(active, 0) > 0:
        present = tl.atomic_max(table.keys + entry, keys, mask=active > 0, sem="relaxed")
        active &= ((present != 0) & ((present >> 32) != (keys >> 32))).to(tl.int32)
        keys = tl.minimum(keys, present)
        entry = tl.where(entry + 1 < table.size, entry + 1, 0)


@triton.jit
def find_entries(ids, mask, table):
    """Return the entries of ids; -1 for missing ones."""
    entry = _first_entry(ids, table)
    found = tl.zeros_like(ids) - 1
    active = (mask & (table.size > 0)).to(tl.int32)
    while tl.max(active, 0) > 0:
        present = (tl.load(table.keys + entry, mask=active > 0, other=0) >> 32) - 1
        found = tl.where((active > 0) & (present == ids), entry, found)
        active &= (present > ids).to(tl.int32)
        entry = tl.where(entry + 1 < table.size, entry + 1, 0)
    return found
