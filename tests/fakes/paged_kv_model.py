"""Page plans in plain Python, the reference for every provider of ``plan_paged_kv``."""

import numpy as np
import torch

from cuda_batches import NoWait
from selections import loaded, selection_of
from tokendraw import PagedKVPlan, paged_kv
from tokendraw.calls.negotiator import Negotiator
from tokendraw.operations.plan_paged_kv import OPERATION
from tokendraw.operations.plan_paged_kv.provider import PagedKVPlanner
from tokendraw.plugin import HostNeed

SENTINEL = -77_777


def planner_of(backend, device):
    """Return a planner as from ``tokendraw.load``, around a given object."""
    selection = selection_of(loaded("planted", backend), operation="plan_paged_kv")
    return PagedKVPlanner(OPERATION, Negotiator(torch.device(device), HostNeed()), selection)


def ints(values, device):
    return torch.tensor(values, dtype=torch.int32, device=device)


def table_of(requests, columns, seed=0):
    """Return a block table as lists, with pages in random order."""
    pages = np.random.default_rng([seed, requests, columns]).permutation(requests * columns) + 1000
    return pages.reshape(requests, columns).tolist()


def model(seq_lens, table, page_size, pad=-1):
    """The three lists of a plan, request by request."""
    width = len(table[0]) if table else 0
    indptr, last, indices = [0], [], []
    for given, row in zip(seq_lens, table, strict=True):
        length = min(max(given, 0), width * page_size)
        pages = 0
        while pages * page_size < length:
            indices.append(row[pages])
            pages += 1
        indptr.append(indptr[-1] + pages)
        last.append(length - (pages - 1) * page_size if pages else 0)
    return indptr, last, indices + [pad] * (len(table) * width - len(indices))


def lists(plan):
    """A plan as lists."""
    indices = None if plan.page_indices is None else plan.page_indices.tolist()
    return plan.page_indptr.tolist(), plan.last_page_len.tolist(), indices


def sentinels(requests, columns, device, page_indices=True):
    """Return buffers full of the sentinel."""
    buffers = PagedKVPlan.empty(requests, columns, device=device, page_indices=page_indices)
    for buffer in tensors(buffers):
        buffer.fill_(SENTINEL)
    return buffers


def tensors(plan):
    found = (plan.page_indptr, plan.last_page_len, plan.page_indices)
    return [tensor for tensor in found if tensor is not None]


def require_equal(found, needed, what):
    """Compare plans as lists, and name the first difference."""
    names = ("page_indptr", "last_page_len", "page_indices")
    for name, ours, theirs in zip(names, found, needed, strict=True):
        if ours != theirs:
            at = "length" if ours is None or theirs is None or len(ours) != len(theirs) else None
            at = at or next(i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
            raise AssertionError(f"{what}: {name} differs at {at}: found {ours}, needed {theirs}")


def require_plan(planner, seq_lens, table, page_size, device, *, pad=-1, what="", **options):
    """Plan on the device and compare with the model; ``table`` may be a strided tensor."""
    on_device = table if isinstance(table, torch.Tensor) else ints(table, device).view(len(table), -1)
    plan = planner.plan(ints(seq_lens, device), on_device, page_size, pad=pad, **options)
    needed = list(model(seq_lens, on_device.tolist(), page_size, pad))
    if not options.get("page_indices", True):
        needed[2] = None
    require_equal(lists(plan), needed, what or f"{seq_lens} by {page_size}")
    return plan


def require_no_wait(planner, device):
    """Require that no operation of torch in a plan, ``advance`` or a segment needs a value on the host."""
    table, seq_lens = ints(table_of(6, 4), device), ints([5, 0, 16, 17, 1, 64], device)
    out = sentinels(6, 4, device)
    planner.plan(seq_lens, table, 16)
    with NoWait():
        planner.plan(seq_lens, table, 16)
        planner.plan(seq_lens, table, 16, page_indices=False)
        planner.plan(seq_lens, table, 16, out=out)
        paged_kv.advance(seq_lens, seq_lens, seq_lens, seq_lens, seq_lens)
        paged_kv.segment_query_indptr(seq_lens, 2)
