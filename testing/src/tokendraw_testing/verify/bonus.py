"""Tokens without a draft: the bonus token, and tokens in place of placeholders."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.random import Generator

from tokendraw import SamplingParams
from tokendraw.plugin import VerifyMode
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.statistical_tests import fit
from tokendraw_testing.kit.trial import Trial, Verdict
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.expectation import expect
from tokendraw_testing.rows.requests import seedings
from tokendraw_testing.verify.draft_batch import DraftBatch, chains, round_to_dtype
from tokendraw_testing.verify.draws import EIGHT_LOGITS, markov_case
from tokendraw_testing.verify.speculation import judge
from tokendraw_testing.verify.subject import VerifySubject

properties = Properties("verify")


@properties.required("verify bonus")
def bonus(subject: VerifySubject, trial: Trial) -> str:
    """Where all drafts are accepted, the bonus row gives one token more: the one that ``sample`` draws there."""
    capabilities, size = subject.capabilities, len(EIGHT_LOGITS)
    for mode, dtype in itertools.product(capabilities.verify_modes, capabilities.dtypes):

        def experiment(rng: Generator, draws: int, mode: VerifyMode = mode, dtype: str = dtype) -> Verdict:
            seed_torch(rng)
            kind, bonus_row = capabilities.draft_kinds[0], round_to_dtype(EIGHT_LOGITS, dtype)
            sure_row = np.where(np.arange(size) == 7, np.float32(60), np.float32(0))
            target = subject.upload(np.stack([sure_row, sure_row, bonus_row]), dtype).repeat(draws, 1)
            draft_row = sure_row if kind == "logits" else (sure_row > 0).astype(np.float32)
            draft_rows = subject.upload_draft(draft_row, dtype, kind).repeat(2 * draws, 1)
            output = subject.verify_ids(target, [[7, 7]] * draws, (mode, kind), draft_rows)
            trial.require(
                (output.num_accepted == 2).all(),
                f"{mode}, {dtype}, {kind}: drafts that the target is sure of need to be accepted",
            )
            expected = expect(bonus_row, SamplingParams())
            return fit(output.token_ids[:, 2].cpu().numpy(), expected.probabilities)

        trial.judge(f"{mode}, {dtype}", experiment, subject.effort.tiled_draws // 2)
    sampling = subject.seeded_sampling
    if sampling is None:
        return "distribution"
    num_tokens = 0
    for dtype, size, count in subject.share_requests([1100], 60):
        batch = DraftBatch.of(subject, trial.generator(f"requests {dtype}"), count, size, dtype=dtype)
        num_tokens += _require_sampled(subject, trial, batch, batch.sample_tokens(subject, sampling))
    return f"distribution, and {num_tokens} tokens equal to those of sample"


def _require_sampled(
    subject: VerifySubject, trial: Trial, batch: DraftBatch, sampled: list[list[int]]
) -> int:
    """Require the tokens of ``sample`` after accepted drafts; return the number of compared tokens."""
    num_tokens = 0
    for mode, kind in subject.ways:
        for i, tokens in enumerate(chains(batch.verify(subject, mode, kind))):
            if len(tokens) == len(sampled[i]):
                num_tokens += 1
                trial.require(
                    tokens[-1] == sampled[i][-1],
                    f"{batch.dtype}, {mode}, {kind}: a bonus token needs to be that of sample, {sampled[i][-1]}, found "
                    f"{tokens[-1]}",
                )
    return num_tokens


@properties.advertised("verify after placeholders", lambda c: c.placeholder_drafts)
def after_placeholders(subject: VerifySubject, trial: Trial) -> str:
    """The token in place of a draft that was not made follows the target, and so do all others."""
    capabilities = subject.capabilities
    for mode in capabilities.verify_modes:
        for step in (0, 1):
            case = markov_case(trial, capabilities.draft_kinds[0], mode, (step,))
            label = f"{mode}, place {step + 1}"
            judge(subject, trial, label, case, subject.effort.draws // 4, seeded=seedings(capabilities)[-1])
    return "in the first place and in the second"
