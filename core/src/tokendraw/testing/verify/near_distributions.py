"""Targets and drafts that are equal, or nearly so, in which every rounding shows, without seeds too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from scipy import stats

from tokendraw._exchange.capabilities import DraftKind
from tokendraw._exchange.params import SamplingParams
from tokendraw._messages.words import all_of
from tokendraw.testing.kit.property import Properties
from tokendraw.testing.kit.trial import Trial, Verdict
from tokendraw.testing.rows.draws import seed_torch
from tokendraw.testing.rows.expected import expect
from tokendraw.testing.verify.drafting import chains, drafts_of, row_metadata
from tokendraw.testing.verify.verifying import Verifying

properties = Properties("verify")

_SIZE: Final = 1025
_WIDE: Final = 65_543
_HALVES: Final = (torch.bfloat16, torch.float16)
_MINOR: Final = 0.004
"""Share of p that q lacks: all of the residual."""
_SPURIOUS: Final = 1e-3
"""Share of recovered tokens that rounding in float32 may put elsewhere."""
_BY_ROUNDING: Final = 2e-5
"""Share of drafts with p = q that it may reject."""


@properties.advertised(
    "verify near distributions",
    lambda c: "rejection" in c.verify_modes and bool({"probs", "logits"} & set(c.draft_kinds)),
)
def near_distributions(subject: Verifying, trial: Trial) -> str:
    """Where p = q, drafts are accepted whatever their digits; where two tokens differ, one of them is recovered."""
    offered = subject.capabilities
    sizes = (_SIZE,) if subject.effort.mixed else (_SIZE, _WIDE)
    served = [size for size in sizes if size <= (offered.max_vocab_size or size)]
    kinds = [kind for kind in offered.draft_kinds if kind != "chosen"]
    for dtype in offered.dtypes:
        for kind in kinds:
            for size in served:
                count = subject.effort.draws_of(400 if size == served[0] else 60)
                trial.judge(
                    f"residual, V = {size}, {dtype}, {kind}", _swapped(subject, dtype, size, kind), count
                )
            trial.judge(
                f"equal rows, {dtype}, {kind}", _equal(subject, dtype, kind), subject.effort.draws_of(4000)
            )
    return f"{all_of(kinds)}, {all_of(offered.dtypes)}, V = {all_of(map(str, served))}"


def _swapped(
    subject: Verifying, dtype: str, size: int, kind: DraftKind
) -> Callable[[np.random.Generator, int], Verdict]:
    """Make p and q of which each lacks one token that the other has, so that nothing but the first is recovered."""

    def experiment(rng: np.random.Generator, count: int) -> Verdict:
        seed_torch(rng)
        row = torch.from_numpy(rng.normal(0, 1, size)).to(getattr(torch, dtype)).float()
        missing, recovered = (int(i) for i in rng.choice(size, 2, replace=False))
        mass = float(row.double().exp().sum())
        target, draft = row.clone(), row.clone()
        target[missing] = draft[recovered] = -np.inf
        target[recovered] = draft[missing] = np.log(_MINOR * mass)
        target = target.to(getattr(torch, dtype))
        draft = draft.to(getattr(torch, dtype))
        if kind == "probs":
            draft = torch.from_numpy(expect(draft.float().numpy(), SamplingParams()).probabilities).float()
        drafts = drafts_of(
            subject,
            [[missing]] * count,
            size,
            kind,
            draft.to(subject.device).expand(count, -1),
        )
        metadata = row_metadata(drafts, [SamplingParams()] * count, [0] * count)
        found = subject.verify(target.to(subject.device).expand(2 * count, -1), drafts, metadata, "rejection")
        others = int((found.token_ids[:, 0] != recovered).sum())
        text = f"tokens that p has no more of than q recovered {others} times, expected at most {_SPURIOUS * count:.1f}"
        return Verdict(float(stats.binom.sf(others - 1, count, _SPURIOUS)), text, count)

    return experiment


def _equal(subject: Verifying, dtype: str, kind: DraftKind) -> Callable[[np.random.Generator, int], Verdict]:
    """Make p = q, and drafts that rounding q up to half precision would reject most often."""
    size, steps = _SIZE, 16 if not subject.effort.mixed else 4

    def experiment(rng: np.random.Generator, draws: int) -> Verdict:
        seed_torch(rng)
        count = max(1, draws // steps)
        row = torch.from_numpy(rng.normal(0, 3, size)).to(getattr(torch, dtype))
        q = torch.from_numpy(expect(row.float().numpy(), SamplingParams()).probabilities)
        worst = [(q.to(half).double() / q).argsort(descending=True)[: steps // 2] for half in _HALVES]
        ids = torch.cat(worst).tolist()
        given = (q.float() if kind == "probs" else row).to(subject.device)
        drafts = drafts_of(
            subject,
            [ids] * count,
            size,
            kind,
            given.expand(count * steps, -1),
        )
        metadata = row_metadata(drafts, [SamplingParams()] * count, [0] * count)
        found = subject.verify(
            row.to(subject.device).expand(count * (steps + 1), -1), drafts, metadata, "rejection"
        )
        refused = sum(len(tokens) <= steps for tokens in chains(found))
        rate = steps * _BY_ROUNDING
        text = f"requests with p = q refused a draft {refused} times, expected at most {rate * count:.1f}"
        return Verdict(float(stats.binom.sf(refused - 1, count, rate)), text, count * steps)

    return experiment
