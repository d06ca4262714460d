"""Page plans in plain Python, which the tests of ``plan_paged_kv`` hold every provider against."""

import numpy as np
import torch

from selections import loaded, selection_of
from tokendraw import PagedKVPlan
from tokendraw.calls.negotiator import Negotiator
from tokendraw.operations.plan_paged_kv import OPERATION
from tokendraw.operations.plan_paged_kv.provider import PagedKVPlanner
from tokendraw.plugin import HostNeed

SENTINEL = -77_777


def planner_of(backend, device):
    """A planner as ``tokendraw.load`` returns it, around an object that nobody negotiated."""
    selection = selection_of(loaded("planted", backend), operation="plan_paged_kv")
    return PagedKVPlanner(OPERATION, Negotiator(torch.device(device), HostNeed()), selection)


def ints(values, device):
    return torch.tensor(values, dtype=torch.int32, device=device)


def table_of(requests, columns, seed=0):
    """A block table as lists: pages in any order, none of them twice."""
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
    """Buffers that hold nothing but the sentinel."""
    buffers = PagedKVPlan.empty(requests, columns, device=device, page_indices=page_indices)
    for buffer in tensors(buffers):
        buffer.fill_(SENTINEL)
    return buffers


def tensors(plan):
    found = (plan.page_indptr, plan.last_page_len, plan.page_indices)
    return [tensor for tensor in found if tensor is not None]


def require_equal(found, needed, what):
    """Compare plans as lists, and say which of the lists differs, and where."""
    names = ("page_indptr", "last_page_len", "page_indices")
    for name, ours, theirs in zip(names, found, needed, strict=True):
        if ours != theirs:
            at = "length" if ours is None or theirs is None or len(ours) != len(theirs) else None
            at = at or next(i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
            raise AssertionError(f"{what}: {name} differs at {at}: found {ours}, needed {theirs}")


def require_plan(planner, seq_lens, table, page_size, device, *, pad=-1, what="", **options):
    """Plan on the device and compare with the model; ``table`` may be a tensor with strides of its own."""
    on_device = table if isinstance(table, torch.Tensor) else ints(table, device).view(len(table), -1)
    plan = planner.plan(ints(seq_lens, device), on_device, page_size, pad=pad, **options)
    needed = list(model(seq_lens, on_device.tolist(), page_size, pad))
    if not options.get("page_indices", True):
        needed[2] = None
    require_equal(lists(plan), needed, what or f"{seq_lens} by {page_size}")
    return plan
