"""Speculative decoding of many short sequences at once, and what their tokens must be distributed like.

A trial is a request with a seed of its own. Its drafts are drawn by ``draft`` at the very seeds and positions that
verify them. Where a verification ends before the last place that is looked at, the sequence goes on as an engine's
would: by plain sampling, or by further verifications.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from goodness_of_fit import FALSE_ALARM, binomial_interval, chi_square
from tokendraw import Drafts, SamplingMetadata, SamplingParams, speculative
from tokendraw_testing import reference
from tokendraw_testing.reference_walk import distribution

FIRST = 10
"""Position of the last settled token of every trial."""
PLAIN = SamplingParams()


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is drawn from. Logits are [V], or [V + 1, V]: a row for each token before, and one for a first token."""

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


def faults(case, found):
    """What about the trials cannot be, each kind of check with a false alarm of at most 1e-6."""
    p, q = (_probabilities(case, x) for x in (case.target, case.draft))
    trials, size = len(found.tokens), p.shape[1]
    if found.tokens.min() < 0 or found.tokens.max() >= size:
        return ["range"]
    wrong, marginal = [], p[-1]
    for step in range(case.drafts + 1):
        if not chi_square(found.tokens[:, step], marginal) > FALSE_ALARM:
            wrong.append(f"token {step}")
        marginal = marginal @ p[:-1]
    joint = p[-1][:, None] * p[:-1]
    if not chi_square(found.tokens[:, 0] * size + found.tokens[:, 1], joint.ravel()) > FALSE_ALARM:
        wrong.append("joint")
    each = np.minimum(p, q) if case.q != "one-hot" and case.mode == "rejection" else p * q
    low, high = binomial_interval(trials, 0.0 if 0 in case.placeholders else float(each[-1].sum()))
    if not low <= np.count_nonzero(found.num_accepted) <= high:
        wrong.append("acceptance")
    if np.ndim(case.target) == np.ndim(case.draft) == 1 and not case.placeholders:
        rate = each[-1].sum()
        counts = rate ** np.arange(case.drafts + 1) * np.append(np.full(case.drafts, 1 - rate), 1.0)
        if not chi_square(found.num_accepted, counts) > FALSE_ALARM:
            wrong.append("accepted in a row")
    return wrong


def _probabilities(case, logits):
    rows = [reference.prepare(row, case.params) for row in _by_token(logits)]
    assert all(row.certain for row in rows)
    return np.stack([distribution(row) for row in rows])
