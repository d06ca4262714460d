"""Page plans in plain Python, batches for plans, and the check that a plan waits for nothing."""

import numpy as np
import torch

from calling import loaded, selection_of
from cuda_batches import NoWait
from tokendraw import PagedKVPlan, paged_kv
from tokendraw.calls.negotiator import Negotiator
from tokendraw.operations.plan_paged_kv.provider import PagedKVPlanner
from tokendraw.plugin import HostNeed

SENTINEL = -77_777


def planner_of(backend, device, *, debug=False):
    """Return a planner as from ``tokendraw.load``, around a given object.

    :param debug: whether the core compares every value of every plan.
    """
    selection = selection_of(loaded("planted", backend), operation="plan_paged_kv")
    return PagedKVPlanner(Negotiator(torch.device(device), HostNeed(), selections=[selection], debug=debug))


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
    for buffer in vars(buffers).values():
        if buffer is not None:
            buffer.fill_(SENTINEL)
    return buffers


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
