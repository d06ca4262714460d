"""Verifications by native, and metadata of rows."""

import functools

import numpy as np
import torch

import tokendraw
from tokendraw import Drafts, SamplingMetadata, SamplingParams, speculative
from tokendraw_native.sampler import NativeSampler


@functools.cache
def native(device, gumbel_dtype="fp32", logprobs_mode="raw_logprobs"):
    """Return the native sampler as built by the plugin, without the core."""
    need = tokendraw.Need(gumbel_dtype=gumbel_dtype, logprobs_mode=logprobs_mode)
    return NativeSampler(torch.device(device), need)


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


def verify(sampler, target, lists, params, *, first=None, mode="rejection", device="cpu", **q):
    """Verify a list of drafts for each request; ``q`` is draft_probs, draft_logits or empty."""
    q = {name: torch.as_tensor(values).to(device) for name, values in q.items()}
    drafts = Drafts.from_lists(lists, device=device, **q)
    target = torch.as_tensor(target).to(device)
    drafts.check(target)
    return sampler.verify(target, drafts, row_metadata(drafts, params, first), mode=mode)


def chains(output):
    """The tokens of each request, padding left out."""
    counts = (output.num_accepted + 1).tolist()
    for row, count in zip(output.token_ids.tolist(), counts, strict=True):
        assert row[count:] == [-1] * (len(row) - count)
    return [row[:count] for row, count in zip(output.token_ids.tolist(), counts, strict=True)]


def softmax(logits):
    weight = np.exp(logits - logits.max(-1, keepdims=True), dtype=np.float64)
    return weight / weight.sum(-1, keepdims=True)


def gaussian(rows, size=300, seed=8):
    return np.random.default_rng(seed).normal(size=(rows, size)).astype(np.float32) * 2
