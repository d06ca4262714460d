"""Calls that verify drafts, and metadata of rows."""

import numpy as np
import torch

from tokendraw import Drafts, SamplingMetadata, SamplingParams, speculative


def row_metadata(drafts, params, first=None):
    """The metadata of a verification.

    :param params: one a request, or one for all.
    :param first: position of each request's first row; None: 100, 200 and so on.
    """
    if isinstance(params, SamplingParams):
        params = [params] * drafts.num_requests
    rows = drafts.num_rows
    if first is None:
        first = [100 * (request + 1) for request in range(drafts.num_requests)]
    first = torch.as_tensor(first, dtype=torch.int64, device=drafts.device)
    return SamplingMetadata.from_params(
        params,
        device=drafts.device,
        positions=speculative.row_positions(drafts.cu_num_logits, first, rows),
        row_index=speculative.row_index(drafts.cu_num_logits, rows),
    )


def verify(sampler, target, lists, params, *, mode="rejection", **q):
    """Verify a list of drafts for each request; ``q`` is draft_probs, draft_logits or empty."""
    drafts = Drafts.from_lists(lists, **{name: torch.as_tensor(values) for name, values in q.items()})
    target = torch.as_tensor(target)
    drafts.check(target)
    return sampler.verify(target, drafts, row_metadata(drafts, params), mode=mode)


def softmax(logits):
    weight = np.exp(logits - logits.max(-1, keepdims=True), dtype=np.float64)
    return weight / weight.sum(-1, keepdims=True)


def gaussian(rows, size=300, seed=8):
    return np.random.default_rng(seed).normal(size=(rows, size)).astype(np.float32) * 2
