"""Verifications by native, metadata of rows, and batches of requests."""

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import tokendraw
from goodness_of_fit import FALSE_ALARM, binomial_interval, chi_square
from tokendraw import Drafts, SamplingMetadata, SamplingParams, speculative
from tokendraw_native.sampler import NativeSampler
from tokendraw_testing import reference
from tokendraw_testing.reference_walk import distribution, walk

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


# Speculative decoding of many short sequences, and the distribution of their tokens.


FIRST = 10
"""Position of the last settled token of every trial."""
PLAIN = SamplingParams()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A pair of target and draft. Logits are [V], or [V + 1, V]: a row for each token before, and for a first token."""

    target: Any
    draft: Any
    drafts: int = 1
    """K; the first K + 1 tokens are looked at."""
    q: str = "logits"
    """How a verification is told of the drafts' distribution: logits, probs, or one-hot."""
    mode: str = "rejection"
    params: SamplingParams = PLAIN
    placeholders: tuple[int, ...] = ()
    """Places without a draft, where the target's next row goes on from token 0."""
    rest: str = "sample"
    """How a sequence goes on: sample, or verify."""
    seeded: bool = True


@dataclass
class Trials:
    tokens: np.ndarray
    """[trials, K + 1]."""
    num_accepted: np.ndarray
    """[trials], of the first verification."""


def run(case, sampler, trials, device="cpu", chunk=4096):
    """Decode the sequences of the seeds 0, 1, ... as batches of ``chunk``."""
    torch.manual_seed(5)  # for trials without seeds
    parts = [
        _decode(case, sampler, torch.arange(start, min(start + chunk, trials), device=device))
        for start in range(0, trials, chunk)
    ]
    tokens, accepted = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
    return Trials(tokens, accepted)


def _decode(case, sampler, seeds):
    target, draft = (torch.from_numpy(_by_token(x)).to(seeds.device) for x in (case.target, case.draft))
    width, done, accepted = case.drafts + 1, torch.zeros_like(seeds), []
    # column 0 is the row of a first token; what is written beyond the first K + 1 tokens is not looked at
    tokens = torch.full((len(seeds), 1 + 2 * width), len(target) - 1, device=seeds.device)
    while not accepted or (case.rest == "verify" and int(done.min()) < width):
        before = tokens.gather(1, done.unsqueeze(1)).squeeze(1)
        output = _verification(case, sampler, seeds, FIRST + done, before, target, draft)
        tokens.scatter_(
            1, done.unsqueeze(1) + torch.arange(1, width + 1, device=seeds.device), output.token_ids
        )
        done = (done + output.num_accepted + 1).clamp(max=width)
        accepted.append(output.num_accepted)
    for step in range(1, width):
        metadata = _metadata(case, seeds, torch.full_like(seeds, FIRST + step))
        plain = sampler.sample(target[tokens[:, step]], metadata).token_ids
        tokens[:, step + 1] = torch.where(done <= step, plain, tokens[:, step + 1])
    return tokens[:, 1 : width + 1], accepted[0]


def _verification(case, sampler, seeds, first, before, target, draft):
    """Draw K drafts from ``first`` on, and verify them."""
    contexts, ids = [before], []
    for step in range(case.drafts):
        x = sampler.sample(draft[contexts[-1]], _metadata(case, seeds, first + step), draft=True).token_ids
        is_drawn = step not in case.placeholders
        ids.append(x if is_drawn else torch.full_like(x, -1))
        contexts.append(x if is_drawn else torch.zeros_like(x))
    logits = draft[torch.stack(contexts[:-1], 1).flatten()]
    params = case.params
    q = {
        "logits": lambda: {"draft_logits": logits},
        "probs": lambda: {"draft_probs": torch.softmax(logits.double() / params.temperature, -1)},
        "one-hot": dict,
    }[case.q]()
    drafts = Drafts.from_counts(torch.stack(ids, 1).flatten(), [case.drafts] * len(seeds), **q)
    rows = drafts.num_rows
    metadata = _metadata(
        case,
        seeds,
        speculative.row_positions(drafts.cu_num_logits, first, rows),
        speculative.row_index(drafts.cu_num_logits, rows),
    )
    return sampler.verify(target[torch.stack(contexts, 1).flatten()], drafts, metadata, mode=case.mode)


def _metadata(case, seeds, positions, row_index=None):
    one = SamplingMetadata.from_params([case.params], device=seeds.device)
    every = {
        name: tensor.expand(len(seeds))
        for name in ("temperature", "top_k", "top_p", "min_p", "joint")
        if (tensor := getattr(one, name)) is not None
    }
    return replace(
        one, **every, positions=positions, row_index=row_index, **({"seed": seeds} if case.seeded else {})
    )


def _by_token(logits):
    logits = np.asarray(logits, np.float32)
    return np.array(np.broadcast_to(logits, (logits.shape[-1] + 1, logits.shape[-1])))


def faults(case, result):
    """What about the trials cannot be, each kind of check with a false alarm of at most 1e-6."""
    p, q = (_probabilities(case, x) for x in (case.target, case.draft))
    trials, size = len(result.tokens), p.shape[1]
    if result.tokens.min() < 0 or result.tokens.max() >= size:
        return ["range"]
    wrong, marginal = [], p[-1]
    for step in range(case.drafts + 1):
        if not chi_square(result.tokens[:, step], marginal) > FALSE_ALARM:
            wrong.append(f"token {step}")
        marginal = marginal @ p[:-1]
    joint = p[-1][:, None] * p[:-1]
    if not chi_square(result.tokens[:, 0] * size + result.tokens[:, 1], joint.ravel()) > FALSE_ALARM:
        wrong.append("joint")
    each = np.minimum(p, q) if case.q != "one-hot" and case.mode == "rejection" else p * q
    low, high = binomial_interval(trials, 0.0 if 0 in case.placeholders else float(each[-1].sum()))
    if not low <= np.count_nonzero(result.num_accepted) <= high:
        wrong.append("acceptance")
    if np.ndim(case.target) == np.ndim(case.draft) == 1 and not case.placeholders:
        rate = each[-1].sum()
        counts = rate ** np.arange(case.drafts + 1) * np.append(np.full(case.drafts, 1 - rate), 1.0)
        if not chi_square(result.num_accepted, counts) > FALSE_ALARM:
            wrong.append("accepted in a row")
    return wrong


def _probabilities(case, logits):
    rows = [reference.prepare(row, case.params) for row in _by_token(logits)]
    assert all(row.certain for row in rows)
    return np.stack([distribution(row) for row in rows])
