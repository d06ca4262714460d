"""Planners of paged KV caches with a bug in every call: native with changed arguments or plans."""

from dataclasses import replace

import torch

from mutants import table
from tokendraw import PagedKVPlan
from tokendraw.plugin import HostCapabilities
from tokendraw_native.paged_kv import NativePlanner

PROMISES = HostCapabilities(device_types=None, graph_safe=True, sync_free=True)


class PlannerMutant(NativePlanner):
    """The native planner, with hooks for lengths, arguments and the plan."""

    ended = 0

    def __init__(self, need=None, device="cpu"):
        self.buffers, self.first_lengths = {}, {}

    def plan(self, seq_lens, block_table, page_size, page_indices=True, pad=-1, out=None):
        lengths = self.lengths(seq_lens, block_table.shape[1], page_size)
        before = [
            None if tensor is None else tensor.clone() for tensor in (out.page_indptr, out.page_indices)
        ]
        plan = super().plan(lengths, *self.arguments(block_table, page_size, page_indices, pad, out))
        return self.after(plan, seq_lens, page_size, before) or plan

    def lengths(self, seq_lens, columns, page_size):
        return seq_lens

    def arguments(self, *arguments):
        return arguments

    def after(self, plan, seq_lens, page_size, before):
        return None


def wrapped_limit(self, seq_lens, columns, page_size):
    limit = int(torch.tensor(columns * page_size).to(torch.int32))
    return seq_lens.clamp(max=max(limit, 0))


def masked(self, seq_lens, columns, page_size):
    seq_lens[seq_lens < 0] = 0
    return seq_lens


def dense_table(self, block_table, *rest):
    columns = block_table.shape[1]
    if block_table.stride(0) >= columns:
        block_table = block_table.as_strided(block_table.shape, (columns, 1))
    return block_table, *rest


def shared_plan(self, block_table, page_size, page_indices, pad, out):
    out = self.buffers.setdefault((block_table.shape, page_indices), out)
    return block_table, page_size, page_indices, pad, out


def other_plan(self, block_table, page_size, page_indices, pad, out):
    plan = PagedKVPlan.empty(*block_table.shape, device=block_table.device, page_indices=page_indices)
    return block_table, page_size, page_indices, pad, plan


def full_last_page(self, plan, seq_lens, page_size, before):
    plan.last_page_len.masked_fill_(seq_lens == 0, page_size)


def tail_kept(self, plan, seq_lens, page_size, before):
    if plan.page_indices is not None:
        tail = torch.arange(len(before[1]), device=before[1].device) >= plan.page_indptr[-1:]
        plan.page_indices.copy_(torch.where(tail, before[1], plan.page_indices))


def first_kept(self, plan, seq_lens, page_size, before):
    plan.page_indptr[:1].copy_(before[0][:1])


def write_behind(self, plan, seq_lens, page_size, before):
    pages = plan.page_indices
    if pages is not None:
        at = pages.storage_offset() + len(pages)
        pages.as_strided((pages.untyped_storage().nbytes() // 4,), (1,), 0)[at : at + 1].zero_()


def tokens_without_pages(self, plan, seq_lens, page_size, before):
    if plan.page_indices is None:
        torch.cumsum(seq_lens, 0, dtype=torch.int32, out=plan.page_indptr[1:])


def offsets_go_on(self, plan, seq_lens, page_size, before):
    plan.page_indptr.add_(self.ended)
    self.ended = plan.page_indptr[-1:].clone()


def set_element(self, plan, seq_lens, page_size, before):
    plan.page_indptr[0] = 0


def read_back(self, plan, seq_lens, page_size, before):
    plan.page_indptr[-1].item()


# fmt: off
LENGTHS, ARGUMENTS, AFTER = "lengths", "arguments", "after"
PLANNERS = table("plan_paged_kv", PROMISES, PlannerMutant, (
    ("offsets of a call go on from the call before", "plan values", {AFTER: offsets_go_on}),
    ("a page too many at a page's edge", "plan values", {LENGTHS: lambda self, lengths, columns, page: torch.where(
        (lengths > 0) & (lengths % page == 0), lengths + 1, lengths)}),
    ("a full last page without tokens", "plan values", {AFTER: full_last_page}),
    ("a length below 0 counted as its amount", "plan values",
     {LENGTHS: lambda self, lengths, columns, page: lengths.abs()}),
    ("W * page_size in int32", "plan values", {LENGTHS: wrapped_limit}),
    ("length + page_size - 1 in int32", "plan values",
     {LENGTHS: lambda self, lengths, columns, page: lengths.where(lengths + (page - 1) >= 0, 0)}),
    ("padding of -1", "plan values",
     {ARGUMENTS: lambda self, block_table, page, indices, pad, out: (block_table, page, indices, -1, out)}),
    ("offsets of tokens without pages", "plan values", {AFTER: tokens_without_pages}),
    ("the tail behind the last page kept", "plan buffers", {AFTER: tail_kept}),
    ("page_indptr[0] never written", "plan buffers", {AFTER: first_kept}),
    ("an element behind page_indices written", "plan buffers", {AFTER: write_behind}),
    ("another plan returned", "plan buffers", {ARGUMENTS: other_plan}),
    ("lengths clamped in place", "plan inputs unmodified",
     {LENGTHS: lambda self, lengths, columns, page: lengths.clamp_(0, columns * page)}),
    ("a block table read as if it lay dense", "plan strided tables", {ARGUMENTS: dense_table}),
))
CUDA_PLANNERS = table("plan_paged_kv", PROMISES, PlannerMutant, (
    ("the number of pages read back", "plan sync-free", {AFTER: read_back}),
    ("the lengths of the first call kept", "plan graph replay", {
        LENGTHS: lambda self, lengths, columns, page: self.first_lengths.setdefault(len(lengths), lengths.clone())}),
), device="cuda")
LOOP_PLANNERS = table("plan_paged_kv", PROMISES, PlannerMutant, (
    ("pages picked by a mask", (), {LENGTHS: masked}),
    ("an element set from a number of the host", (), {AFTER: set_element}),
    ("one plan for every call of a shape", (), {ARGUMENTS: shared_plan}),
    ("offsets in int64", (), {AFTER: lambda self, plan, seq_lens, page_size, before: replace(
        plan, page_indptr=plan.page_indptr.long())}),
))
"""Bugs that the core refuses, or that an engine's loop shows: tests/operations/plan_paged_kv/test_loop_mutants.py."""
# fmt: on
MUTANTS = {"Planners": PLANNERS, "Planners on a CUDA device": CUDA_PLANNERS}
