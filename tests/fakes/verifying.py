"""Verifications by native, metadata of rows, and batches of requests."""

import functools
from dataclasses import replace

import numpy as np
import torch

import tokendraw
from tokendraw import Drafts, SamplingMetadata, SamplingParams, speculative
from tokendraw_native.sampler import NativeSampler
from tokendraw_testing import reference
from tokendraw_testing.reference_walk import walk

KINDS = [
    SamplingParams(),
    SamplingParams(temperature=0.7, top_k=20, top_p=0.9, min_p=0.01),
    SamplingParams(temperature=0.0),
    SamplingParams(top_p=0.8),
    SamplingParams(top_k=9, top_p=0.7, filter_order="joint"),
]


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


class Batch:
    """Requests of every kind with 0 to 4 drafts, some of them placeholders, most of them drawn near the target."""

    def __init__(self, requests, size, seed=0, ids_outside=True):
        rng = np.random.default_rng(seed)
        self.counts = [int(n) for n in rng.integers(0, 5, requests)]
        self.params = [
            replace(KINDS[i % len(KINDS)], seed=int(rng.integers(-(2**40), 2**40))) for i in range(requests)
        ]
        self.first = [int(position) for position in rng.integers(0, 1000, requests)]
        self.target, self.draft, self.lists = [], [], []
        for count, params in zip(self.counts, self.params, strict=True):
            target = rng.normal(size=(count + 1, size)).astype(np.float32) * 6
            draft = target[:count] + rng.normal(size=(count, size)).astype(np.float32) * 0.3
            ids = [int(rng.choice(size, p=p)) for p in softmax(draft)]
            for step in range(count):
                if params.temperature == 0 and rng.random() < 0.7:
                    ids[step] = int(target[step].argmax())
                if ids_outside and rng.random() < 0.08:
                    ids[step] = int(rng.choice([-1, size, 2**31 - 1, -(2**63)]))
            self.target.append(target)
            self.draft.append(draft)
            self.lists.append(ids)

    def q(self, kind, requests=None):
        """The keywords of the drafts' distribution, and of each request on its own."""
        picked = range(len(self.lists)) if requests is None else requests
        if kind is None:
            return {}
        logits = np.concatenate([self.draft[i] for i in picked])
        return {"draft_logits": logits} if kind == "logits" else {"draft_probs": softmax(logits)}

    def verify(self, sampler, kind, device="cpu", requests=None, mode="rejection"):
        picked = range(len(self.lists)) if requests is None else requests
        return verify(
            sampler,
            np.concatenate([self.target[i] for i in picked]),
            [self.lists[i] for i in picked],
            [self.params[i] for i in picked],
            first=[self.first[i] for i in picked],
            mode=mode,
            device=device,
            **self.q(kind, picked),
        )

    def agrees(self, request, tokens, kind, **how):
        """Whether these are the tokens of the walk; False where the walk itself cannot say."""
        q = {"logits": {"logits": self.draft[request]}, "probs": {"probs": softmax(self.draft[request])}}
        positions = range(self.first[request], self.first[request] + self.counts[request] + 1)
        expected = walk(
            self.target[request],
            self.lists[request],
            self.params[request],
            positions,
            **q.get(kind, {}),
            **how,
        )
        assert tokens == expected.tokens or expected.lead < reference.NEAR_TIE
        return expected.lead >= reference.NEAR_TIE


def gaussian(rows, size=300, seed=8):
    return np.random.default_rng(seed).normal(size=(rows, size)).astype(np.float32) * 2
