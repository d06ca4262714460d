"""Planners with one bug each: native's, with something wrong before or after it."""

from dataclasses import replace

import torch

from tokendraw import PagedKVPlan
from tokendraw_native.paged_kv import NativePlanner


class Honest(NativePlanner):
    """The native planner."""

    def plan(self, seq_lens, block_table, page_size, page_indices=True, pad=-1, out=None):
        return super().plan(*self.change(seq_lens, block_table, page_size, page_indices, pad, out))

    def change(self, *arguments):
        return arguments


class OnePageTooMany(Honest):
    """A length at a page's edge takes a page more."""

    def change(self, seq_lens, block_table, page_size, *rest):
        at_edge = (seq_lens > 0) & (seq_lens % page_size == 0)
        return torch.where(at_edge, seq_lens + 1, seq_lens), block_table, page_size, *rest


class EmptyHasALastPage(Honest):
    """The last page of a request without tokens is full."""

    def plan(self, seq_lens, block_table, page_size, *rest):
        out = super().plan(seq_lens, block_table, page_size, *rest)
        out.last_page_len.masked_fill_(seq_lens == 0, page_size)
        return out


class NegativeLengthsCount(Honest):
    """A length below 0 counts as its amount."""

    def change(self, seq_lens, *rest):
        return seq_lens.abs(), *rest


class LimitWraps(Honest):
    """``W * page_size`` is computed in int32."""

    def change(self, seq_lens, block_table, page_size, *rest):
        limit = int(torch.tensor(block_table.shape[1] * page_size).to(torch.int32))
        return seq_lens.clamp(max=max(limit, 0)), block_table, page_size, *rest


class RoundingWraps(Honest):
    """``length + page_size - 1`` is computed in int32."""

    def change(self, seq_lens, block_table, page_size, *rest):
        return seq_lens.where(seq_lens + (page_size - 1) >= 0, 0), block_table, page_size, *rest


class KeepsTheTail(Honest):
    """What stood behind the last page stays."""

    def plan(self, seq_lens, block_table, page_size, page_indices=True, pad=-1, out=None):
        before = None if out.page_indices is None else out.page_indices.clone()
        super().plan(seq_lens, block_table, page_size, page_indices, pad, out)
        if before is not None:
            tail = torch.arange(len(before), device=before.device) >= out.page_indptr[-1:]
            out.page_indices.copy_(torch.where(tail, before, out.page_indices))
        return out


class KeepsTheFirst(Honest):
    """``page_indptr[0]`` is never written."""

    def plan(self, *arguments):
        out = arguments[-1]
        before = out.page_indptr[:1].clone()
        super().plan(*arguments)
        out.page_indptr[:1].copy_(before)
        return out


class PadsWithMinusOne(Honest):
    """Whatever ``pad`` was asked for."""

    def change(self, seq_lens, block_table, page_size, page_indices, pad, out):
        return seq_lens, block_table, page_size, page_indices, -1, out


class WritesBehind(Honest):
    """One element behind ``page_indices`` is written too."""

    def plan(self, *arguments):
        out = super().plan(*arguments)
        if out.page_indices is not None:
            pages = out.page_indices
            at = pages.storage_offset() + len(pages)
            memory = pages.as_strided((pages.untyped_storage().nbytes() // 4,), (1,), 0)
            memory[at : at + 1].zero_()
        return out


class ClampsInPlace(Honest):
    """The caller's lengths are clamped."""

    def change(self, seq_lens, block_table, page_size, *rest):
        return seq_lens.clamp_(0, block_table.shape[1] * page_size), block_table, page_size, *rest


class DenseTables(Honest):
    """A block table is read as if its rows were one behind the other."""

    def change(self, seq_lens, block_table, *rest):
        columns = block_table.shape[1]
        if block_table.stride(0) >= columns:
            block_table = block_table.as_strided(block_table.shape, (columns, 1))
        return seq_lens, block_table, *rest


class TokensWithoutPages(Honest):
    """Where pages are not asked for, the offsets count tokens."""

    def plan(self, seq_lens, block_table, page_size, page_indices=True, pad=-1, out=None):
        super().plan(seq_lens, block_table, page_size, page_indices, pad, out)
        if not page_indices:
            torch.cumsum(seq_lens, 0, dtype=torch.int32, out=out.page_indptr[1:])
        return out


class OthersBuffers(Honest):
    """Every plan of one shape is the same object's."""

    def __init__(self):
        self.buffers = {}

    def plan(self, seq_lens, block_table, page_size, page_indices=True, pad=-1, out=None):
        own = self.buffers.setdefault((block_table.shape, page_indices), out)
        return super().plan(seq_lens, block_table, page_size, page_indices, pad, own)


class Int64(Honest):
    """A running sum that was not told its dtype."""

    def plan(self, *arguments):
        out = super().plan(*arguments)
        return replace(out, page_indptr=out.page_indptr.long())


class StartsWhereTheLastEnded(Honest):
    """The offsets of a call go on from those of the call before."""

    ended = 0

    def plan(self, *arguments):
        out = super().plan(*arguments)
        out.page_indptr.add_(self.ended)
        self.ended = out.page_indptr[-1:].clone()
        return out


class Waits(Honest):
    """The number of pages is read back."""

    def plan(self, *arguments):
        out = super().plan(*arguments)
        out.page_indptr[-1].item()
        return out


class SetsAnElement(Honest):
    """``x[0] = 0``, which copies a number of the host."""

    def plan(self, *arguments):
        out = super().plan(*arguments)
        out.page_indptr[0] = 0
        return out


class Masks(Honest):
    """The pages are picked by a mask."""

    def change(self, seq_lens, *rest):
        seq_lens[seq_lens < 0] = 0
        return seq_lens, *rest


class Remembers(Honest):
    """The lengths of the first call hold for all calls of its shape."""

    def __init__(self):
        self.first = {}

    def change(self, seq_lens, *rest):
        return self.first.setdefault(len(seq_lens), seq_lens.clone()), *rest


class AnotherPlan(Honest):
    """A plan of its own is returned, and the buffers that it was given stay as they are."""

    def plan(self, seq_lens, block_table, page_size, page_indices=True, pad=-1, out=None):
        own = PagedKVPlan.empty(*block_table.shape, device=seq_lens.device, page_indices=page_indices)
        return super().plan(seq_lens, block_table, page_size, page_indices, pad, own)
