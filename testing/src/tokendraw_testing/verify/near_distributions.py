"""Equal or nearly equal targets and drafts, which show every rounding, without seeds too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import stats

from tokendraw import SamplingParams
from tokendraw.plugin import DraftKind
from tokendraw.tools import all_of
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.statistical_tests import fit
from tokendraw_testing.kit.trial import Trial, Verdict
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.expectation import expect
from tokendraw_testing.verify.draft_batch import chains
from tokendraw_testing.verify.subject import VerifySubject

properties = Properties("verify")

_VOCAB_SIZE: Final = 1025
_WIDE_SIZE: Final = 65_543
_HALF_DTYPES: Final = (torch.bfloat16, torch.float16)
_STEPS: Final = 1 << 7
_PER_UNIT: Final = 1 << 14
"""Logits from 2**-7 to 2**-6 in steps of 2**-14, which bfloat16 and float16 hold."""
_STEP_DISTANCE: Final = 4
"""Steps between the logit of a target and that of a draft: a quarter of a thousandth of p."""
_RARE_LOGIT: Final = -9.0
"""Logit of an impossible draft: the target rejects it, and q hardly changes."""
_ROUNDING_SHARE: Final = 2e-5
"""Share of drafts with p = q that rounding may reject."""


@properties.advertised(
    "verify near distributions",
    lambda c: "rejection" in c.verify_modes and bool({"probs", "logits"} & set(c.draft_kinds)),
)
def near_distributions(subject: VerifySubject, trial: Trial) -> str:
    """Where p = q, drafts are accepted whatever their digits; where they differ by digits, residuals follow these."""
    capabilities = subject.capabilities
    sizes = (_VOCAB_SIZE,) if subject.effort.mixed else (_VOCAB_SIZE, _WIDE_SIZE)
    served_sizes = [size for size in sizes if size <= (capabilities.max_vocab_size or size)]
    if not served_sizes:
        trial.skip(f"needs a vocabulary of {_VOCAB_SIZE:,}, found a limit of {capabilities.max_vocab_size}")
    kinds = [kind for kind in capabilities.draft_kinds if kind != "chosen"]
    for dtype in capabilities.dtypes:
        for kind in kinds:
            for size in served_sizes:
                count = subject.effort.draws_of(300 if size == served_sizes[0] else 90)
                trial.judge(
                    f"residual, V = {size}, {dtype}, {kind}",
                    _residual_experiment(subject, dtype, size, kind),
                    count,
                )
            trial.judge(
                f"equal rows, {dtype}, {kind}",
                _equal_experiment(subject, dtype, kind),
                subject.effort.draws_of(4000),
            )
    return f"{all_of(kinds)}, {all_of(capabilities.dtypes)}, V = {all_of(map(str, served_sizes))}"


def _residual_experiment(
    subject: VerifySubject, dtype: str, size: int, kind: DraftKind
) -> Callable[[Generator, int], Verdict]:
    """Make p and q that differ by less than the digits of half precision: rounding loses tokens of the residual."""

    def experiment(rng: Generator, count: int) -> Verdict:
        seed_torch(rng)
        missing = int(rng.integers(size))
        steps, has_excess = rng.integers(_STEPS + 4, 2 * _STEPS - 4, size), rng.random(size) < 0.5
        target = (steps / _PER_UNIT).astype(np.float32)
        draft_steps = steps + np.where(has_excess, -_STEP_DISTANCE, _STEP_DISTANCE)
        draft = (draft_steps / _PER_UNIT).astype(np.float32)
        target[missing], draft[missing] = -np.inf, _RARE_LOGIT
        p, q = (torch.from_numpy(expect(x, SamplingParams()).probabilities) for x in (target, draft))
        draft_row = subject.upload_draft(q.float().numpy() if kind == "probs" else draft, dtype, kind)
        logits, ids = subject.upload(target, dtype).expand(2 * count, -1), [[missing]] * count
        output = subject.verify_ids(logits, ids, ("rejection", kind), draft_row.expand(count, -1))
        tokens = output.token_ids[:, 0].cpu().numpy()
        verdict = fit(tokens, (p - q).clamp(min=0).numpy(), bins_of_residuals(p, q))
        return replace(verdict, worst=f"of residuals in the last digits of p, {verdict.worst}")

    return experiment


def bins_of_residuals(p: torch.Tensor, q: torch.Tensor) -> NDArray[np.int64]:
    """Sort the tokens of max(p - q, 0) by the half-precision types that lose them: bins [V] from 0, or -1."""
    loss_pattern = sum(((p.to(half) == q.to(half)) * (place + 1) for place, half in enumerate(_HALF_DTYPES)))
    assert isinstance(loss_pattern, torch.Tensor)
    has_excess, bins = (p > q).numpy(), np.full(len(p), -1)
    bins[has_excess] = np.unique(loss_pattern.numpy()[has_excess], return_inverse=True)[1]
    return bins


def _equal_experiment(
    subject: VerifySubject, dtype: str, kind: DraftKind
) -> Callable[[Generator, int], Verdict]:
    """Make p = q, and the drafts most often rejected after rounding q up to half precision."""
    size, steps = _VOCAB_SIZE, 16 if not subject.effort.mixed else 4

    def experiment(rng: Generator, draws: int) -> Verdict:
        seed_torch(rng)
        count = max(1, draws // steps)
        row = torch.from_numpy(rng.normal(0, 3, size)).to(getattr(torch, dtype))
        q = torch.from_numpy(expect(row.float().numpy(), SamplingParams()).probabilities)
        ratios = [q.to(half).double() / q for half in _HALF_DTYPES]
        ids = torch.cat([ratio.argsort(descending=True)[: steps // 2] for ratio in ratios]).tolist()
        draft_rows = (q.float() if kind == "probs" else row).to(subject.device).expand(count * steps, -1)
        logits = row.to(subject.device).expand(count * (steps + 1), -1)
        output = subject.verify_ids(logits, [ids] * count, ("rejection", kind), draft_rows)
        num_refused = sum(len(tokens) <= steps for tokens in chains(output))
        rate = steps * _ROUNDING_SHARE
        text = f"requests with p = q refused a draft {num_refused} times, expected at most {rate * count:.1f}"
        return Verdict(float(stats.binom.sf(num_refused - 1, count, rate)), text, count * steps)

    return experiment
